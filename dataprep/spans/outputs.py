"""What the span stages leave of each file: cuts, statuses, removals and their account.

Shapes: D documents of a file, P pieces, U unions of pieces, W witnesses, C cuts, K removed documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.errors import DamageError
from loader.text.records import document_ids

from ..cuts import CUT_DTYPE
from ..dedup.outputs import file_order
from ..documents import InputFile
from ..tables import write_parquet
from .store import METHOD, FileDocuments

__all__ = ["FileOutcome", "Places", "file_outcome", "removed_places", "write_removals"]

_DOCUMENT, _WORD, _WORD_STOP, _BYTE, _BYTE_STOP, _WITNESS = range(6)


class Places:
    """Where the document of each priority number lies; 16 bytes of memory a document."""

    def __init__(self, inputs: Sequence[InputFile], documents: Sequence[FileDocuments], salt: int) -> None:
        """
        Raises:
            DamageError: two documents that take part have one priority number.
        """
        self._inputs, self._documents, self._salt = inputs, documents, salt
        ranks = [one.rank_D[one.takes_part_D] for one in documents]
        numbers = [np.flatnonzero(one.takes_part_D) for one in documents]
        files = [np.full(len(one), file, np.int32) for file, one in enumerate(numbers)]
        rank_all = np.concatenate([np.zeros(0, np.int64), *ranks])
        order = np.argsort(rank_all)
        self._rank = rank_all[order]
        self._number = np.concatenate([np.zeros(0, np.int64), *numbers])[order]
        self._file = np.concatenate([np.zeros(0, np.int32), *files])[order]
        if (self._rank[1:] == self._rank[:-1]).any():
            raise DamageError("TR-SPANS-RANK", "two documents have one priority number", None, "distinct numbers")

    def find(self, rank_W: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]]:
        """(file, record, document id) of the documents with these numbers."""
        place_W = np.searchsorted(self._rank, rank_W)
        file_W, number_W = self._file[place_W], self._number[place_W]
        record_W, id_W = np.zeros(len(rank_W), np.int64), np.zeros(len(rank_W), np.uint64)
        for file in np.unique(file_W).tolist():
            mine = file_W == file
            record_W[mine] = self._documents[file].record_D[number_W[mine]]
            id_W[mine] = document_ids(self._inputs[file].source, self._inputs[file].path, record_W[mine], self._salt)
        return file_W, record_W, id_W


class FileOutcome(NamedTuple):
    """What the pieces of a file come to.

    Attributes:
        cuts: rows of ``CUT_DTYPE``, none of removed documents.
        removed_D: bool: cut whole, with nothing but white space left.
        removed_witness_K: int64, priority numbers of the documents that hold the beginning of the removed ones.
        documents_cut, bytes_cut: of the others.
    """

    cuts: NDArray[Any]
    removed_D: NDArray[np.bool_]
    removed_witness_K: NDArray[np.int64]
    documents_cut: int
    bytes_cut: int


def file_outcome(
    piece_6P: NDArray[np.int64], words_D: NDArray[np.integer[Any]], documents: FileDocuments, places: Places
) -> FileOutcome:
    """Cuts and removals of a file. A document goes whole if one unbroken piece covers all its words and only white
    space lies around them (``words_D`` is their number then, else -1)."""
    document_P = piece_6P[_DOCUMENT]
    begins = np.ones(len(document_P), np.bool_)
    begins[1:] = (document_P[1:] != document_P[:-1]) | (piece_6P[_WORD, 1:] > piece_6P[_WORD_STOP, :-1])
    first_U = np.flatnonzero(begins)
    last_U = np.append(first_U[1:], len(document_P))[: len(first_U)] - 1
    whole_U = (piece_6P[_WORD, first_U] == 0) & (piece_6P[_WORD_STOP, last_U] == words_D[document_P[first_U]])
    removed_D = np.zeros(len(words_D), np.bool_)
    removed_D[document_P[first_U[whole_U]]] = True
    bytes_U = piece_6P[_BYTE_STOP, last_U] - piece_6P[_BYTE, first_U]
    cut_6C = piece_6P[:, ~removed_D[document_P]]
    rows_C = np.zeros(cut_6C.shape[1], CUT_DTYPE)
    rows_C["record"] = documents.record_D[cut_6C[_DOCUMENT]]
    rows_C["byte_start"] = cut_6C[_BYTE]
    rows_C["byte_count"] = cut_6C[_BYTE_STOP] - cut_6C[_BYTE]
    rows_C["has_witness"] = True
    rows_C["method"] = METHOD.encode()
    rank_W, witness_C = np.unique(cut_6C[_WITNESS], return_inverse=True)
    rows_C["witness"] = places.find(rank_W)[2][witness_C]
    return FileOutcome(
        rows_C,
        removed_D,
        piece_6P[_WITNESS, first_U[whole_U]],
        len(np.unique(cut_6C[_DOCUMENT])),
        int(bytes_U[~whole_U].sum()),
    )


def removed_places(rank_K: NDArray[np.int64], witness_K: NDArray[np.int64]) -> NDArray[np.int64]:
    """Kept witnesses (priority numbers) of removed documents, from direct ones that may be removed themselves.

    The witness of a removed document's first n-gram is always a better document, as nothing lies before the first
    n-gram in its own; so following witnesses ends, at a document that is kept. Paths are halved at each step.
    """
    order = np.argsort(rank_K)
    sorted_K, followed_K = rank_K[order], witness_K.copy()
    while len(sorted_K):
        place_K = np.minimum(np.searchsorted(sorted_K, followed_K), len(sorted_K) - 1)
        removed = sorted_K[place_K] == followed_K
        if not removed.any():
            break
        followed_K = np.where(removed, followed_K[order[place_K]], followed_K)
    return followed_K


def write_removals(
    path: Path, inputs: Sequence[InputFile], places: Places, rank_K: NDArray[np.int64], witness_K: NDArray[np.int64]
) -> None:
    """The table of removed documents and their kept witnesses, in the order of (source rank, source, path, record)."""
    place_F = np.empty(len(inputs), np.int64)
    place_F[file_order(inputs)] = np.arange(len(inputs))
    file_K, record_K, id_K = places.find(rank_K)
    order = np.lexsort((record_K, place_F[file_K]))
    file_W, record_W, id_W = places.find(witness_K[order])
    file_K, record_K, id_K = file_K[order], record_K[order], id_K[order]

    def of_files(attribute: str, file_K: NDArray[np.int32]) -> pa.Array:
        return pa.array([getattr(file, attribute) for file in inputs], pa.string()).take(pa.array(file_K))

    columns = {
        "document": pa.array(id_K, pa.uint64()),
        "source": of_files("source", file_K),
        "file": of_files("path", file_K),
        "record": pa.array(record_K, pa.int64()),
        "method": pa.array([METHOD] * len(id_K), pa.string()),
        "witness_document": pa.array(id_W, pa.uint64()),
        "witness_source": of_files("source", file_W),
        "witness_file": of_files("path", file_W),
        "witness_record": pa.array(record_W, pa.int64()),
        "similarity": pa.nulls(len(id_K), pa.float64()),
        "reason": pa.nulls(len(id_K), pa.string()),
    }
    write_parquet(path, pa.table(columns))
