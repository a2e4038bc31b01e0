"""Sets of integers as sorted disjoint half-open ranges, and what each range carries.

Legend: R ranges, N numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ranges", "StampedRanges", "merged", "union_of"]

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ranges:
    """Disjoint ranges in ascending order, none empty, none touching the next.

    Attributes:
        start_R, stop_R: the ranges.
        before_R: numbers inside earlier ranges.
        gap_R: numbers outside, below the range's start: ``start_R - before_R``, ascending.
    """

    start_R: _Ints
    stop_R: _Ints
    before_R: _Ints
    gap_R: _Ints

    @property
    def count(self) -> int:
        """Numbers inside."""
        return int(self.before_R[-1] + self.stop_R[-1] - self.start_R[-1]) if len(self.start_R) else 0

    def contains(self, numbers_N: _Ints) -> NDArray[np.bool_]:
        """Whether each number lies inside."""
        inside_N = np.zeros(len(numbers_N), np.bool_)
        if len(self.start_R):
            row_N = np.searchsorted(self.start_R, numbers_N, "right") - 1
            inside_N = (row_N >= 0) & (numbers_N < self.stop_R[row_N])
        return inside_N

    def outside_before(self, numbers_N: _Ints) -> _Ints:
        """How many numbers >= 0 outside the ranges lie below each number >= 0."""
        if not len(self.start_R):
            return numbers_N.copy()
        row_N = np.searchsorted(self.start_R, numbers_N, "right") - 1
        inside_N = self.before_R[row_N] + np.minimum(numbers_N, self.stop_R[row_N]) - self.start_R[row_N]
        outside_N: _Ints = numbers_N - np.where(row_N >= 0, inside_N, 0)
        return outside_N

    def outside_at(self, ranks_N: _Ints) -> _Ints:
        """The number outside that has each rank >= 0: :meth:`outside_before` inverted."""
        if not len(self.start_R):
            return ranks_N.copy()
        row_N = np.searchsorted(self.gap_R, ranks_N, "right") - 1
        passed_N = self.before_R[row_N] + self.stop_R[row_N] - self.start_R[row_N]
        numbers_N: _Ints = ranks_N + np.where(row_N >= 0, passed_N, 0)
        return numbers_N

    def numbers(self) -> _Ints:
        """All numbers inside, ascending."""
        sizes_R = self.stop_R - self.start_R
        numbers_N: _Ints = np.repeat(self.start_R - self.before_R, sizes_R) + np.arange(self.count)
        return numbers_N


def union_of(start_R: _Ints, stop_R: _Ints) -> Ranges:
    """The union of ranges in any order, overlapping or not; empty ones count for nothing."""
    full_R = stop_R > start_R
    start_R, stop_R = start_R[full_R], stop_R[full_R]
    if len(start_R) > 1 and not (start_R[1:] > stop_R[:-1]).all():
        by_start = np.argsort(start_R, kind="stable")
        start_R, reach_R = start_R[by_start], np.maximum.accumulate(stop_R[by_start])
        first_R = np.concatenate([np.ones(1, np.bool_), start_R[1:] > reach_R[:-1]])
        last_R = np.concatenate([first_R[1:], np.ones(1, np.bool_)])
        start_R, stop_R = start_R[first_R], reach_R[last_R]
    sizes_R = stop_R - start_R
    before_R = np.cumsum(sizes_R) - sizes_R
    return Ranges(start_R, stop_R, before_R, start_R - before_R)


def merged(parts: Sequence[_Ints]) -> _Ints:
    """The union of sorted arrays without repeats; of one that is not empty, that array itself."""
    full = [part for part in parts if len(part)]
    if len(full) < 2:
        return full[0] if full else np.empty(0, np.int64)
    numbers_N = np.concatenate(full)
    numbers_N.sort(kind="stable")  # merges what is sorted by runs
    kept_N = np.ones(len(numbers_N), np.bool_)
    np.not_equal(numbers_N[1:], numbers_N[:-1], out=kept_N[1:])
    union_N: _Ints = numbers_N[kept_N]
    return union_N


@dataclass(frozen=True)
class StampedRanges:
    """Which stamp each number carries: the smallest of the ranges that hold it.

    Attributes:
        border_R: ascending; numbers in ``[border[i], border[i + 1])`` carry ``stamp_R[i]``.
        stamp_R: stamps.
        never: the stamp of numbers in no range.
    """

    border_R: _Ints
    stamp_R: _Ints
    never: int

    @staticmethod
    def build(start_R: _Ints, stop_R: _Ints, stamp_R: _Ints, never: int) -> StampedRanges:
        """Sweep over the borders with a heap of open ranges: R log R, also where all of them overlap."""
        events = sorted(zip(start_R.tolist(), stop_R.tolist(), stamp_R.tolist(), strict=True))
        borders = np.unique(np.concatenate([start_R, stop_R])).tolist()
        stamps, open_ranges, at = [], list[tuple[int, int]](), 0
        for border in borders:
            while at < len(events) and events[at][0] <= border:
                heapq.heappush(open_ranges, (events[at][2], events[at][1]))
                at += 1
            while open_ranges and open_ranges[0][1] <= border:
                heapq.heappop(open_ranges)
            stamps.append(open_ranges[0][0] if open_ranges else never)
        return StampedRanges(np.array(borders, np.int64), np.array(stamps, np.int64), never)

    def stamps_of(self, numbers_N: _Ints) -> _Ints:
        """The stamp of each number."""
        if not len(self.border_R):
            return np.full(len(numbers_N), self.never, np.int64)
        row_N = np.searchsorted(self.border_R, numbers_N, "right") - 1
        return np.where(row_N >= 0, self.stamp_R[row_N], self.never)
