"""The order of one source in one epoch: index <-> sample, by small tables; those of several epochs can be joined.

Shards are permuted and taken in groups of ``window_shards``; each is cut in ``slices`` slices; slice j of group g lies
in window g + j. So a shard is live for ``slices`` windows and never more than ``window_shards`` shards become live at
once. Inside its window an index is permuted, which picks a slice and a place in it; inside its shard that place is
permuted again, so slices hold other samples in every epoch. Shards may have any sizes, also 0.

Legend: S shards, W windows, Q slices, J slices of a shard, N indices. "Index" counts an epoch's samples in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .permute import CELL_LIMIT, Cells, keyed_cells, mix64, permute, unpermute
from .rows import RowIndex

__all__ = ["MOST_SLICES", "EpochTables", "ShardLayout", "build_tables", "join_tables", "shard_layout"]

MOST_SLICES = 1024

_Ints = NDArray[np.int64]
_SHARD_BITS = 24
_GOLDEN = 0x9E3779B97F4A7C15
_SALTS = {"shard order": 1, "window": 2, "shard": 3}


@dataclass(frozen=True)
class ShardLayout:
    """What every epoch of a source has in common.

    Attributes:
        samples_S: samples of each shard. first_S: source sample number of each shard's first sample.
        num_samples: their sum.
        window_shards, slices: the shape of the order.
    """

    samples_S: _Ints
    first_S: _Ints
    num_samples: int
    window_shards: int
    slices: int

    @property
    def num_slices(self) -> int:
        """Length of the longest table of an epoch."""
        return len(self.samples_S) * self.slices


@dataclass(frozen=True)
class EpochTables:
    """The order of one epoch, or of several laid end to end.

    Attributes:
        window_start_W: first index of each window. window_cells: their permutations. epoch_W: the epoch they lie in.
        slice_start_Q: first index of each slice before the window's permutation. slice_shard_Q: its shard (row here).
        slice_shift_Q: place in the shard minus index, for all of the slice.
        first_S: source sample number of each shard's first sample. shard_cells: their permutations.
        slice_of_SJ: row of each shard's slices.
    """

    window_start_W: _Ints
    window_cells: Cells
    epoch_W: _Ints
    slice_start_Q: _Ints
    slice_shard_Q: _Ints
    slice_shift_Q: _Ints
    first_S: _Ints
    shard_cells: Cells
    slice_of_SJ: _Ints

    @cached_property
    def _windows(self) -> RowIndex:
        return RowIndex.build(self.window_start_W)

    @cached_property
    def _slices(self) -> RowIndex:
        return RowIndex.build(self.slice_start_Q)

    def samples_at(self, index_N: _Ints) -> tuple[_Ints, _Ints]:
        """(epoch_N, sample_N): epoch and source sample number at each index."""
        window_N, shuffled_N = self._inside_windows(index_N, inverse=False)
        slice_N = self._slices.rows_of(shuffled_N)
        shuffled_N += self.slice_shift_Q[slice_N]
        shard_N = self.slice_shard_Q[slice_N]
        sample_N = permute(shuffled_N, self.shard_cells.at(shard_N))
        sample_N += self.first_S[shard_N]
        return self.epoch_W[window_N], sample_N

    def index_of(self, shard_N: _Ints, place_N: _Ints) -> _Ints:
        """Index of each sample, given as row of its shard here and its number inside the shard."""
        return self.index_at(shard_N, *self.slices_of(shard_N, place_N))

    def slices_of(self, shard_N: _Ints, place_N: _Ints) -> tuple[_Ints, _Ints]:
        """(slice_N, shuffled_N): which of its shard's slices holds each sample, and its place in the shard as that is
        cut in slices; samples as in :meth:`index_of`."""
        cells = self.shard_cells.at(shard_N)
        shuffled_N = unpermute(place_N, cells)
        num_slices = self.slice_of_SJ.shape[1]
        # slice j of n samples is [n j // J, n (j + 1) // J)
        return (shuffled_N * num_slices + num_slices - 1) // cells.size_C, shuffled_N

    def index_at(self, shard_N: _Ints, slice_N: _Ints, shuffled_N: _Ints) -> _Ints:
        """Index of each sample, from what :meth:`slices_of` says of it."""
        row_N = self.slice_of_SJ[shard_N, slice_N]
        return self._inside_windows(shuffled_N - self.slice_shift_Q[row_N], inverse=True)[1]

    def windows_of(self, index_N: _Ints) -> _Ints:
        """The window that holds each index."""
        return self._windows.rows_of(index_N)

    def _inside_windows(self, index_N: _Ints, *, inverse: bool) -> tuple[_Ints, _Ints]:
        window_N = self._windows.rows_of(index_N)
        start_N = self.window_start_W[window_N]
        cells = self.window_cells.at(window_N)
        moved_N = (unpermute if inverse else permute)(index_N - start_N, cells)
        moved_N += start_N
        return window_N, moved_N


def shard_layout(samples_S: Sequence[int] | _Ints, window_shards: int, slices: int) -> ShardLayout:
    """Check and lay out a source's shards.

    Raises:
        ConfigError: no usable window or slice count, or sizes that no order can hold.
    """
    samples_S = np.array(samples_S, np.int64)
    if not (1 <= window_shards < CELL_LIMIT and 1 <= slices <= MOST_SLICES):
        raise ConfigError(
            "TR-ORDER-SHAPE",
            f"window of {window_shards} shards, {slices} slices",
            expected=f"1 .. {CELL_LIMIT - 1} shards, 1 .. {MOST_SLICES} slices",
        )
    num_shards = len(samples_S)
    if num_shards and int(samples_S.min()) < 0:
        raise ConfigError("TR-ORDER-SHAPE", "a shard with a negative number of samples", expected="0 or more")
    largest = int(samples_S.max()) if num_shards else 0
    if num_shards >= 1 << _SHARD_BITS or (largest + slices) * min(window_shards, num_shards) >= CELL_LIMIT:
        raise ConfigError(
            "TR-ORDER-SHAPE",
            f"{num_shards} shards of up to {largest} samples in windows of {window_shards}",
            expected=f"less than 2^{_SHARD_BITS} shards and 2^31 samples in a window",
            next_command="a smaller window_shards",
        )
    samples_S.setflags(write=False)
    return ShardLayout(samples_S, np.cumsum(samples_S) - samples_S, int(samples_S.sum()), window_shards, slices)


def _keys(epoch_key: int, purpose: str, count: int) -> NDArray[np.uint64]:
    """``count`` keys of an epoch for one purpose."""
    start = np.array([(epoch_key + (_SALTS[purpose] << 56)) % (1 << 64)], np.uint64)
    return mix64(mix64(start) + np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN))


def _shard_order(epoch_key: int, num_shards: int) -> _Ints:
    """A keyed permutation of the shards: sorted by hash, the number itself breaking ties."""
    low = np.uint64((1 << _SHARD_BITS) - 1)
    tagged_S = (_keys(epoch_key, "shard order", num_shards) & ~low) | np.arange(num_shards, dtype=np.uint64)
    tagged_S.sort()
    return (tagged_S & low).astype(np.int64)


def build_tables(layout: ShardLayout, epoch: int, epoch_key: int) -> EpochTables:
    """The tables of the epoch whose 64-bit key is given; linear in the number of shards."""
    num_shards, width, slices = len(layout.samples_S), layout.window_shards, layout.slices
    order_S = _shard_order(epoch_key, num_shards)
    group_S = np.arange(num_shards) // width
    num_groups = -(-num_shards // width)
    num_windows = num_groups + slices - 1 if num_shards else 0
    group_size_G = np.bincount(group_S, minlength=num_groups)
    count_WJ = np.zeros((num_windows, slices), np.int64)
    for j in range(slices if num_shards else 0):
        count_WJ[j : j + num_groups, j] = group_size_G
    row_WJ = (np.cumsum(count_WJ) - count_WJ.reshape(-1)).reshape(count_WJ.shape)
    size_S = layout.samples_S[order_S]
    slice_of_SJ = np.empty((num_shards, slices), np.int64)
    start_in_shard_Q, size_Q, shard_Q = (np.empty(num_shards * slices, np.int64) for _ in range(3))
    for j in range(slices):
        row_S = row_WJ[group_S + j, j] + np.arange(num_shards) - group_S * width
        slice_of_SJ[order_S, j] = row_S
        shard_Q[row_S] = order_S
        start_in_shard_Q[row_S] = size_S * j // slices
        size_Q[row_S] = size_S * (j + 1) // slices - size_S * j // slices
    ends_Q = np.concatenate([np.zeros(1, np.int64), np.cumsum(size_Q)])
    window_start_W = ends_Q[row_WJ[:, 0]]
    window_size_W = np.diff(window_start_W, append=ends_Q[-1])
    return EpochTables(
        window_start_W=window_start_W,
        window_cells=keyed_cells(window_size_W, _keys(epoch_key, "window", num_windows)),
        epoch_W=np.full(num_windows, epoch, np.int64),
        slice_start_Q=ends_Q[:-1],
        slice_shard_Q=shard_Q,
        slice_shift_Q=start_in_shard_Q - ends_Q[:-1],
        first_S=layout.first_S,
        shard_cells=keyed_cells(layout.samples_S, _keys(epoch_key, "shard", num_shards)),
        slice_of_SJ=slice_of_SJ,
    )


def join_tables(parts: Sequence[EpochTables], start_P: _Ints) -> EpochTables:
    """Tables laid end to end: indices of part p are shifted by ``start_P[p]``, shard rows by all shards before."""
    shards_P = np.cumsum([0] + [len(part.first_S) for part in parts])
    slices_P = np.cumsum([0] + [len(part.slice_start_Q) for part in parts])
    numbered = list(enumerate(parts))
    return EpochTables(
        window_start_W=np.concatenate([part.window_start_W + start_P[p] for p, part in numbered]),
        window_cells=Cells.join([part.window_cells for part in parts]),
        epoch_W=np.concatenate([part.epoch_W for part in parts]),
        slice_start_Q=np.concatenate([part.slice_start_Q + start_P[p] for p, part in numbered]),
        slice_shard_Q=np.concatenate([part.slice_shard_Q + shards_P[p] for p, part in numbered]),
        slice_shift_Q=np.concatenate([part.slice_shift_Q - start_P[p] for p, part in numbered]),
        first_S=np.concatenate([part.first_S for part in parts]),
        shard_cells=Cells.join([part.shard_cells for part in parts]),
        slice_of_SJ=np.concatenate([part.slice_of_SJ + slices_P[p] for p, part in numbered]),
    )
