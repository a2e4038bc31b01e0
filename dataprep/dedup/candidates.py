"""The second read: shingle sets of candidate documents only, by the original files.

Shapes: N documents in priority order, C candidates, R records of a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..documents import InputFile
from ..formats import FileSummary, ReadOptions, read_file
from ..kernels.jaccard import Sets
from .table import DocumentTable

__all__ = ["CandidateReader"]


class CandidateReader:
    """Reads the texts of candidates again and keeps their shingle sets; a file that changed is refused."""

    def __init__(
        self, inputs: Sequence[InputFile], summaries: Sequence[FileSummary], table: DocumentTable, options: ReadOptions
    ) -> None:
        self._inputs = inputs
        self._summaries = summaries
        self._table = table
        self._options = options

    def __call__(self, document_C: NDArray[np.int64]) -> Sets:
        """Sets of the documents (ascending numbers); all others have empty ones.

        Raises:
            RefusedError: an input is not the file that was signed.
        """
        count = len(self._table.file_N)
        start_N, size_N = np.zeros(count, np.int64), np.zeros(count, np.int64)
        values: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        end = 0
        file_C = self._table.file_N[document_C]
        for file in np.unique(file_C).tolist():
            wanted = document_C[file_C == file]
            wanted = wanted[np.argsort(self._table.record_N[wanted])]
            for sets, sizes, documents in self._read(file, wanted):
                start_N[documents] = end + np.cumsum(sizes) - sizes
                size_N[documents] = sizes
                values.append(sets)
                end += len(sets)
        return Sets(np.concatenate(values), start_N, start_N + size_N)

    def _read(
        self, file: int, wanted: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]]:
        """(elements, sizes, documents) per batch of one file; ``wanted`` in record order."""
        from ..kernels.documents import DocumentHasher

        hasher = DocumentHasher()
        keep_R = np.zeros(self._summaries[file].num_records, np.bool_)
        keep_R[self._table.record_N[wanted]] = True
        parts, done = [], 0
        batches = read_file(
            self._inputs[file], file, options=self._options, keep_R=keep_R, expected=self._summaries[file]
        )
        for batch in batches:
            sets, sizes = hasher.sets(batch.text)
            parts.append((sets, sizes, wanted[done : done + len(batch.text)]))
            done += len(batch.text)
        return parts
