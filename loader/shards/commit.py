"""Committing a Dataset: shards.npy, documents.npy, files.txt, an index.json a source, and the manifest last of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, DamageError, JobError, RefusedError
from ..files import write_atomic
from .access import check_relative, check_size, file_size, hash_regular, npy_bytes, read_verified
from .default_mixture import DefaultMixture
from .documents import decode_documents, index_rows, sort_index
from .layout import (
    DOCUMENT_INDEX_DTYPE,
    SHARD_DTYPE,
    ShardName,
    docs_size,
    dtype_name,
    mds_columns,
    segments_size,
)
from .manifest import FileRecord, InputFile, Manifest, SourceInfo, encode_manifest, files_to_text
from .writer import ShardRecord, ShardSpec, check_source_name

__all__ = ["DatasetInfo", "mds_index", "write_dataset_manifest"]

_UNCOVERED = frozenset({"manifest.json", "job.json"})


@dataclass(frozen=True)
class DatasetInfo:
    """Everything a manifest is made of.

    Attributes:
        sources: names, in the order of the configuration (a source without shards is allowed).
        seq_len, vocab_size: of every shard.
        shards: records from ``ShardWriter.close``, in any order; numbers of a source must be 0, 1, 2, ...
        files: input files, grouped by source in the order of ``sources``; a document's ``file`` is an index into this.
        tokenizer: digest, kind, bos_id, eos_id, lossless, policy, golden encodings.
        salt: seed of document ids.
        package_version: of the writing package.
        parents: name -> digest of what this Dataset was made from.
        config: semantic configuration.
        accounting: documents and bytes by fate.
        order: defaults of the loader's order.
        mixture: the Mixture it was mixed for; None = the natural shares.
        extra_files: further files already in the folder (removed.parquet, tokenizer/..., report.html), to be hashed.
    """

    sources: tuple[str, ...]
    seq_len: int
    vocab_size: int
    shards: tuple[ShardRecord, ...]
    files: tuple[InputFile, ...]
    tokenizer: Mapping[str, Any]
    salt: int
    package_version: str
    parents: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    accounting: Mapping[str, Any] = field(default_factory=dict)
    order: Mapping[str, int] = field(default_factory=lambda: {"window_shards": 8, "slices": 2})
    mixture: DefaultMixture | None = None
    extra_files: tuple[str, ...] = ()


def write_dataset_manifest(folder: Path, info: DatasetInfo) -> str:
    """Write what is missing of a Dataset whose shards are written, the manifest last; returns its digest.

    Doing it twice with the same input changes nothing.

    Raises:
        ConfigError: ``info`` contradicts itself.
        JobError: two documents have one id (both are named).
        DamageError: a shard is not what its record says.
        RefusedError: another Dataset is at this path already.
    """
    shards = _ordered_shards(info)
    files = _ordered_files(info)
    _check_shard_files(folder, info, shards)
    index_M, documents = _document_index(folder, info, shards, files)
    written = {
        "shards.npy": npy_bytes(_shard_rows(info, shards)),
        "documents.npy": npy_bytes(index_M),
        "files.txt": files_to_text(files),
    }
    for name in info.sources:
        written[f"{name}/index.json"] = mds_index(
            info.seq_len, info.vocab_size, [s for s in shards if s.source == name]
        )
    hashed = {name: FileRecord(len(data), xxhash.xxh3_128_hexdigest(data)) for name, data in written.items()}
    for name in info.extra_files:
        if check_relative(name, "extra_files") in hashed or name in _UNCOVERED:
            raise ConfigError("TR-DATASET-INFO", f"{name!r} cannot be an extra file")
        hashed[name] = FileRecord(*hash_regular(folder / name))
    sources = _source_infos(info, shards, documents)
    manifest = Manifest(
        sources=sources,
        seq_len=info.seq_len,
        vocab_size=info.vocab_size,
        dtype=dtype_name(info.vocab_size),
        max_segments=max((s.max_segments for s in shards), default=0),
        tokenizer=info.tokenizer,
        salt=info.salt,
        parents=info.parents,
        config=info.config,
        package_version=info.package_version,
        accounting=info.accounting,
        order=info.order,
        files_hashed=hashed,
        mixture=info.mixture,
    )
    data, digest = encode_manifest(manifest)
    if not _is_committed(folder, data, digest):
        for name, content in written.items():
            write_atomic(folder / name, content)
            read_verified(folder / name, hashed[name].size_bytes, hashed[name].xxh3_128)
        write_atomic(folder / "manifest.json", data)
    return digest


def _is_committed(folder: Path, data: bytes, digest: str) -> bool:
    """Whether this very manifest is there already; another one is refused."""
    path = folder / "manifest.json"
    if path.exists() and path.read_bytes() != data:
        raise RefusedError(
            "TR-DATASET-OTHER",
            "another Dataset is at this path already; Datasets are write-once",
            str(folder),
            f"digest {digest}",
            f"tokenreel inspect {folder}",
        )
    return path.exists()


def _ordered_shards(info: DatasetInfo) -> list[ShardRecord]:
    rank = {check_source_name(name): i for i, name in enumerate(info.sources)}
    if len({name.lower() for name in rank}) != len(info.sources):
        raise ConfigError("TR-DATASET-INFO", "two sources have one name (capital letters do not count)")
    for record in info.shards:
        if record.source not in rank:
            raise ConfigError("TR-DATASET-INFO", f"shard of an unknown source {record.source!r}")
    shards = sorted(info.shards, key=lambda s: (rank[s.source], s.number))
    counts = Counter(s.source for s in shards)
    if [s.number for s in shards] != [n for name in info.sources for n in range(counts[name])]:
        raise ConfigError("TR-DATASET-INFO", "shards of a source are not numbered 0, 1, 2, ...")
    ShardSpec(info.sources[0] if info.sources else "none", 0, info.seq_len, info.vocab_size)
    return shards


def _ordered_files(info: DatasetInfo) -> tuple[InputFile, ...]:
    owners = [file.source for file in info.files]
    counts = Counter(owners)
    if owners != [name for name in info.sources for _ in range(counts[name])]:
        raise ConfigError("TR-DATASET-INFO", "input files are not grouped by source, in the order of the sources")
    try:
        files_to_text(info.files)
    except ValueError as error:
        raise ConfigError(
            "TR-DATASET-INFO", str(error), "input files", "relative paths, without control characters"
        ) from None
    return info.files


def _check_shard_files(folder: Path, info: DatasetInfo, shards: list[ShardRecord]) -> None:
    for shard in shards:
        name = ShardName(shard.number)
        place = folder / shard.source
        sizes = {
            name.mds: shard.size_bytes,
            name.segments: segments_size(shard.num_samples, shard.num_segments),
            name.docs: docs_size(shard.num_documents),
        }
        for file, size_bytes in sizes.items():
            check_size(place / file, file_size(place / file), size_bytes)


def _read_documents(folder: Path, shard: ShardRecord) -> NDArray[np.void]:
    path = folder / shard.source / ShardName(shard.number).docs
    data = read_verified(path, docs_size(shard.num_documents), shard.docs_hash)
    return decode_documents(data, shard.num_documents, str(path))


def _document_index(
    folder: Path, info: DatasetInfo, shards: list[ShardRecord], files: tuple[InputFile, ...]
) -> tuple[NDArray[np.void], Counter[str]]:
    """Rows of documents.npy, and the number of distinct documents of each source."""
    owner_F = np.array([info.sources.index(f.source) for f in files], np.int64)
    parts = [np.zeros(0, DOCUMENT_INDEX_DTYPE)]
    for row, shard in enumerate(shards):
        documents_D = _read_documents(folder, shard)
        source = info.sources.index(shard.source)
        file_D = documents_D["file"].astype(np.int64)
        if (file_D >= len(files)).any() or (owner_F[file_D] != source).any():
            place = str(folder / shard.source / ShardName(shard.number).docs)
            raise DamageError("TR-DATASET-FILES", "a document names a file of another source, or none", place)
        parts.append(index_rows(documents_D, row))
    index_M = sort_index(np.concatenate(parts))
    _check_collisions(folder, shards, files, index_M)
    first_M = np.ones(len(index_M), np.bool_)
    first_M[1:] = index_M["id"][1:] != index_M["id"][:-1]
    per_shard = np.bincount(index_M["shard"][first_M], minlength=len(shards))
    documents: Counter[str] = Counter()
    for shard, count in zip(shards, per_shard.tolist(), strict=True):
        documents[shard.source] += count
    return index_M, documents


def _check_collisions(
    folder: Path, shards: list[ShardRecord], files: tuple[InputFile, ...], index_M: NDArray[np.void]
) -> None:
    """A document may lie in several shards, but one id must mean one Origin everywhere."""
    repeats = np.flatnonzero(index_M["id"][1:] == index_M["id"][:-1])
    if not len(repeats):
        return
    pairs = np.unique(np.concatenate([repeats, repeats + 1]))
    origins: dict[int, tuple[int, int, int]] = {}
    for row in np.unique(index_M["shard"][pairs]).tolist():
        mine = pairs[index_M["shard"][pairs] == row]
        documents_D = _read_documents(folder, shards[row])[index_M["row"][mine]]
        for position, document in zip(mine.tolist(), documents_D.tolist(), strict=True):
            _, record, record_start, file = document
            origins[position] = (file, record, record_start)
    for position in repeats.tolist():
        one, other = origins[position], origins[position + 1]
        if one != other:
            names = " and ".join(f"{files[f].source}: {files[f].path} record {r}" for f, r, _ in (one, other))
            raise JobError(
                "TR-DOCUMENT-COLLISION",
                f"two documents have the id {int(index_M['id'][position]):016x}: {names}",
                str(folder),
                "another salt",
            )


def _shard_rows(info: DatasetInfo, shards: list[ShardRecord]) -> NDArray[np.void]:
    rows_R = np.zeros(len(shards), SHARD_DTYPE)
    for row, shard in zip(rows_R, shards, strict=True):
        row["source"] = info.sources.index(shard.source)
        for name in (
            "number",
            "num_samples",
            "num_segments",
            "num_documents",
            "num_tokens",
            "max_segments",
            "size_bytes",
        ):
            row[name] = getattr(shard, name)
        for name in ("mds_hash", "segments_hash", "docs_hash"):
            row[name] = np.frombuffer(bytes.fromhex(getattr(shard, name)), np.uint8)
    return rows_R


class _Shard(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def mds_hash(self) -> str: ...


def mds_index(seq_len: int, vocab_size: int, shards: Sequence[_Shard]) -> bytes:
    """index.json as stock mosaicml-streaming reads it."""
    columns = mds_columns(seq_len, vocab_size)
    entries = [
        {
            **columns,
            "raw_data": {
                "basename": ShardName(shard.number).mds,
                "bytes": shard.size_bytes,
                "hashes": {"xxh3_128": shard.mds_hash},
            },
            "samples": shard.num_samples,
            "zip_data": None,
        }
        for shard in shards
    ]
    return json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode("ascii")


def _source_infos(info: DatasetInfo, shards: list[ShardRecord], documents: Counter[str]) -> tuple[SourceInfo, ...]:
    total_tokens = sum(s.num_tokens for s in shards)
    file_counts = Counter(f.source for f in info.files)
    sources = []
    file_start = 0
    for name in info.sources:
        mine = [s for s in shards if s.source == name]
        num_tokens = sum(s.num_tokens for s in mine)
        sources.append(
            SourceInfo(
                name=name,
                num_shards=len(mine),
                num_samples=sum(s.num_samples for s in mine),
                num_segments=sum(s.num_segments for s in mine),
                num_tokens=num_tokens,
                num_documents=documents[name],
                share=num_tokens / total_tokens if total_tokens else 0.0,
                file_start=file_start,
                file_stop=file_start + file_counts[name],
            )
        )
        file_start += file_counts[name]
    return tuple(sources)
