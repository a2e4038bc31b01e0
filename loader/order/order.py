"""The endless order of each source: raw index <-> (epoch, sample), and of many sources in one pass.

Raw index u of a source of n samples is index u mod n of epoch u // n. Tables are built on demand, a few are kept, and
all results are pure functions of (shards, key, window_shards, slices), whatever was asked before, by whichever thread.

Legend: N indices, P (source, epoch) pairs, S sources.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .permute import derive_key
from .tables import EpochTables, build_tables, join_tables, shard_layout

__all__ = ["OrderSet", "SourceOrder", "source_key"]

_Ints = NDArray[np.int64]
_KEPT_SLICES = 1 << 20
_KEPT_EPOCHS = 256  # of a small source; more would only add up, 6 KB each, over a long run
_JOINED_SLICES = 1 << 18
_STEPS_AHEAD = 32
_EPOCH_ROWS = 10_000  # rows of a snapshot that cost more to join than an epoch of a few shards to build
_PORTION = 1 << 13


class SourceOrder:
    """The order of one source.

    Args:
        shard_samples: samples of each shard.
        key: 64-bit key, of seed and source name.
        window_shards: shards shuffled together.
        slices: staggered slices a shard is cut in.

    Raises:
        ConfigError: sizes that no order can hold.
    """

    def __init__(self, shard_samples: Sequence[int] | _Ints, key: int, window_shards: int = 8, slices: int = 2) -> None:
        self.layout = shard_layout(shard_samples, window_shards, slices)
        self._key = key
        self._kept: OrderedDict[int, EpochTables] = OrderedDict()
        self._max_kept = min(_KEPT_EPOCHS, max(2, _KEPT_SLICES // max(1, self.layout.num_slices + 64)))
        self._lock = threading.Lock()

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self.layout.num_samples

    def tables(self, epoch: int) -> EpochTables:
        """The tables of one epoch, from the cache if they are there."""
        with self._lock:
            kept = self._kept.get(epoch)
            if kept is not None:
                self._kept.move_to_end(epoch)
                return kept
        built = build_tables(self.layout, epoch, derive_key("epoch", self._key, epoch))
        with self._lock:
            self._kept[epoch] = built
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return built

    def locate(self, raw_N: _Ints) -> tuple[_Ints, _Ints]:
        """(epoch_N, sample_N): epoch and source sample number at each raw index >= 0."""
        epoch_N, index_N = np.divmod(np.asarray(raw_N, np.int64), self.num_samples)
        sample_N = np.empty(len(index_N), np.int64)
        for epoch, here in _portions(epoch_N):
            sample_N[here] = self.tables(epoch).samples_at(index_N[here])[1]
        return epoch_N, sample_N

    def raw_of(self, epoch_N: _Ints, sample_N: _Ints) -> _Ints:
        """Raw index of each source sample number in each epoch: the inverse of :meth:`locate`."""
        epoch_N, sample_N = np.asarray(epoch_N, np.int64), np.asarray(sample_N, np.int64)
        if len(sample_N) and not 0 <= int(sample_N.min()) <= int(sample_N.max()) < self.num_samples:
            raise ValueError(f"sample numbers must lie in 0 .. {self.num_samples - 1}")
        shard_N = np.searchsorted(self.layout.first_S, sample_N, "right") - 1
        place_N = sample_N - self.layout.first_S[shard_N]
        raw_N = epoch_N * self.num_samples
        for epoch, here in _portions(epoch_N):
            raw_N[here] += self.tables(epoch).index_of(shard_N[here], place_N[here])
        return raw_N


def _portions(epoch_N: _Ints) -> Iterator[tuple[int, slice | _Ints]]:
    """(epoch, which of the N), in pieces whose arrays stay in the processor's cache."""
    if len(epoch_N) and epoch_N[0] == epoch_N[-1] and (epoch_N == epoch_N[0]).all():
        for start in range(0, len(epoch_N), _PORTION):
            yield int(epoch_N[0]), slice(start, start + _PORTION)
        return
    by_epoch = np.argsort(epoch_N, kind="stable")
    borders = np.flatnonzero(np.diff(epoch_N[by_epoch])) + 1
    for one in np.split(by_epoch, borders):
        for start in range(0, len(one), _PORTION):
            yield int(epoch_N[one[0]]), one[start : start + _PORTION]


@dataclass(frozen=True)
class _Joined:
    """Consecutive epochs of every source, laid end to end.

    Attributes:
        epoch_S, stop_S: the epochs of each source that lie in the tables; none of a source left out.
        low_S: first raw index of each source that lies in the tables. span_S: how many do, u8; 0 for sources left out.
        start_S: index in the tables of that first one.
        tables: the tables.
    """

    epoch_S: _Ints
    stop_S: _Ints
    low_S: _Ints
    span_S: NDArray[np.uint64]
    start_S: _Ints
    tables: EpochTables


class OrderSet:
    """The orders of all sources of a plan, looked up together: one pass of array operations, however many sources."""

    def __init__(self, orders: Sequence[SourceOrder]) -> None:
        self.orders = tuple(orders)
        self._size_S = np.array([max(1, order.num_samples) for order in orders], np.int64)
        self._num_slices_S = np.array([order.layout.num_slices for order in orders], np.int64)
        self._last: _Joined | None = None

    def locate(self, source_N: NDArray[np.int32], raw_N: _Ints) -> tuple[_Ints, _Ints]:
        """(epoch_N, sample_N) of raw index ``raw_N`` >= 0 of each source."""
        if not len(raw_N):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        joined = self._last  # one read: another thread may replace it, a snapshot itself never changes
        index_N = self._index_in(joined, source_N, raw_N) if joined is not None else None
        if joined is None or index_N is None:
            joined = self._join(source_N, raw_N // self._size_S[source_N], joined)
            index_N = self._index_in(joined, source_N, raw_N) if joined is not None else None
            if joined is None or index_N is None:
                return raw_N // self._size_S[source_N], self._one_by_one(source_N, raw_N)
            self._last = joined
        return joined.tables.samples_at(index_N)

    def _index_in(self, joined: _Joined, source_N: NDArray[np.int32], raw_N: _Ints) -> _Ints | None:
        """Where the raw indices lie in the tables; None if one of them does not."""
        which = source_N if len(self.orders) > 1 else slice(None)  # one source broadcasts: nothing to gather
        index_N: _Ints = raw_N - joined.low_S[which]
        if (index_N.view(np.uint64) >= joined.span_S[which]).any():  # a negative one is huge
            return None
        index_N += joined.start_S[which]
        return index_N

    def _one_by_one(self, source_N: NDArray[np.int32], raw_N: _Ints) -> _Ints:
        sample_N = np.empty(len(raw_N), np.int64)
        for source in np.unique(source_N):
            here = source_N == source
            sample_N[here] = self.orders[source].locate(raw_N[here])[1]
        return sample_N

    def _join(self, source_N: NDArray[np.int32], epoch_N: _Ints, last: _Joined | None) -> _Joined | None:
        """A snapshot that covers these epochs, or None if they lie too far apart for one to pay.

        It keeps what the last one holds of the sources not asked for, and takes epochs to come of small sources: a
        step reads some of many sources and each source's epochs end at other steps, and a snapshot at each would cost
        more than all else (3 ms a step of 1,024 samples of 256 sources).
        """
        num_sources = len(self.orders)
        low_S, stop_S = np.full(num_sources, np.iinfo(np.int64).max), np.zeros(num_sources, np.int64)
        np.minimum.at(low_S, source_N, epoch_N)
        np.maximum.at(stop_S, source_N, epoch_N + 1)
        low_S = np.minimum(low_S, stop_S)
        if (stop_S - low_S > len(epoch_N)).any():
            return None
        rows_S = self._num_slices_S + 64
        at_once = int(rows_S[stop_S > low_S].sum())
        most = max(_JOINED_SLICES, 2 * at_once)
        ahead_S = _STEPS_AHEAD * np.bincount(source_N, minlength=num_sources) // self._size_S
        ahead_S = np.minimum(ahead_S, at_once // _EPOCH_ROWS)
        for low, stop in (self._with_neighbours(low_S, stop_S, ahead_S, last), (low_S, stop_S)):
            if int(((stop - low) * rows_S).sum()) <= most:
                return self._lay_out(low, stop)
        return None

    @staticmethod
    def _with_neighbours(low_S: _Ints, stop_S: _Ints, ahead_S: _Ints, last: _Joined | None) -> tuple[_Ints, _Ints]:
        """The epochs asked for, with those worth having beside them."""
        asked_S = stop_S > low_S
        if last is None:
            return low_S, stop_S + ahead_S
        both_low_S, both_stop_S = np.minimum(low_S, last.epoch_S), np.maximum(stop_S, last.stop_S)
        # an epoch and the one after stay together: who asks here and there finds both
        keep_S = asked_S & (last.stop_S > last.epoch_S) & (both_stop_S - both_low_S <= 2)
        low_S = np.where(asked_S, np.where(keep_S, both_low_S, low_S), last.epoch_S)
        stop_S = np.where(asked_S, np.where(keep_S, both_stop_S, stop_S + ahead_S), last.stop_S)
        return low_S, stop_S

    def _lay_out(self, low_S: _Ints, stop_S: _Ints) -> _Joined:
        start_S, start = np.zeros(len(self.orders), np.int64), 0
        parts, starts = [], []
        for source in np.flatnonzero(stop_S > low_S).tolist():
            start_S[source] = start
            for epoch in range(int(low_S[source]), int(stop_S[source])):
                parts.append(self.orders[source].tables(epoch))
                starts.append(start)
                start += int(self._size_S[source])
        span_S = ((stop_S - low_S) * self._size_S).astype(np.uint64)
        tables = join_tables(parts, np.array(starts, np.int64))
        return _Joined(low_S, stop_S, low_S * self._size_S, span_S, start_S, tables)


def source_key(seed: int, name: str) -> int:
    """The key of a source's order: it depends on its name, not on which other sources there are."""
    return derive_key("source", seed, name)
