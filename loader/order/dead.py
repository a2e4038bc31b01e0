"""Indices of an epoch whose samples are dropped: how many lie before an index, which index is the n-th live one.

Few dropped samples are located at once and sorted. Of many (millions) only those are looked at that can lie in the
windows asked for: shards are taken in groups of ``window_shards`` and slice j of group g lies in window g + j, so what
lies before a window is all that earlier groups drop, which is counted by shard, and some slices of the last few groups.

Legend: X dropped samples, N questions, S shards, G groups of shards, W windows, J slices of a shard.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .order import SourceOrder
from .tables import EpochTables

__all__ = ["DeadByWindow", "DeadIndices", "DeadWhole", "dead_indices"]

_Ints = NDArray[np.int64]
_FEW = 1 << 16
_MOST_SLICES = 8  # each window looks at the samples of as many groups
_KEPT_NUMBERS = 1 << 21
_PORTION = 1 << 13  # samples whose arrays stay in the processor's cache


class DeadIndices(Protocol):
    """The dead indices of one epoch; threads may share it."""

    def before(self, index_N: _Ints) -> tuple[_Ints, NDArray[np.bool_]]:
        """(before_N, dead_N): dead indices below each index of the epoch, and whether it is dead itself."""
        ...

    def index_of_live(self, live_N: _Ints) -> _Ints:
        """The live index with each number of live ones before it; such a one must exist."""
        ...


def dead_indices(order: SourceOrder, epoch: int, sample_X: _Ints) -> DeadIndices:
    """Those of ``sample_X`` (sorted, unique, not empty) in an epoch, the cheaper way."""
    if len(sample_X) <= _FEW or order.layout.slices > _MOST_SLICES:
        return DeadWhole(order, epoch, sample_X)
    return DeadByWindow(order, epoch, sample_X)


class _Sorted:
    """Sorted dead numbers."""

    def __init__(self, dead_X: _Ints) -> None:
        dead_X.sort()
        self._dead_X, self._live_before_X = dead_X, dead_X - np.arange(len(dead_X))

    def __len__(self) -> int:
        return len(self._dead_X)

    def before(self, number_N: _Ints) -> tuple[_Ints, NDArray[np.bool_]]:
        """How many lie below each number, and whether it is dead itself."""
        before_N: _Ints = np.searchsorted(self._dead_X, number_N)
        if not len(self._dead_X):
            return before_N, np.zeros(len(number_N), np.bool_)
        return before_N, self._dead_X[np.minimum(before_N, len(self._dead_X) - 1)] == number_N

    def passed(self, live_N: _Ints) -> _Ints:
        """How many lie below the number that has each number of live ones before it."""
        passed_N: _Ints = np.searchsorted(self._live_before_X, live_N, "right")
        return passed_N


class DeadWhole:
    """All of them, sorted."""

    def __init__(self, order: SourceOrder, epoch: int, sample_X: _Ints) -> None:
        dead_X = order.raw_of(np.full(len(sample_X), epoch, np.int64), sample_X)
        dead_X -= epoch * order.num_samples
        self._dead = _Sorted(dead_X)

    def before(self, index_N: _Ints) -> tuple[_Ints, NDArray[np.bool_]]:
        """See :class:`DeadIndices`."""
        return self._dead.before(index_N)

    def index_of_live(self, live_N: _Ints) -> _Ints:
        """See :class:`DeadIndices`."""
        return live_N + self._dead.passed(live_N)


class DeadByWindow:
    """Those of a window when it is asked for; kept are the last ones, and how many each slice of a group holds."""

    def __init__(self, order: SourceOrder, epoch: int, sample_X: _Ints) -> None:
        layout = order.layout
        self._order, self._epoch = order, epoch
        tables = order.tables(epoch)
        self._sample_X, self._first_S = sample_X, layout.first_S
        self._num_slices, self._width = layout.slices, layout.window_shards
        bound_S1 = np.searchsorted(sample_X, np.append(layout.first_S, layout.num_samples))
        self._bound_S, self._count_S = bound_S1[:-1], np.diff(bound_S1)
        self._shard_S = np.argsort(tables.slice_of_SJ[:, 0])  # as the epoch takes them, group by group
        group_G = np.add.reduceat(self._count_S[self._shard_S], np.arange(0, len(self._shard_S), self._width))
        self._num_groups = len(group_G)
        self._before_G1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(group_G)])
        self._start_W1 = np.append(tables.window_start_W, layout.num_samples)
        # of each group and slice: how many its slices up to this one hold, once they are counted
        self._reach_GJ = np.zeros((self._num_groups, self._num_slices), np.int64)
        self._counted_G = np.zeros(self._num_groups, np.bool_)
        self._known_W1 = np.full(len(self._start_W1), -1)  # dead indices before each window, once they are asked for
        self._kept: OrderedDict[int, _Sorted] = OrderedDict()
        self._num_kept = 0
        self._lock = threading.Lock()
        window_W1 = np.arange(len(self._start_W1))
        least_W1 = self._before_G1[np.clip(window_W1 - self._num_slices + 1, 0, self._num_groups)]
        most_W1 = self._before_G1[np.minimum(window_W1, self._num_groups)]
        # live indices before a window: never more, never fewer than, made to rise
        self._live_most_W1 = np.minimum.accumulate((self._start_W1 - least_W1)[::-1])[::-1]
        self._live_least_W1 = np.maximum.accumulate(self._start_W1 - most_W1)

    @property
    def _tables(self) -> EpochTables:
        return self._order.tables(self._epoch)  # megabytes of a large source, of which the order keeps a few

    def before(self, index_N: _Ints) -> tuple[_Ints, NDArray[np.bool_]]:
        """See :class:`DeadIndices`."""
        before_N, dead_N = np.empty(len(index_N), np.int64), np.empty(len(index_N), np.bool_)
        window_N = self._tables.windows_of(index_N)
        for window in np.unique(window_N).tolist():
            here = np.flatnonzero(window_N == window)
            inside, dead_N[here] = self._dead(window).before(index_N[here])
            before_N[here] = inside + self._before_windows(np.array([window]))
        return before_N, dead_N

    def index_of_live(self, live_N: _Ints) -> _Ints:
        """See :class:`DeadIndices`."""
        index_N, window_N = np.empty(len(live_N), np.int64), self._windows_of_live(live_N)
        for window in np.unique(window_N).tolist():
            here, dead = np.flatnonzero(window_N == window), self._dead(window)
            near_N = live_N[here] + self._before_windows(np.array([window]))
            index_N[here] = near_N + dead.passed(near_N)
        return index_N

    def _windows_of_live(self, live_N: _Ints) -> _Ints:
        """The last window that has at most so many live indices before it: bounds leave one or two, mostly."""
        low_N = np.searchsorted(self._live_most_W1, live_N, "right") - 1
        high_N = np.searchsorted(self._live_least_W1, live_N, "right")
        high_N = np.minimum(high_N, len(self._start_W1) - 1)
        while len(open_ := np.flatnonzero(high_N - low_N > 1)):
            middle = (low_N[open_] + high_N[open_]) // 2
            fits = self._start_W1[middle] - self._before_windows(middle) <= live_N[open_]
            low_N[open_], high_N[open_] = np.where(fits, middle, low_N[open_]), np.where(fits, high_N[open_], middle)
        return low_N

    def _before_windows(self, window_N: _Ints) -> _Ints:
        """Dead indices before each window."""
        before_N: _Ints = self._known_W1[window_N]
        if (before_N < 0).any():
            asked = np.unique(window_N)
            self._known_W1[asked] = self._counted_before(asked)
            before_N = self._known_W1[window_N]
        return before_N

    def _counted_before(self, window_N: _Ints) -> _Ints:
        before_N: _Ints = self._before_G1[np.clip(window_N - self._num_slices + 1, 0, self._num_groups)]
        back_J = np.arange(1, self._num_slices)
        group_NJ = window_N[:, None] - back_J
        inside_NJ = (group_NJ >= 0) & (group_NJ < self._num_groups)
        groups = np.unique(group_NJ[inside_NJ])
        self._count(groups[~self._counted_G[groups]])
        reach_NJ = self._reach_GJ[np.where(inside_NJ, group_NJ, 0), back_J - 1]
        before_N += np.where(inside_NJ, reach_NJ, 0).sum(axis=1)
        return before_N

    def _count(self, groups: _Ints) -> None:
        if not len(groups):
            return
        sizes = self._before_G1[groups + 1] - self._before_G1[groups]
        portion = np.cumsum(sizes) // _PORTION
        for some in np.split(groups, np.flatnonzero(np.diff(portion)) + 1):
            group_Y, slice_Y, _, _ = self._slices(some)
            self._note(some, group_Y, slice_Y)

    def _note(self, groups: _Ints, group_Y: _Ints, slice_Y: _Ints) -> None:
        """Keep what the samples of whole, ascending groups say; threads that do it twice write the same."""
        row_Y = np.searchsorted(groups, group_Y) * self._num_slices + slice_Y
        counts_GJ = np.bincount(row_Y, minlength=len(groups) * self._num_slices).reshape(-1, self._num_slices)
        self._reach_GJ[groups] = np.cumsum(counts_GJ, axis=1)
        self._counted_G[groups] = True  # after what it vouches for

    def _slices(self, groups: _Ints) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        """(group_Y, slice_Y, shard_Y, place_Y) of all dropped samples of some groups: slice of the shard, and place in
        the shard as its slices are cut."""
        row_S = (groups[:, None] * self._width + np.arange(self._width)).reshape(-1)
        row_S = row_S[row_S < len(self._shard_S)]
        shard_S = self._shard_S[row_S]
        count_S = self._count_S[shard_S]
        from_S = self._bound_S[shard_S] - (np.cumsum(count_S) - count_S)
        sample_Y = self._sample_X[np.repeat(from_S, count_S) + np.arange(int(count_S.sum()))]
        shard_Y = np.repeat(shard_S, count_S)
        slice_Y, place_Y = self._tables.slices_of(shard_Y, sample_Y - self._first_S[shard_Y])
        return np.repeat(row_S // self._width, count_S), slice_Y, shard_Y, place_Y

    def _dead(self, window: int) -> _Sorted:
        """The dead indices of a window."""
        with self._lock:
            kept = self._kept.get(window)
            if kept is not None:
                self._kept.move_to_end(window)
                return kept
        groups = np.arange(max(0, window - self._num_slices + 1), min(window, self._num_groups - 1) + 1)
        group_Y, slice_Y, shard_Y, place_Y = self._slices(groups)
        self._note(groups, group_Y, slice_Y)
        here = np.flatnonzero(group_Y + slice_Y == window)
        found = _Sorted(self._tables.index_at(shard_Y[here], slice_Y[here], place_Y[here]))
        with self._lock:
            if self._kept.setdefault(window, found) is found:
                self._num_kept += len(found)
            while self._num_kept > _KEPT_NUMBERS and len(self._kept) > 1:
                self._num_kept -= len(self._kept.popitem(last=False)[1])
        return found
