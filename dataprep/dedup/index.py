"""An Index: what a later job needs to know of the documents that this one kept, without their texts.

``WriteIndex`` leaves, below its stage's folder::

    index/documents.npy    INDEX_DTYPE, one row per kept or held-out document, best first (the job's priority order)
    index/signatures.npy   uint32 (N, K), MinHash signatures; only with ``minhash``
    index/simhash.npy      uint64 (N); only with ``simhash``
    index/set_stops.npy    int64 (N): where each document's shingle set ends in sets.bin (it begins where the one before
                           ends)
    index/sets.bin         uint64, little-endian: sorted distinct shingle hashes, document after document, no header
    index/index.json       version, stamp, sources (name, rank, opt_out), count, keep, salt, size and xxh3-128 of the
                           files, its own digest; written last

A function of configuration and data. Writing reads every kept text once more; memory is one batch and some 40 bytes a
document, disk the sets twice while they are put in order. Shapes: N documents, K permutations, S shingles of all sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json, digest_of
from loader.errors import DamageError, RefusedError
from loader.files import temporary_path, write_atomic
from loader.text.records import document_ids

from ..documents import InputFile, Status
from ..formats import read_file, read_options
from .columns import ColumnWriter, map_column
from .config import DecideConfig, DedupConfig
from .signatures import load_signed, load_summary, signature_stamp, text_stamp
from .table import SignedFile

__all__ = ["INDEX_DTYPE", "Index", "IndexSource", "WriteIndex", "check_index", "index_stamp", "load_index"]

INDEX_VERSION = 1
INDEX_FILE = "index.json"
INDEX_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("source", "<u2"),
        ("size_bytes", "<i8"),
        ("hash_low", "<u8"),
        ("hash_high", "<u8"),
        ("num_shingles", "<i4"),
        ("order_key", "<i8"),
    ]
)
"""One document: its id, its source (place in ``Index.sources``), and what ``DOCUMENT_DTYPE`` says of it."""
_SET_DTYPE = np.dtype("<u8")
_GATHER_ROWS = 1 << 16
_OPEN_FILES = 64
_GATHER_VALUES = 1 << 20
_COPIED = ("size_bytes", "hash_low", "hash_high", "num_shingles", "order_key")
_NO_PAIRS = frozenset({"ngram"})
_NEEDED_FILES = frozenset({"documents.npy", "set_stops.npy", "sets.bin"})
_FILES = _NEEDED_FILES | {"signatures.npy", "simhash.npy"}
_RECORD = frozenset({"stamp", "sources", "count", "keep", "salt", "files"})


@dataclass(frozen=True)
class IndexSource:
    """A source of the job that wrote an Index: its name, priority and what it opted out of."""

    name: str
    rank: int
    opt_out: tuple[str, ...]


@dataclass(frozen=True)
class Index:
    """An Index, verified; its arrays are read-only maps of its files.

    Attributes:
        folder: where it lies.
        digest: of its ``index.json``, which holds the digests of all else.
        sources: by the numbers in ``documents["source"]``.
        keep: the keep policy that ordered it and made its order keys.
        salt: salt of its document ids.
        documents: N rows of ``INDEX_DTYPE``, best first.
        signature_NK: uint32; None without ``minhash``.
        simhash_N: uint64; None without ``simhash``.
        set_stop_N: int64, ends of the sets in ``set_value_S``; each begins where the one before it ends.
        set_value_S: uint64, sorted and distinct within a set.
    """

    folder: Path
    digest: str
    sources: tuple[IndexSource, ...]
    keep: str
    salt: int
    documents: NDArray[Any]
    signature_NK: NDArray[np.uint32] | None
    simhash_N: NDArray[np.uint64] | None
    set_stop_N: NDArray[np.int64]
    set_value_S: NDArray[np.uint64]

    @property
    def set_start_N(self) -> NDArray[np.int64]:
        """Where each document's set begins (int64)."""
        start_N = np.zeros(len(self.set_stop_N), np.int64)
        start_N[1:] = self.set_stop_N[:-1]
        return start_N


def index_stamp(config: DedupConfig) -> dict[str, Any]:
    """What must be the same for documents of an Index and of a job to be compared; thresholds, bands and rows need not
    be."""
    methods = sorted(name for name in config.methods if name not in _NO_PAIRS)
    return {"text": text_stamp(), "methods": methods, **signature_stamp(config)}


@dataclass(frozen=True)
class _Kept:
    """The kept documents of a job: files and rows in reading order, ``order_N`` = their reading places, best first;
    ``load`` maps the signed columns of a file, the latest few of which stay open."""

    load: Callable[[int], SignedFile]
    keep_FR: list[NDArray[np.bool_]]
    file_N: NDArray[np.int32]
    row_N: NDArray[np.int64]
    order_N: NDArray[np.int64]


class WriteIndex(PipelineStep):  # type: ignore[misc]
    """Read the kept and the held-out documents once more and leave an Index of them; one task."""

    name = "write index"
    type = "tokenreel"

    def __init__(
        self,
        inputs: Sequence[InputFile],
        config: DecideConfig,
        signed: Path,
        decided: Path,
        folder: Path,
        status: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> None:
        """``decided``: folder with priority numbers and statuses; ``status`` gives those that later stages changed."""
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.signed = Path(signed)
        self.decided = Path(decided)
        self.status = status
        self.folder = Path(folder)
        self._source_numbers = {source.name: number for number, source in enumerate(self._sources())}

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write ``index/``; rank 0 works, other ranks have nothing to do.

        Raises:
            DamageError: a file of an earlier stage is missing or damaged.
            RefusedError: an input is not the file that was signed.
        """
        if rank == 0:
            with self.track_time("job"):
                self._write()
        yield from ()

    def _write(self) -> None:
        folder = self.folder / "index"
        folder.mkdir(parents=True, exist_ok=True)
        kept = self._kept()
        parts = self._write_columns(folder, kept)
        parts |= self._write_sets(folder, kept)
        config = self.config
        record = {
            "version": INDEX_VERSION,
            "stamp": index_stamp(config.dedup),
            "sources": [[s.name, s.rank, list(s.opt_out)] for s in self._sources()],
            "count": len(kept.order_N),
            "keep": config.dedup.keep,
            "salt": config.salt,
            "files": parts,
        }
        write_atomic(folder / INDEX_FILE, canonical_json({**record, "digest": digest_of(record)}))
        self.stat_update("documents", value=len(kept.order_N), unit="job")

    def _sources(self) -> list[IndexSource]:
        by_name = {file.source: IndexSource(file.source, file.rank, file.opt_out) for file in self.inputs}
        return [by_name[name] for name in sorted(by_name)]

    def _status_of(self, file: int) -> NDArray[np.uint8]:
        path = self.decided / f"status.{file:05d}.npy"
        return self.status(file) if self.status else _load_array(path, load_summary(self.signed, file).num_records)

    def _kept(self) -> _Kept:
        keep_FR, files, rows, ranks = [], [], [], []
        dedup = self.config.dedup
        for file in range(len(self.inputs)):
            record_N = load_signed(self.signed, file, dedup).documents["record"]
            status_R = self._status_of(file)
            rank_N = _load_array(self.decided / f"rank.{file:05d}.npy", len(record_N))
            keep_R = (status_R == Status.KEPT) | (status_R == Status.HELD_OUT)
            row_N = np.flatnonzero(keep_R[record_N])
            keep_FR.append(keep_R)
            files.append(np.full(len(row_N), file, np.int32))
            rows.append(row_N)
            ranks.append(rank_N[row_N].astype(np.int64))
        rank_N = np.concatenate([np.zeros(0, np.int64), *ranks])
        order_N = np.argsort(rank_N, kind="stable")
        if (np.diff(rank_N[order_N]) <= 0).any() or (rank_N < 0).any():
            raise DamageError("TR-INDEX-RANKS", "kept documents without a priority of their own", str(self.decided))
        file_N = np.concatenate([np.zeros(0, np.int32), *files])
        load = lru_cache(_OPEN_FILES)(lambda file: load_signed(self.signed, file, dedup, verify=False))
        return _Kept(load, keep_FR, file_N, np.concatenate([np.zeros(0, np.int64), *rows]), order_N)

    def _write_columns(self, folder: Path, kept: _Kept) -> dict[str, dict[str, Any]]:
        """Everything but the sets, gathered from the signed files 65,536 documents at a time."""
        config = self.config.dedup
        columns: dict[str, tuple[np.dtype[Any], tuple[int, ...], Callable[[int, NDArray[np.int64]], NDArray[Any]]]]
        columns = {"documents": (INDEX_DTYPE, (), lambda file, row_N: self._rows(kept, file, row_N))}
        if "minhash" in config.methods:
            shape = (config.minhash.num_permutations,)
            columns["signatures"] = (np.dtype("<u4"), shape, lambda f, row_N: _take(kept.load(f).signature_NK, row_N))
        if "simhash" in config.methods:
            columns["simhash"] = (np.dtype("<u8"), (), lambda f, row_N: _take(kept.load(f).simhash_N, row_N))
        parts = {}
        for name, (dtype, row_shape, rows_of) in columns.items():
            with ColumnWriter(folder / f"{name}.npy", dtype, row_shape) as writer:
                for start in range(0, len(kept.order_N), _GATHER_ROWS):
                    chosen = kept.order_N[start : start + _GATHER_ROWS]
                    rows = np.zeros((len(chosen), *row_shape), dtype)
                    for file, mine in _by_file(kept.file_N[chosen]):
                        rows[mine] = rows_of(file, kept.row_N[chosen[mine]])
                    writer.add(rows)
                parts[f"{name}.npy"] = writer.finish()
        return parts

    def _rows(self, kept: _Kept, file: int, row_N: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of ``INDEX_DTYPE`` of some documents of one file."""
        signed = kept.load(file).documents[row_N]
        inputs = self.inputs[file]
        rows = np.zeros(len(row_N), INDEX_DTYPE)
        rows["id"] = document_ids(inputs.source, inputs.path, signed["record"], self.config.salt)
        rows["source"] = self._source_numbers[inputs.source]
        for name in _COPIED:
            rows[name] = signed[name]
        return rows

    def _write_sets(self, folder: Path, kept: _Kept) -> dict[str, dict[str, Any]]:
        """The sets: spooled in reading order, then put in order of priority."""
        spool = temporary_path(folder / "sets.spool")
        try:
            size_N = self._spool_sets(spool, kept)
            start_N = np.cumsum(size_N) - size_N
            total = int(size_N.sum())
            value_S = np.memmap(spool, _SET_DTYPE, "r") if total else np.zeros(0, _SET_DTYPE)
            with ColumnWriter(folder / "sets.bin", _SET_DTYPE, bare=True) as writer:
                for chosen in _portions(kept.order_N, size_N):
                    places = zip(start_N[chosen].tolist(), size_N[chosen].tolist(), strict=True)
                    writer.add(np.concatenate([value_S[start : start + size] for start, size in places]))
                parts = {"sets.bin": writer.finish()}
        finally:
            spool.unlink(missing_ok=True)
        with ColumnWriter(folder / "set_stops.npy", np.dtype("<i8")) as stops:
            stops.add(np.cumsum(size_N[kept.order_N]))
            parts["set_stops.npy"] = stops.finish()
        return parts

    def _spool_sets(self, spool: Path, kept: _Kept) -> NDArray[np.int64]:
        """Write the sets of all kept documents in reading order; their sizes (int64, N)."""
        from ..kernels.documents import DocumentHasher

        hasher = DocumentHasher()
        options = read_options(self.config.ingest)
        sizes = [np.zeros(0, np.int64)]
        with open(spool, "wb") as target:
            for file, inputs in enumerate(self.inputs):
                expected, keep_R = load_summary(self.signed, file), kept.keep_FR[file]
                for batch in read_file(inputs, file, options=options, keep_R=keep_R, expected=expected):
                    values, size_N = hasher.sets(batch.text)
                    target.write(values.astype(_SET_DTYPE, copy=False).data)
                    sizes.append(size_N)
        size_N = np.concatenate(sizes)
        if len(size_N) != len(kept.order_N):
            raise AssertionError("the documents read are not those that are kept")
        return size_N


def _take(column: NDArray[Any] | None, row_N: NDArray[np.int64]) -> NDArray[Any]:
    if column is None:
        raise AssertionError("a column that signing was not asked for")
    return column[row_N]


def _by_file(file_C: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each file among ``file_C`` and its places there, ascending; not a pass over all places for each of many files."""
    place_C = np.argsort(file_C, kind="stable")
    files, first = np.unique(file_C[place_C], return_index=True)
    yield from zip(files.tolist(), np.split(place_C, first[1:]), strict=True)


def _portions(order_N: NDArray[np.int64], size_N: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Documents in order, as many at a time as hold ``_GATHER_VALUES`` values (at least one)."""
    stop_N = np.cumsum(size_N[order_N])
    first = 0
    while first < len(order_N):
        done = int(stop_N[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(stop_N, done + _GATHER_VALUES, "right")))
        yield order_N[first:last]
        first = last


def _load_array(path: Path, count: int) -> NDArray[Any]:
    """A small array of the decide stage, one element per record or document of a file.

    Raises:
        DamageError: missing, unreadable, or of another length.
    """
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamageError("TR-INDEX-DECIDED", f"cannot read what was decided: {error}", str(path)) from error
    if array.shape != (count,):
        raise DamageError("TR-INDEX-DECIDED", f"an array of shape {array.shape}", str(path), f"shape ({count},)")
    return array


def _check_stamp(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse documents that cannot be compared, naming what differs."""
    names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if names:
        both = "; ".join(f"{name} {found.get(name)!r} is not {expected.get(name)!r}" for name in names)
        raise RefusedError(
            "TR-INDEX-OTHER",
            f"the Index was made with other settings: {both}",
            str(path),
            "an Index of the same text rules, methods and signature parameters",
            "use its settings, or build the earlier sources again with these",
        )


def _read_record(path: Path, config: DedupConfig) -> dict[str, Any]:
    """What ``index.json`` says, if it is that of an Index whose documents can be compared."""
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        digest = record.pop("digest")
        if digest != digest_of(record):
            raise ValueError("not the record that was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError("TR-INDEX-DAMAGED", f"cannot read the Index: {error}", str(path)) from error
    if (found := record.get("version")) != INDEX_VERSION:
        raise RefusedError("TR-INDEX-OTHER", f"an Index of version {found}", str(path), str(INDEX_VERSION))
    if not record.keys() >= _RECORD or not _NEEDED_FILES <= record["files"].keys() <= _FILES:
        raise DamageError("TR-INDEX-DAMAGED", "no list of the files of an Index", str(path), ", ".join(sorted(_FILES)))
    _check_stamp(path, record["stamp"], index_stamp(config))
    return {**record, "digest": digest}


def check_index(folder: Path, config: DedupConfig) -> None:
    """Refuse what ``load_index`` would refuse for what its record says, with the same errors, before a corpus is read
    for it."""
    _read_record(Path(folder) / INDEX_FILE, config)


def load_index(folder: Path, config: DedupConfig) -> Index:
    """Open an Index: every byte is verified, in pieces, and nothing is held in memory.

    Args:
        folder: the one that holds ``index.json``.
        config: of the job that compares its documents with the Index's.

    Raises:
        DamageError: ``TR-INDEX-DAMAGED`` or ``TR-DEDUP-DAMAGED``, naming the file.
        RefusedError: ``TR-INDEX-OTHER``: other text rules, methods or signature parameters, named.
    """
    path = Path(folder) / INDEX_FILE
    record = _read_record(path, config)
    parts = record["files"]
    arrays = {name: map_column(path.with_name(name), parts[name]) for name in parts if name != "sets.bin"}
    index = Index(
        folder=path.parent,
        digest=record["digest"],
        sources=tuple(IndexSource(name, rank, tuple(opt_out)) for name, rank, opt_out in record["sources"]),
        keep=record["keep"],
        salt=record["salt"],
        documents=arrays["documents.npy"],
        signature_NK=arrays.get("signatures.npy"),
        simhash_N=arrays.get("simhash.npy"),
        set_stop_N=arrays["set_stops.npy"],
        set_value_S=map_column(path.with_name("sets.bin"), parts["sets.bin"], _SET_DTYPE),
    )
    columns = (index.documents, index.signature_NK, index.simhash_N, index.set_stop_N)
    lengths = {len(column) for column in columns if column is not None}
    last = int(index.set_stop_N[-1]) if len(index.set_stop_N) else 0
    if lengths != {record["count"]} or last != len(index.set_value_S) or index.documents.dtype != INDEX_DTYPE:
        raise DamageError("TR-INDEX-DAMAGED", "files of an Index that do not fit together", str(path.parent))
    return index
