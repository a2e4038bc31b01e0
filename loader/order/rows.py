"""Which of many adjoining ranges holds each number: a table look-up instead of a binary search.

``numpy.searchsorted`` mispredicts a branch a level when its questions come in no order: 70 ns in 60,000 rows. Equal
buckets of about the mean row's width remember the row they begin in; a bucket then holds one border on average, so one
comparison mostly settles it, and what it does not settle is searched for.

Legend: Q rows, B buckets, N numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowIndex"]

_Ints = NDArray[np.int64]
_FEW = 64


@dataclass(frozen=True)
class RowIndex:
    """Rows ``[start[i], start[i + 1])``, empty ones allowed; the last one is open.

    Attributes:
        start_Q: ascending, the first 0.
        stop_Q: start of the row after; the largest int64 for the last.
        shift: log2 of a bucket's width. first_B: a row that starts at or before the bucket, at most its borders early.
        most_borders: most rows that start in one bucket.
    """

    start_Q: _Ints
    stop_Q: _Ints
    shift: int
    first_B: _Ints
    most_borders: int

    @staticmethod
    def build(start_Q: _Ints) -> RowIndex:
        """Linear in the number of rows; at most two buckets a row, and few rows are searched without any."""
        stop_Q = np.append(start_Q[1:], np.iinfo(np.int64).max)
        if len(start_Q) <= _FEW:
            return RowIndex(start_Q, stop_Q, 63, np.zeros(1, np.int64), len(start_Q))
        shift = max(1, int(start_Q[-1]) // len(start_Q)).bit_length() - 1
        count_B = np.bincount(start_Q >> shift)
        most_borders = int(count_B.max())
        first_B = np.cumsum(count_B)
        first_B -= count_B
        first_B -= 1
        return RowIndex(start_Q, stop_Q, shift, np.maximum(first_B, 0, out=first_B), most_borders)

    def rows_of(self, numbers_N: _Ints) -> _Ints:
        """The row that holds each number >= 0, of equal starts the last: ``searchsorted(start, ., "right") - 1``."""
        if len(self.start_Q) <= _FEW:
            found_N: _Ints = np.searchsorted(self.start_Q, numbers_N, "right") - 1
            return found_N
        row_N: _Ints = self.first_B.take(numbers_N >> self.shift, mode="clip")
        row_N += self.stop_Q.take(row_N) <= numbers_N
        if self.most_borders > 1:
            left = np.flatnonzero(self.stop_Q.take(row_N) <= numbers_N)
            if len(left):
                row_N[left] = np.searchsorted(self.start_Q, numbers_N[left], "right") - 1
        return row_N
