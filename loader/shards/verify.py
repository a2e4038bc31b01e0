"""Checking every byte of a Dataset: hashes, sizes, counts and what the tables say of each other; and foreign files.

``job.json`` alone is exempt: it records how a build ran, differs from run to run, and no digest covers it.

Shape letters: N samples, T tokens of a sample, S segments, R shards, D documents of a shard, M rows of documents.npy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DamageError
from .commit import mds_index
from .dataset import Dataset, read_dataset, read_manifest
from .documents import index_rows, sort_index
from .index_blocks import index_blocks
from .layout import DOCUMENT_INDEX_DTYPE, PADDING_ROW, mds_header, token_dtype
from .manifest import FileRecord, Manifest, files_from_text
from .reader import ShardFiles, read_documents, read_segments
from .segments import SegmentFile
from .storage import FolderStorage, Storage

__all__ = ["UNCOVERED_NAMES", "Finding", "finding_of", "verify_dataset", "verify_file", "verify_storage"]

UNCOVERED_NAMES = frozenset({"manifest.json", "job.json"})
"""Files of a Dataset that ``files_hashed`` does not hold: the manifest has its own hash, job.json has none."""

_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Finding:
    """Something that verifying found.

    Attributes:
        code: stable identifier, ``TR-...``.
        file: path relative to what was verified.
        place: sample, row or region inside the file; empty if the whole file is meant.
        message: what is wrong.
        severity: ``damage``, ``unnamed`` for a file that nothing names (harmless, and not ours), or ``note`` for what
            could not be looked for.
    """

    code: str
    file: str
    place: str
    message: str
    severity: str = "damage"

    def to_json(self) -> dict[str, str]:
        """As a JSON-able dictionary."""
        return dict(vars(self))

    def to_text(self) -> str:
        """One line."""
        place = f" ({self.place})" if self.place else ""
        return f"{self.severity}: {self.file}{place}: {self.message} [{self.code}]"


def verify_dataset(path: Path | str, progress: Callable[[int], None] | None = None) -> list[Finding]:
    """Read every file of a Dataset and return what is wrong, damage first; an empty list means nothing is.

    ``progress`` is called with the bytes of each shard that was read.

    Raises:
        ConfigError: there is no Dataset.
        RefusedError: a later version wrote it.
    """
    return _verified(Path(path), progress or (lambda size_bytes: None), _Verifier.run)


def verify_file(path: Path | str, name: str) -> list[Finding]:
    """What :func:`verify_dataset` finds in one file, ``name`` relative to the Dataset, without reading the others.

    Of a shard all three files are read, and manifest.json and shards.npy always; what one file says of another beyond
    that (documents.npy of all shards, sums over sources) only the whole Dataset shows.

    Raises:
        ConfigError: there is no Dataset.
        RefusedError: a later version wrote it.
    """
    return _verified(Path(path), lambda size_bytes: None, lambda verifier: verifier.run_file(name))


def verify_storage(
    storage: Storage, manifest: Manifest, progress: Callable[[int], None] | None = None
) -> list[Finding]:
    """As :func:`verify_dataset`, wherever the files are; what cannot be looked for there is a ``note``."""
    return _Verifier(storage, manifest, progress or (lambda size_bytes: None)).run()


def _verified(
    path: Path, progress: Callable[[int], None], check: Callable[[_Verifier], list[Finding]]
) -> list[Finding]:
    """What ``check`` finds; where the manifest cannot be trusted, that alone."""
    try:
        manifest = read_manifest(path)
    except DamageError as error:
        return [finding_of(path, error)]
    return check(_Verifier(FolderStorage(path), manifest, progress))


def finding_of(root: Path | str, error: DamageError) -> Finding:
    """A caught error as a finding; its place is made relative to ``root``."""
    file, _, inside = (error.place or "").removeprefix(f"{root}{os.sep}").partition(": ")
    message = error.message if error.expected is None else f"{error.message}; expected {error.expected}"
    return Finding(error.code, file or ".", inside, message)


class _Verifier:
    def __init__(self, storage: Storage, manifest: Manifest, progress: Callable[[int], None]) -> None:
        self._storage = storage
        self._path = storage.folder
        self._manifest = manifest
        self._progress = progress
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        self._guard(self._check_hashed)
        self._guard(self._check_input_files)
        self._guard(self._check_shards)
        self._findings += self._unnamed()
        return list(dict.fromkeys(self._findings))

    def run_file(self, name: str) -> list[Finding]:
        """Only what concerns the file ``name``."""
        folder, _, base = name.rpartition("/")
        shards = {source.name: source.num_shards for source in self._manifest.sources}
        if name in self._manifest.files_hashed:
            self._guard(partial(self._check_hashed_file, name))
            if name == "files.txt":
                self._guard(self._check_input_files)
            elif base == "index.json" and folder in shards:
                self._guard(lambda: self._check_mds_index(self._dataset(), list(shards).index(folder)))
            elif name == "shards.npy":
                self._guard(self._dataset)
        elif _is_shard_file(base, shards.get(folder, 0)):
            self._guard(lambda: self._check_shard_of(folder, int(base.split(".")[1])))
        elif name not in UNCOVERED_NAMES:
            self._findings.append(Finding("TR-FILE-UNNAMED", name, "", "nothing names this file", "unnamed"))
        return list(dict.fromkeys(self._findings))

    def _check_shard_of(self, source: str, number: int) -> None:
        dataset = self._dataset()
        first = dataset.source_names.index(source)
        self._check_shard(dataset, int(np.searchsorted(dataset.shards_R["source"], first)) + number)

    def _dataset(self) -> Dataset:
        return read_dataset(self._storage, self._manifest)

    def _guard(self, check: Callable[[], object]) -> bool:
        try:
            check()
        except DamageError as error:
            folder, place = f"{self._path}{os.sep}", error.place or ""
            if place.startswith(folder):  # what is at a URL has a folder in a cache, too
                error.place = f"{self._storage.location}/{place.removeprefix(folder)}"
            self._findings.append(finding_of(self._storage.location, error))
            return False
        return True

    def _damage(self, code: str, file: Path | str, message: str, place: str = "") -> None:
        name = os.path.relpath(file, self._path) if isinstance(file, Path) else file
        self._findings.append(Finding(code, name, place, message))

    def _check_hashed(self) -> None:
        for name in self._manifest.files_hashed:
            self._guard(partial(self._check_hashed_file, name))

    def _check_hashed_file(self, name: str) -> None:
        record, digest = self._manifest.files_hashed[name], xxhash.xxh3_128()
        starts = range(0, record.size_bytes, _BLOCK_BYTES)
        ranges = ((start, min(_BLOCK_BYTES, record.size_bytes - start)) for start in starts)
        for piece in self._storage.pieces(name, record, ranges):
            digest.update(piece)
        if digest.hexdigest() != record.xxh3_128:
            message, place = f"the file's bytes have xxh3-128 {digest.hexdigest()}", f"{self._storage.location}/{name}"
            raise DamageError("TR-FILE-HASH", message, place, record.xxh3_128)

    def _read(self, name: str) -> bytes:
        return self._storage.read(name, self._manifest.files_hashed[name])

    def _check_input_files(self) -> None:
        files_from_text(self._read("files.txt"), self._manifest.sources, str(self._path / "files.txt"))

    def _check_shards(self) -> None:
        dataset = self._dataset()
        rows_R = dataset.shards_R
        parts: list[NDArray[np.void]] = []
        for row in range(len(rows_R)):
            documents_D = self._check_shard(dataset, row)
            if documents_D is not None:
                parts.append(index_rows(documents_D, row))
        total = sum(source.num_tokens for source in self._manifest.sources)
        for number, source in enumerate(self._manifest.sources):
            self._guard(partial(self._check_mds_index, dataset, number))
            if total and source.share != source.num_tokens / total:
                self._damage("TR-DATASET-SUMS", "manifest.json", f"share of {source.name!r} is not that of its tokens")
        if len(parts) == len(rows_R):
            self._guard(partial(self._check_index, dataset, parts))

    def _check_mds_index(self, dataset: Dataset, source: int) -> None:
        name = f"{self._manifest.sources[source].name}/index.json"
        shards = [dataset.shard_files(row) for row in np.flatnonzero(dataset.shards_R["source"] == source).tolist()]
        wanted = mds_index(self._manifest.seq_len, self._manifest.vocab_size, shards)
        try:
            same = json.loads(self._read(name)) == json.loads(wanted)
        except (ValueError, RecursionError):
            same = False
        if not same:
            self._damage("TR-DATASET-INDEX", name, "does not list the shards of shards.npy")

    def _check_index(self, dataset: Dataset, parts: list[NDArray[np.void]]) -> None:
        name = "documents.npy"
        rows_M = np.concatenate([np.zeros(0, DOCUMENT_INDEX_DTYPE), *index_blocks(dataset)])
        expected_M = sort_index(np.concatenate([rows_M[:0], *parts]))
        if not np.array_equal(rows_M, expected_M):
            self._damage("TR-DATASET-INDEX", name, "does not list the documents of the shards")
            return
        first_M = np.diff(rows_M["id"], prepend=~rows_M["id"][:1]) != 0
        owner_M = dataset.shards_R["source"][rows_M["shard"][first_M]]
        counts = np.bincount(owner_M, minlength=len(self._manifest.sources)).tolist()
        for source, count in zip(self._manifest.sources, counts, strict=True):
            if source.num_documents != count:
                message = f"source {source.name!r} has {count} documents, not {source.num_documents}"
                self._damage("TR-DATASET-SUMS", "manifest.json", message)

    def _check_shard(self, dataset: Dataset, row: int) -> NDArray[np.void] | None:
        """Check a shard's three files; returns its documents where they can be read."""
        files = dataset.shard_files(row)
        tables: list[SegmentFile] = []
        documents: list[NDArray[np.void]] = []
        self._guard(lambda: tables.append(read_segments(files, dataset.read_path)))
        self._guard(lambda: documents.append(read_documents(files, dataset.read_path)))
        hash_N = tables[0].sample_hash_N if tables else None
        self._guard(partial(self._check_tokens, files, hash_N))
        self._progress(files.size_bytes)
        if tables:
            self._check_segments(files, tables[0], int(dataset.shards_R["num_tokens"][row]))
        if documents:
            source = self._manifest.sources[int(dataset.shards_R["source"][row])]
            file_D = documents[0]["file"]
            if ((file_D < source.file_start) | (file_D >= source.file_stop)).any():
                self._damage("TR-SHARD-DOCUMENTS", files.docs, "a document names a file of another source")
            if len(np.unique(documents[0]["id"])) != len(file_D):
                self._damage("TR-SHARD-DOCUMENTS", files.docs, "a document is listed twice")
        return documents[0] if documents else None

    def _check_segments(self, files: ShardFiles, table: SegmentFile, num_tokens: int) -> None:
        rows_S = table.segments_S
        padding_S = rows_S["document_row"] == PADDING_ROW
        padding_tokens = int((files.seq_len - rows_S["token_start"][padding_S].astype(np.int64)).sum())
        if files.num_samples * files.seq_len - padding_tokens != num_tokens:
            self._damage("TR-DATASET-SUMS", files.segments, "the tokens do not add up to those of shards.npy")
        if len(np.unique(rows_S["document_row"][~padding_S])) != files.num_documents:
            self._damage("TR-SHARD-SEGMENTS", files.segments, "a document of the shard has no segment")

    def _check_tokens(self, files: ShardFiles, hash_N: NDArray[np.uint64] | None) -> None:
        """Whole-file hash, header, each sample's hash and the vocabulary, in one pass over the file."""
        digest = xxhash.xxh3_128()
        header = mds_header(files.num_samples, files.seq_len, files.vocab_size)
        places: list[str] = []
        highest = 0
        for start, block in self._blocks(files, len(header)):
            digest.update(block)
            if start is None:
                places += [] if block == header else ["header"]
                continue
            tokens_NT = np.frombuffer(block, token_dtype(files.vocab_size)).reshape(-1, files.seq_len)
            found_N = np.array([xxhash.xxh3_64_intdigest(sample) for sample in tokens_NT], np.uint64)
            if hash_N is not None:
                wrong_N = np.flatnonzero(found_N != hash_N[start : start + len(found_N)])
                places += [f"sample {start + n}" for n in wrong_N.tolist()]
            highest = max(highest, int(tokens_NT.max(initial=0)))
        actual = digest.hexdigest()
        shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
        if actual != files.mds_hash:
            self._damage("TR-FILE-HASH", files.mds, f"the file's bytes have xxh3-128 {actual}", shown)
        elif places:
            self._damage("TR-SAMPLE-HASH", files.mds, "samples differ from the hashes in .segments", shown)
        elif highest >= files.vocab_size:
            self._damage("TR-SHARD-TOKENS", files.mds, f"token {highest} is outside the vocabulary")

    def _blocks(self, files: ShardFiles, header_bytes: int) -> Iterator[tuple[int | None, bytes]]:
        """(None, header), then (number of its first sample, whole samples) until the end of a .mds file."""
        sample_bytes = files.seq_len * token_dtype(files.vocab_size).itemsize
        step = max(1, _BLOCK_BYTES // sample_bytes)
        starts: list[int | None] = [None, *range(0, files.num_samples, step)]
        ranges = [(0, header_bytes)]
        for start in range(0, files.num_samples, step):
            size_bytes = min(step, files.num_samples - start) * sample_bytes
            ranges.append((header_bytes + start * sample_bytes, size_bytes))
        name = files.mds.relative_to(self._path).as_posix()
        pieces = self._storage.pieces(name, FileRecord(files.size_bytes, files.mds_hash), ranges)
        yield from zip(starts, pieces, strict=True)

    def _unnamed(self) -> list[Finding]:
        names = self._storage.names()
        if names is None:
            message = "the store has no listing, so files that nothing names were not looked for"
            return [Finding("TR-FILE-UNNAMED", ".", "", message, "note")]
        named = set(self._manifest.files_hashed) | UNCOVERED_NAMES
        shards = {source.name: source.num_shards for source in self._manifest.sources}
        return [
            Finding("TR-FILE-UNNAMED", name, "", "nothing names this file", "unnamed")
            for name in names
            if name not in named and not _is_shard_file(name.rpartition("/")[2], shards.get(name.rpartition("/")[0], 0))
        ]


def _is_shard_file(name: str, num_shards: int) -> bool:
    parts = name.split(".")
    if (
        len(parts) != 3
        or parts[0] != "shard"
        or parts[2] not in ("mds", "segments", "docs")
        or not parts[1].isdecimal()
    ):
        return False
    return parts[1] == f"{int(parts[1]):05d}" and int(parts[1]) < num_shards
