"""manifest.json and shards.npy: what a Dataset is. Untrusted when read: every name, count and sum is checked.

The manifest is a sealed file (canonical JSON with a self-hash, see ``loader.sealed``); that hash is the digest of the
Dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..canonical import digest_of
from ..errors import DamageError, RefusedError
from ..sealed import seal, unseal
from .access import check_relative
from .default_mixture import DefaultMixture, parse_mixture
from .fields import Fields
from .layout import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MAX_SEQ_LEN,
    MAX_SHARD_BYTES,
    MAX_VOCAB_SIZE,
    PADDING_ROW,
    RESERVED_NAMES,
    dtype_name,
    mds_size,
    token_dtype,
)

__all__ = [
    "FileRecord",
    "InputFile",
    "Manifest",
    "SourceInfo",
    "check_shard_table",
    "encode_manifest",
    "files_from_text",
    "files_to_text",
    "parse_manifest",
]

MAX_MANIFEST_BYTES = 1 << 28


@dataclass(frozen=True)
class FileRecord:
    """Size and xxh3-128 of a file that the manifest covers."""

    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class InputFile:
    """An input file: its source, path relative to the source's root, size, and xxh3-128 (empty where unknown)."""

    source: str
    path: str
    size_bytes: int = -1
    xxh3_128: str = ""


@dataclass(frozen=True)
class SourceInfo:
    """A source as built.

    Attributes:
        name: also its folder.
        num_shards, num_samples, num_segments: counts.
        num_tokens: tokens without padding.
        num_documents: distinct documents.
        share: ``num_tokens`` over that of all sources; the default mixture weight.
        file_start, file_stop: its input files, as lines of files.txt.
    """

    name: str
    num_shards: int
    num_samples: int
    num_segments: int
    num_tokens: int
    num_documents: int
    share: float
    file_start: int
    file_stop: int


@dataclass(frozen=True)
class Manifest:
    """A Dataset's manifest.

    ``tokenizer`` (digest, kind, bos_id, eos_id, lossless, policy, golden encodings), ``config``, ``accounting`` and
    ``order`` (defaults for window_shards, slices) are what the build gave; ``parents`` maps names to digests;
    ``files_hashed`` covers each file except the manifest, the shards (see shards.npy) and job.json; ``mixture`` is not
    in the file where the sources' natural shares are meant.
    """

    sources: tuple[SourceInfo, ...]
    seq_len: int
    vocab_size: int
    dtype: str
    max_segments: int
    tokenizer: Mapping[str, Any]
    salt: int
    parents: Mapping[str, str]
    config: Mapping[str, Any]
    package_version: str
    accounting: Mapping[str, Any]
    order: Mapping[str, int]
    files_hashed: Mapping[str, FileRecord]
    mixture: DefaultMixture | None = None
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON object that is sealed; everything but the digest, which is its hash."""
        value = {name: getattr(self, name) for name in _FIELDS}
        value["sources"] = [vars(source) for source in self.sources]
        value["files_hashed"] = {name: vars(record) for name, record in self.files_hashed.items()}
        if self.mixture is None:
            del value["mixture"]
        else:
            value["mixture"] = self.mixture.to_json()
        return {"format": FORMAT_NAME, "version": FORMAT_VERSION, **value}


_FIELDS = tuple(name for name in Manifest.__dataclass_fields__ if name != "digest")


def encode_manifest(manifest: Manifest) -> tuple[bytes, str]:
    """The bytes of manifest.json, and the Dataset's digest.

    Raises:
        TypeError, ValueError: something the build gave is no JSON.
    """
    value = manifest.to_json()
    return seal(value), digest_of(value)


def _hash_text(fields: Fields, key: str) -> str:
    value = fields.text(key)
    if len(value) != 32 or set(value) - set("0123456789abcdef"):
        raise fields.fail(key, "32 hex digits")
    return value


def _source(value: Any, place: str) -> SourceInfo:
    fields = Fields(value, place)
    name = check_relative(fields.text("name"), place)
    if "/" in name or name.lower() in RESERVED_NAMES:
        raise DamageError("TR-NAME-UNSAFE", f"a source cannot be called {name!r}", place)
    source = SourceInfo(
        name=name,
        num_shards=fields.count("num_shards", 1 << 31),
        num_samples=fields.count("num_samples"),
        num_segments=fields.count("num_segments"),
        num_tokens=fields.count("num_tokens"),
        num_documents=fields.count("num_documents"),
        share=fields.share("share"),
        file_start=fields.count("file_start", 1 << 32),
        file_stop=fields.count("file_stop", 1 << 32),
    )
    if source.file_stop < source.file_start:
        raise fields.fail("file_stop", "at least file_start")
    return source


def parse_manifest(data: bytes, place: str) -> Manifest:
    """Read manifest.json from its bytes.

    Raises:
        DamageError: a byte differs from what was written, or a value cannot be right.
        RefusedError: intact, but written by a later version.
    """
    value = unseal(data, place)
    fields = Fields(value, place)
    if fields.text("format") != FORMAT_NAME:
        raise fields.fail("format", FORMAT_NAME)
    version = fields.count("version", least=1)
    if version > FORMAT_VERSION:
        raise RefusedError(
            "TR-DATASET-VERSION", f"the Dataset has format version {version}", place, f"at most {FORMAT_VERSION}"
        )
    sources = tuple(_source(item, f"{place}: sources[{i}]") for i, item in enumerate(fields.list("sources")))
    names = {source.name.lower() for source in sources}
    if len(names) != len(sources) or len(sources) >= 1 << 16:
        raise fields.fail("sources", "distinct names, fewer than 65,536")
    vocab_size = fields.count("vocab_size", MAX_VOCAB_SIZE, 1)
    if fields.text("dtype") != dtype_name(vocab_size):
        raise fields.fail("dtype", dtype_name(vocab_size))
    hashed = {}
    for name, item in fields.object("files_hashed").items():
        record = Fields(item, f"{place}: files_hashed[{name!r}]")
        hashed[check_relative(name, place)] = FileRecord(record.count("size_bytes"), _hash_text(record, "xxh3_128"))
    missing = {"shards.npy", "documents.npy", "files.txt", *(f"{s.name}/index.json" for s in sources)} - set(hashed)
    if missing:
        raise fields.fail("files_hashed", f"an entry for {sorted(missing)[0]}")
    return Manifest(
        sources=sources,
        seq_len=fields.count("seq_len", MAX_SEQ_LEN, 1),
        vocab_size=vocab_size,
        dtype=fields.text("dtype"),
        max_segments=fields.count("max_segments", MAX_SEQ_LEN),
        tokenizer=fields.object("tokenizer"),
        salt=fields.count("salt", (1 << 64) - 1),
        parents=fields.object("parents", str),
        config=fields.object("config"),
        package_version=fields.text("package_version"),
        accounting=fields.object("accounting"),
        order=fields.object("order", int),
        files_hashed=hashed,
        mixture=parse_mixture(value["mixture"], {s.name for s in sources if s.num_samples}, f"{place}: mixture")
        if "mixture" in value
        else None,
        digest=digest_of(value),
    )


def check_shard_table(manifest: Manifest, rows_R: NDArray[np.void], place: str) -> None:
    """Check that shards.npy can be true: ranges, sizes that follow from counts, order, and the manifest's sums.

    Counts are bounded before anything is computed with them, so that no sum overflows.

    Raises:
        DamageError: they contradict each other.
    """
    if fault := _shard_fault(manifest, rows_R):
        raise DamageError("TR-DATASET-SHARDS", fault, place)


def _shard_fault(manifest: Manifest, rows_R: NDArray[np.void]) -> str | None:
    seq_len, vocab_size = manifest.seq_len, manifest.vocab_size
    samples_R = rows_R["num_samples"]
    sample_bytes = seq_len * token_dtype(vocab_size).itemsize
    if (samples_R < 1).any() or (samples_R > MAX_SHARD_BYTES // sample_bytes).any():
        return "a shard has an impossible number of samples"
    count_U, which_R = np.unique(samples_R, return_inverse=True)
    size_U = np.array([mds_size(count, seq_len, vocab_size) for count in count_U.tolist()], np.uint64)
    wrong = np.flatnonzero((size_U >= MAX_SHARD_BYTES)[which_R] | (rows_R["size_bytes"] != size_U[which_R]))
    if len(wrong):
        count, size = samples_R[wrong[0]], size_U[which_R[wrong[0]]]
        return f"a shard of {count} samples cannot have another size than {size} bytes"
    tokens_R = samples_R * np.uint64(seq_len)
    segments_R = rows_R["num_segments"]
    most_R = np.minimum(rows_R["max_segments"], seq_len)
    if (segments_R < samples_R).any() or (segments_R > samples_R * most_R).any() or (segments_R > PADDING_ROW).any():
        return "a shard has an impossible number of segments"
    if (rows_R["num_tokens"] > tokens_R).any() or (rows_R["num_documents"] > segments_R).any():
        return "a shard has more tokens or documents than room for them"
    if int(rows_R["max_segments"].max(initial=0)) != manifest.max_segments:
        return "max_segments differs from the manifest's"
    counts = [source.num_shards for source in manifest.sources]
    if sum(counts) != len(rows_R):
        return f"{len(rows_R)} shards are listed, the manifest has {sum(counts)}"
    owners_R = np.repeat(np.arange(len(counts)), counts)
    numbers_R = np.arange(len(rows_R)) - np.repeat(np.cumsum([0, *counts])[:-1], counts)
    if (rows_R["source"] != owners_R).any() or (rows_R["number"] != numbers_R).any():
        return "shards are not listed source by source, numbered from 0"
    for index, source in enumerate(manifest.sources):
        mine_R = rows_R["source"] == index
        for field in ("num_samples", "num_segments", "num_tokens"):
            total = int(rows_R[field][mine_R].sum())
            if total != getattr(source, field):
                return f"{field} of source {source.name!r} is {getattr(source, field)}, its shards have {total}"
    return None


def files_to_text(files: tuple[InputFile, ...]) -> bytes:
    """The bytes of files.txt: a line a file, ``path TAB size_bytes TAB xxh3-128`` (``-`` where unknown).

    Raises:
        ValueError: a path is absolute, climbs, holds a control character or is not Unicode.
    """
    lines = []
    for file in files:
        _check_path(file.path)
        size = str(file.size_bytes) if file.size_bytes >= 0 else "-"
        lines.append(f"{file.path}\t{size}\t{file.xxh3_128 or '-'}\n")
    return "".join(lines).encode("utf-8")


def _check_path(path: str) -> None:
    control = any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in path)
    if control or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"unusable input file name {path!r}")


def files_from_text(data: bytes, sources: tuple[SourceInfo, ...], place: str) -> tuple[InputFile, ...]:
    """Inverse of :func:`files_to_text`; the sources' line ranges say whose each file is.

    Raises:
        DamageError: a line has another form, or there are other lines than the sources name.
    """
    files = []
    try:
        lines = data.decode("utf-8").split("\n")
        starts = [source.file_start for source in sources]
        stops = [0, *(source.file_stop for source in sources)]
        if lines.pop() or starts != stops[:-1] or len(lines) != stops[-1]:
            raise ValueError("other lines than the sources name")
        names = [source.name for source in sources for _ in range(source.file_stop - source.file_start)]
        for name, line in zip(names, lines, strict=True):
            path, size, digest = line.split("\t")
            _check_path(path)
            files.append(InputFile(name, path, -1 if size == "-" else int(size), "" if digest == "-" else digest))
    except ValueError as error:
        raise DamageError("TR-DATASET-FILES", f"not a list of input files: {error}", place) from None
    return tuple(files)
