"""All documents of a job as columns in priority order, and what a dedup method is.

Shapes: N documents in priority order, P documents in the order of the files, K permutations, F files, E documents of
earlier runs, T pair methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from loader.errors import JobError

from ..documents import InputFile, Status
from .config import DedupConfig
from .spill import forget_pages

if TYPE_CHECKING:
    from .index import Index

__all__ = [
    "BandKeys",
    "DocumentTable",
    "Method",
    "SignedColumns",
    "SignedFile",
    "make_table",
]

_MOST_DOCUMENTS = (1 << 31) - 2


@dataclass(frozen=True)
class SignedFile:
    """What signing left of one file: its documents in record order, their signatures (None without ``minhash``) and
    SimHash fingerprints (None without ``simhash``)."""

    documents: NDArray[Any]
    signature_NK: NDArray[np.uint32] | None
    simhash_N: NDArray[np.uint64] | None = None


@dataclass(frozen=True)
class SignedColumns:
    """What methods make band keys from: signed columns of N documents.

    Attributes:
        hash_N2: uint64 pair, xxh3-128 of the text, low half first.
        size_N: int64 bytes of text.
        num_shingles_N: int32.
        signature_NK: uint32, (N, 0) without ``minhash``.
        simhash_N: uint64, zeros without ``simhash``.
    """

    hash_N2: NDArray[np.uint64]
    size_N: NDArray[np.int64]
    num_shingles_N: NDArray[np.int32]
    signature_NK: NDArray[np.uint32]
    simhash_N: NDArray[np.uint64]


BandKeys = Callable[[SignedColumns, int, DedupConfig], NDArray[np.uint64]]
"""Keys of one band: uint64 per document, equal for documents that are proposed as pairs. The caller mixes method and
band into them, and leaves out documents without shingles where pairs are to be verified."""


@dataclass(frozen=True)
class Method:
    """One dedup method.

    Attributes:
        status: what its removals are called.
        kind: ``pairs`` proposes pairs for the one decision; ``spans`` proposes none, its own stages cut passages.
        check: what a proposed pair must pass first: ``content`` equal texts (then it is decided), ``rows`` enough equal
            signature rows, ``bits`` few different fingerprint bits.
        num_bands: bands under a configuration.
        keys: the key of each document in one band.
    """

    status: Status
    kind: Literal["pairs", "spans"] = "pairs"
    check: Literal["content", "rows", "bits"] = "content"
    num_bands: Callable[[DedupConfig], int] = lambda config: 0
    keys: BandKeys = lambda columns, band, config: np.zeros(len(columns.size_N), np.uint64)

    @property
    def verifies(self) -> bool:
        """Whether pairs must be verified by the similarity of their shingle sets."""
        return self.check != "content"


@dataclass(frozen=True)
class DocumentTable:
    """N documents in priority order: the smaller the number, the better; E documents of earlier runs come first.

    Attributes:
        file_N, record_N: int32 index of the file (-1 for earlier documents), int64 record number in it.
        source_N: int32 index into ``source_names``.
        size_N: int64 bytes of text.
        num_shingles_N: int32.
        takes_part_N: per pair method, bool: the source has not opted out of it.
        text_N: int32, the best document with the same text.
        head_N: int32, the best document with the same text, the same rights and (unless ``across``) the same source: it
            stands for all of them when pairs are proposed, and they share its fate. An earlier document is its own;
            with ``decision: union_find`` and no ``exact`` all are.
        rank_N, order_key_N: int32 and int64, rank of the source and key of the keep policy (larger is better).
        number_P: int32, number of each document by its position: earlier documents, then file after file; -1 where a
            screen took it.
        start_F: int64, where each file's positions begin (F + 1 of them).
        num_earlier: E.
        place_F: int64, place of each file in the order of (source, path).
        num_planted: so many last documents are canaries: they can be removed, but link nothing.
        keep: the policy behind ``order_key_N`` and the order of one source's documents.
    """

    source_names: tuple[str, ...]
    file_N: NDArray[np.int32]
    record_N: NDArray[np.int64]
    source_N: NDArray[np.int32]
    size_N: NDArray[np.int64]
    num_shingles_N: NDArray[np.int32]
    takes_part_N: dict[str, NDArray[np.bool_]]
    text_N: NDArray[np.int32]
    head_N: NDArray[np.int32]
    rank_N: NDArray[np.int32]
    order_key_N: NDArray[np.int64]
    number_P: NDArray[np.int32]
    start_F: NDArray[np.int64]
    num_earlier: int
    place_F: NDArray[np.int64]
    keep: str
    num_planted: int = 0

    def outranks(self, document_C: NDArray[np.int32], earlier_C: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each document is better than an earlier one by source rank and keep policy alone; False where the
        other one is no earlier document."""
        better = self.rank_N[document_C] < self.rank_N[earlier_C]
        tied = self.rank_N[document_C] == self.rank_N[earlier_C]
        keys = {"longest": (self.size_N,), "first": ()}.get(self.keep, (self.order_key_N, self.size_N))
        for key_N in keys:
            better |= tied & (key_N[document_C] > key_N[earlier_C])
            tied &= key_N[document_C] == key_N[earlier_C]
        is_earlier: NDArray[np.bool_] = earlier_C < self.num_earlier
        return better & is_earlier

    @property
    def heads(self) -> NDArray[np.int64]:
        """The documents (H, ascending) that stand for themselves."""
        return np.flatnonzero(self.head_N == np.arange(len(self.head_N)))


class _Columns:
    """Narrow columns of documents, gathered part by part; ``file`` -1 and its own sources mark earlier ones."""

    _FIELDS = ("record", "size_bytes", "num_shingles", "order_key", "hash_low", "hash_high")

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in (*self._FIELDS, "file", "source", "rank")}
        self.counts: list[int] = []

    def add(self, documents: NDArray[Any], file: int, source: NDArray[Any], rank: NDArray[Any]) -> None:
        known = documents.dtype.names or ()
        for name in self._FIELDS:
            column = documents[name] if name in known else np.arange(len(documents), dtype=np.int64)
            self._parts[name].append(np.ascontiguousarray(column))
        self._parts["file"].append(np.full(len(documents), file, np.int32))
        self._parts["source"].append(source.astype(np.int32))
        self._parts["rank"].append(rank.astype(np.int32))
        self.counts.append(len(documents))

    def take(self, name: str) -> NDArray[Any]:
        """The whole column; its parts are given up."""
        parts = self._parts.pop(name)
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _priority(
    columns: dict[str, NDArray[Any]], place_F: NDArray[np.int64], going: NDArray[np.int32], config: DedupConfig
) -> NDArray[np.int32]:
    """The positions ``going`` in priority order."""

    def column(name: str) -> NDArray[Any]:
        return columns[name] if len(going) == len(columns[name]) else columns[name][going]

    place = (column("record"), place_F.astype(np.int32)[column("file")])
    better = [] if config.keep == "first" else [column("hash_low"), column("hash_high"), -column("size_bytes")]
    if config.keep in ("newest", "quality"):
        better.append(~column("order_key"))  # descending; a minus would overflow at the smallest number
    ordered: NDArray[np.int32] = going[np.lexsort((*place, *better, column("rank")))]
    return ordered


def _first_equal(content: tuple[NDArray[Any], ...], rights: tuple[NDArray[Any], ...]) -> list[NDArray[np.int32]]:
    """Per document the first one with the same content, and the first one that has the same rights too."""
    count = len(content[0])
    order = np.argsort(content[0], kind="stable")
    ordered = content[0][order]
    same = ordered[1:] == ordered[:-1]
    del ordered
    tied = np.zeros(count, np.bool_)
    tied[order[1:][same]] = tied[order[:-1][same]] = True
    tied_N = np.flatnonzero(tied)
    firsts = []
    for columns in (content, (*content, *rights)):
        values = [column[tied_N] for column in columns]
        by_value = np.lexsort(values) if len(tied_N) else tied_N
        differs = np.zeros(len(tied_N), np.bool_)
        differs[:1] = True
        for value in values:
            differs[1:] |= value[by_value[1:]] != value[by_value[:-1]]
        numbers = np.arange(len(tied_N))
        first_N = np.arange(count, dtype=np.int32)
        first_N[tied_N[by_value]] = tied_N[by_value[np.maximum.accumulate(np.where(differs, numbers, 0))]]
        firsts.append(first_N)
    return firsts


def _set_apart(head_N: NDArray[np.int32], text_N: NDArray[np.int32], num_earlier: int) -> None:
    """Make earlier documents heads of their own. New ones keep an earlier head only if it is the best of its text:
    otherwise their own first stands for them, so that it is seen which of the earlier ones is their best witness."""
    head_N[:num_earlier] = np.arange(num_earlier)
    moved = num_earlier + np.flatnonzero((head_N < num_earlier)[num_earlier:] & (head_N != text_N)[num_earlier:])
    _, first, group = np.unique(head_N[moved], return_index=True, return_inverse=True)
    head_N[moved] = moved[first[group]]


def _gather(
    inputs: Sequence[InputFile],
    load: Callable[[int], SignedFile],
    screened: Callable[[int], NDArray[np.bool_] | None],
    earlier: Sequence[Index],
    names: tuple[str, ...],
) -> tuple[_Columns, NDArray[np.int32]]:
    """Columns of all documents by position, and the positions that no screen took."""
    columns = _Columns()
    going, start = [np.zeros(0, np.int32)], 0
    for index in earlier:
        of_names = np.array([names.index(source.name) for source in index.sources], np.int32)
        ranks = np.array([source.rank for source in index.sources], np.int32)
        numbers = index.documents["source"]
        columns.add(index.documents, -1, of_names[numbers], ranks[numbers])
        start += columns.counts[-1]
    for file, one in enumerate(inputs):
        documents = load(file).documents
        constant = np.ones(len(documents), np.int32)
        columns.add(documents, file, constant * names.index(one.source), constant * one.rank)
        gone = screened(file)
        kept = np.arange(len(documents)) if gone is None else np.flatnonzero(~gone[documents["record"]])
        forget_pages(documents)
        going.append((start + kept).astype(np.int32))
        start += len(documents)
    if start > _MOST_DOCUMENTS:
        raise JobError(
            "TR-DEDUP-DOCUMENTS", f"{start} documents", "dedup", f"at most {_MOST_DOCUMENTS} in one decision",
            "split the job and dedup later parts against the earlier ones' Index",
        )  # fmt: skip
    return columns, np.concatenate(going)


def _places(inputs: Sequence[InputFile]) -> NDArray[np.int64]:
    """Place of each file in the order of (source, path)."""
    by_place = sorted(range(len(inputs)), key=lambda file: (inputs[file].source, inputs[file].path))
    place_F = np.empty(len(inputs), np.int64)
    place_F[by_place] = np.arange(len(inputs))
    return place_F


def _takes_part(
    method: str, inputs: Sequence[InputFile], earlier: Sequence[Index], file_N: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Whether each document's source has not opted out of a method."""
    takes_part_N: NDArray[np.bool_] = np.array([*(method not in file.opt_out for file in inputs), True])[file_N]
    first = 0
    for index in earlier:
        takes_part_S = np.array([method not in source.opt_out for source in index.sources], np.bool_)
        takes_part_N[first : first + len(index.documents)] = takes_part_S[index.documents["source"]]
        first += len(index.documents)
    return takes_part_N


def _forget_other_keys(earlier: Sequence[Index], config: DedupConfig, order_key_N: NDArray[np.int64]) -> None:
    """Keys of another policy than this job's are made the largest: nothing outranks them by key."""
    first = 0
    for index in earlier:
        if index.keep != config.keep:
            order_key_N[first : first + len(index.documents)] = np.iinfo(np.int64).max
        first += len(index.documents)


def make_table(
    inputs: Sequence[InputFile],
    load: Callable[[int], SignedFile],
    config: DedupConfig,
    methods: Sequence[str],
    screened: Callable[[int], NDArray[np.bool_] | None] = lambda file: None,
    earlier: Sequence[Index] = (),
) -> DocumentTable:
    """Put the documents of all files in priority order, behind those of earlier runs.

    Takes about 90 bytes a document meanwhile, 53 in the end.

    Priority is (source rank, keep policy, content hash, source, relative path, record); with ``first`` it is (source
    rank, source, relative path, record). None of it knows file indices or tasks.

    Args:
        inputs: the files; ``load`` gives what signing left of one.
        methods: the pair methods at work.
        screened: bool by record number, the records of a file that a screen took; None without a screen.
        earlier: documents of earlier runs, in the order in which they outrank each other.

    Raises:
        JobError: more documents than one decision can number.
    """
    earlier_names = {source.name for index in earlier for source in index.sources}
    names = tuple(sorted({file.source for file in inputs} | earlier_names))
    gathered, going = _gather(inputs, load, screened, earlier, names)
    num_earlier = sum(gathered.counts[: len(earlier)])
    start_F = num_earlier + np.concatenate(([0], np.cumsum(gathered.counts[len(earlier) :]))).astype(np.int64)
    place_F = _places(inputs)
    columns = {name: gathered.take(name) for name in (*_Columns._FIELDS, "file", "source", "rank")}
    order = np.concatenate((np.arange(num_earlier, dtype=np.int32), _priority(columns, place_F, going, config)))
    number_P = np.full(int(start_F[-1]), -1, np.int32)
    number_P[order] = np.arange(len(order), dtype=np.int32)
    column = {name: columns.pop(name)[order] for name in list(columns)}
    takes_part_N = {method: _takes_part(method, inputs, earlier, column["file"]) for method in methods}
    _forget_other_keys(earlier, config, column["order_key"])
    rights = (*takes_part_N.values(), *(() if config.across else (column["source"],)))
    text_N, head_N = _first_equal((column["hash_low"], column["hash_high"], column["size_bytes"]), rights)
    _set_apart(head_N, text_N, num_earlier)
    if config.decision == "union_find" and "exact" not in methods:
        head_N = np.arange(len(order), dtype=np.int32)  # its clusters count copies
    return DocumentTable(
        source_names=names,
        file_N=column["file"],
        record_N=column["record"],
        source_N=column["source"],
        size_N=column["size_bytes"],
        num_shingles_N=column["num_shingles"],
        takes_part_N=takes_part_N,
        text_N=text_N,
        head_N=head_N,
        rank_N=column["rank"],
        order_key_N=column["order_key"],
        number_P=number_P,
        start_F=start_F,
        num_earlier=num_earlier,
        place_F=place_F,
        keep=config.keep,
    )
