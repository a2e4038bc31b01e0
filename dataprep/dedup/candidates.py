"""What a decision reads: the signed columns of all files in chunks, and, by a second read of the original files, the
shingle sets of candidates.

Shapes: N documents in priority order, P documents in the order of the files, C documents of a chunk, R records of a
file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..documents import InputFile
from ..formats import FileSummary, ReadOptions, read_file
from .config import DedupConfig
from .index import Index
from .signatures import load_signed
from .spill import forget_pages
from .table import DocumentTable, SignedColumns, SignedFile

__all__ = ["CandidateReader", "ReadColumns", "ReadSets", "SignedFiles", "SignedReader"]

_CHUNK_ROWS = 1 << 14
_SET_ROWS = 1 << 10
_MAPPED_FILES = 32

ReadColumns = Callable[[NDArray[np.int32]], Iterator[tuple[NDArray[np.int64], SignedColumns]]]
"""Signed columns by position: takes a number per position (-1 = not wanted), gives (numbers, columns) in chunks."""
ReadSets = Callable[[NDArray[np.int64]], Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]]]
"""Shingle sets of documents (ascending numbers): (documents, set sizes, elements set after set) in chunks. These are
the only texts that are read a second time."""


class SignedFiles:
    """What signing left, mapped; each file is verified when it is loaded first, and only then."""

    def __init__(self, folder: Path, config: DedupConfig) -> None:
        self._folder = folder
        self._config = config
        self._kinds: dict[int, list[str]] = {}
        self._maps: OrderedDict[int, SignedFile] = OrderedDict()

    def __call__(self, file: int) -> SignedFile:
        """One file; a few stay mapped.

        Raises:
            DamageError, RefusedError: see ``load_signed``.
        """
        signed = self._maps.get(file)
        if signed is None:
            signed = self._map(file) if file in self._kinds else load_signed(self._folder, file, self._config)
            columns = {"signatures": signed.signature_NK, "simhash": signed.simhash_N}
            self._kinds[file] = [kind for kind, column in columns.items() if column is not None]
            self._maps[file] = signed
            if len(self._maps) > _MAPPED_FILES:
                self._maps.popitem(last=False)
        return signed

    def _map(self, file: int) -> SignedFile:
        columns = {}
        for kind in ("documents", *self._kinds[file]):
            path = self._folder / f"{kind}.{file:05d}.npy"
            try:
                columns[kind] = np.load(path, mmap_mode="r", allow_pickle=False)
            except ValueError:  # no rows, no map
                columns[kind] = np.load(path, allow_pickle=False)
        return SignedFile(columns["documents"], columns.get("signatures"), columns.get("simhash"))


class SignedReader:
    """Goes through the signed columns of all files, and of earlier documents in front of them."""

    def __init__(self, table: DocumentTable, load: Callable[[int], SignedFile], earlier: Sequence[Index] = ()) -> None:
        self._table = table
        self._load = load
        self._earlier = earlier

    def _parts(self) -> Iterator[tuple[int, int, Callable[[], SignedFile]]]:
        """(first position, last + 1, loader) of each part."""
        start = 0
        for index in self._earlier:
            stop = start + len(index.documents)
            yield start, stop, partial(SignedFile, index.documents, index.signature_NK, index.simhash_N)
            start = stop
        for file in range(len(self._table.start_F) - 1):
            bounds = self._table.start_F[file : file + 2].tolist()
            yield bounds[0], bounds[1], partial(self._load, file)

    def __call__(self, number_P: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int64], SignedColumns]]:
        """The wanted positions in their order, small files together, large ones in pieces."""
        waiting: list[tuple[NDArray[np.int64], SignedColumns]] = []
        rows_waiting = 0
        for start, stop, load in self._parts():
            row_C = np.flatnonzero(number_P[start:stop] >= 0)
            signed = load() if len(row_C) else None
            for first in range(0, len(row_C), _CHUNK_ROWS):
                assert signed is not None
                rows = row_C[first : first + _CHUNK_ROWS]
                waiting.append((number_P[start + rows].astype(np.int64), _take(signed, rows)))
                rows_waiting += len(rows)
                if rows_waiting >= _CHUNK_ROWS:
                    yield _together(waiting)
                    waiting, rows_waiting = [], 0
            if signed is not None:
                for column in (signed.documents, signed.signature_NK, signed.simhash_N):
                    if column is not None:
                        forget_pages(column)
        if waiting:
            yield _together(waiting)


def _take(signed: SignedFile, rows: NDArray[np.int64]) -> SignedColumns:
    documents = signed.documents[rows]
    count = len(rows)
    signature_NK, simhash_N = signed.signature_NK, signed.simhash_N
    return SignedColumns(
        hash_N2=np.stack((documents["hash_low"], documents["hash_high"]), axis=1),
        size_N=documents["size_bytes"],
        num_shingles_N=documents["num_shingles"],
        signature_NK=np.zeros((count, 0), np.uint32) if signature_NK is None else np.asarray(signature_NK[rows]),
        simhash_N=np.zeros(count, np.uint64) if simhash_N is None else np.asarray(simhash_N[rows]),
    )


def _together(parts: list[tuple[NDArray[np.int64], SignedColumns]]) -> tuple[NDArray[np.int64], SignedColumns]:
    if len(parts) == 1:
        return parts[0]
    columns = [part[1] for part in parts]
    return np.concatenate([part[0] for part in parts]), SignedColumns(
        np.concatenate([one.hash_N2 for one in columns]),
        np.concatenate([one.size_N for one in columns]),
        np.concatenate([one.num_shingles_N for one in columns]),
        np.concatenate([one.signature_NK for one in columns]),
        np.concatenate([one.simhash_N for one in columns]),
    )


class CandidateReader:
    """Reads the texts of candidates again and gives their shingle sets; a file that changed is refused."""

    def __init__(
        self,
        inputs: Sequence[InputFile],
        summaries: Sequence[FileSummary],
        table: DocumentTable,
        options: ReadOptions,
        earlier: Sequence[Index] = (),
    ) -> None:
        self._inputs = inputs
        self._summaries = summaries
        self._table = table
        self._options = options
        self._earlier = earlier

    def __call__(
        self, document_C: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]]:
        """See ``ReadSets``; file by file.

        Raises:
            RefusedError: an input is not the file that was signed.
        """
        first = 0
        for index in self._earlier:
            count = len(index.documents)
            wanted = document_C[(document_C >= first) & (document_C < first + count)]
            start_N = index.set_start_N
            for place in range(0, len(wanted), _SET_ROWS):
                documents = wanted[place : place + _SET_ROWS]
                start_C = start_N[documents - first]
                size_C = index.set_stop_N[documents - first] - start_C
                value_C = np.repeat(start_C - (np.cumsum(size_C) - size_C), size_C) + np.arange(int(size_C.sum()))
                yield documents, size_C, np.asarray(index.set_value_S[value_C])
                forget_pages(index.set_value_S)
            first += count
        document_C = document_C[document_C >= first]
        file_C = self._table.file_N[document_C]
        order = np.lexsort((self._table.record_N[document_C], file_C))
        document_C, file_C = document_C[order], file_C[order]
        stops = np.searchsorted(file_C, np.arange(len(self._inputs) + 1))
        for file in np.unique(file_C).tolist():
            yield from self._read(file, document_C[stops[file] : stops[file + 1]])

    def _read(
        self, file: int, wanted: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]]:
        """One file; ``wanted`` in record order."""
        from ..kernels.documents import DocumentHasher

        hasher = DocumentHasher()
        keep_R = np.zeros(self._summaries[file].num_records, np.bool_)
        keep_R[self._table.record_N[wanted]] = True
        done = 0
        batches = read_file(
            self._inputs[file], file, options=self._options, keep_R=keep_R, expected=self._summaries[file]
        )
        for batch in batches:
            values, sizes = hasher.sets(batch.text)
            yield wanted[done : done + len(batch.text)], sizes, values
            done += len(batch.text)
