"""All documents of a job as columns in priority order, and the candidate pairs (as buckets) that methods propose.

Shapes: N documents in priority order, K permutations, H heads (see ``DocumentTable.head_N``), B bands, F files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..documents import InputFile, Status
from .config import DedupConfig

__all__ = [
    "DocumentTable",
    "Method",
    "Proposal",
    "SignedColumns",
    "SignedFile",
    "bucket_starts",
    "make_table",
]


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

    A method gives ``keys(columns, band, config)``: uint64 per document (N), equal for documents that are proposed as
    pairs. The caller mixes method and band into them, and leaves out documents without shingles where pairs are to
    be verified.

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


@dataclass(frozen=True)
class DocumentTable:
    """N documents in priority order: the smaller the number, the better.

    Attributes:
        file_N, record_N: int32 index of the file and int64 record number.
        source_N: int32 index into ``source_names``.
        size_N: int64 bytes of text.
        hash_N2: uint64 pair, xxh3-128 of the text.
        num_shingles_N: int32.
        signature_NK: uint32, empty (N, 0) without ``minhash``.
        takes_part_N: per method, bool: the source has not opted out of it.
        head_N: int64, the best document with the same text, the same rights and (unless ``across``) the same source: it
            stands for all of them when pairs are proposed, and they share its fate.
        order_F: files in the order of (source rank, source, path); file indices mean nothing.
    """

    source_names: tuple[str, ...]
    file_N: NDArray[np.int32]
    record_N: NDArray[np.int64]
    source_N: NDArray[np.int32]
    size_N: NDArray[np.int64]
    hash_N2: NDArray[np.uint64]
    num_shingles_N: NDArray[np.int32]
    signature_NK: NDArray[np.uint32]
    takes_part_N: dict[str, NDArray[np.bool_]]
    head_N: NDArray[np.int64]

    @property
    def heads(self) -> NDArray[np.int64]:
        """The documents (H, ascending) that stand for themselves."""
        return np.flatnonzero(self.head_N == np.arange(len(self.head_N)))


@dataclass(frozen=True)
class Proposal:
    """Candidate pairs of one method, as buckets: every two heads in one bucket are a pair.

    Attributes:
        member_BH: int32, heads (by their place among the heads, so in priority order) of each band, sorted by bucket
            and within a bucket by priority.
        start_BH: int32, per head where its bucket begins in ``member_BH``.
        unverified: pairs that share a bucket but are passed over because it is too large.
    """

    member_BH: NDArray[np.int32]
    start_BH: NDArray[np.int32]
    unverified: int = 0


@dataclass(frozen=True)
class Method:
    """One dedup method.

    Attributes:
        propose: its buckets over the heads of a table, those of sources that opted out included (hold-out links them).
        verifies: pairs must be verified by exact Jaccard similarity; else sharing a bucket is being equal.
        status: what its removals are called.
    """

    propose: Callable[[DocumentTable, DedupConfig], Proposal]
    verifies: bool
    status: Status


def bucket_starts(key_H: NDArray[np.uint64], member_H: NDArray[np.int64]) -> NDArray[np.int32]:
    """Per head (H) where its bucket begins among ``member_H``, which is sorted by ``key_H``."""
    ordered = key_H[member_H]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    start_H = np.empty(len(ordered), np.int32)
    start_H[member_H] = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))
    return start_H


def _priority_keys(
    inputs: tuple[InputFile, ...], documents: NDArray[Any], file_N: NDArray[np.int32], config: DedupConfig
) -> tuple[NDArray[Any], ...]:
    """Columns that order documents, least significant first (as ``np.lexsort`` wants them)."""
    by_place = sorted(range(len(inputs)), key=lambda file: (inputs[file].source, inputs[file].path))
    place_F = np.empty(len(inputs), np.int64)
    place_F[by_place] = np.arange(len(inputs))
    rank_N = np.array([file.rank for file in inputs], np.int64)[file_N]
    place = (documents["record"], place_F[file_N])
    if config.keep == "first":
        return (*place, rank_N)
    return (*place, documents["hash_low"], documents["hash_high"], -documents["size_bytes"], rank_N)


def _find_heads(columns: tuple[NDArray[Any], ...]) -> NDArray[np.int64]:
    """Per document the first one with the same values in all ``columns``."""
    count = len(columns[0])
    if count == 0:
        return np.zeros(0, np.int64)
    order = np.lexsort((np.arange(count), *columns))
    differs = np.zeros(count, np.bool_)
    differs[0] = True
    for column in columns:
        ordered = column[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    firsts = order[np.maximum.accumulate(np.where(differs, np.arange(count), 0))]
    head_N = np.empty(count, np.int64)
    head_N[order] = firsts
    return head_N


def make_table(inputs: tuple[InputFile, ...], signed: list[SignedFile], config: DedupConfig) -> DocumentTable:
    """Put the documents of all files in priority order.

    Priority is (source rank, longest text first unless ``keep`` is ``first``, content hash, source, relative path,
    record); with ``first`` it is (source rank, source, relative path, record). Neither knows file indices or tasks.
    """
    documents = np.concatenate([file.documents for file in signed])
    file_N = np.repeat(np.arange(len(signed), dtype=np.int32), [len(file.documents) for file in signed])
    order = np.lexsort(_priority_keys(inputs, documents, file_N, config))
    documents, file_N = documents[order], file_N[order]
    signatures = [file.signature_NK for file in signed if file.signature_NK is not None]
    empty = np.zeros((len(order), 0), np.uint32)
    names = tuple(sorted({file.source for file in inputs}))
    source_N = np.array([names.index(file.source) for file in inputs], np.int32)[file_N]
    takes_part_N = {
        method: np.array([method not in file.opt_out for file in inputs], np.bool_)[file_N] for method in config.methods
    }
    content = (documents["hash_low"], documents["hash_high"], documents["size_bytes"])
    rights = (*takes_part_N.values(), *(() if config.across else (source_N,)))
    return DocumentTable(
        source_names=names,
        file_N=file_N,
        record_N=documents["record"].copy(),
        source_N=source_N,
        size_N=documents["size_bytes"].copy(),
        hash_N2=np.stack((documents["hash_low"], documents["hash_high"]), axis=1),
        num_shingles_N=documents["num_shingles"].copy(),
        signature_NK=np.concatenate(signatures)[order] if len(signatures) == len(signed) and signed else empty,
        takes_part_N=takes_part_N,
        head_N=_find_heads((*content, *rights)),
    )
