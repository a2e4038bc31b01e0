"""Dropped samples: rank of a source's slot <-> raw index of its order, when some samples are passed over.

Entries with one stamp P make a regime: from the slot with rank rho(P) on, slots read the raw indices from r on whose
samples are not in X, where X holds all samples dropped by this stamp or earlier ones, and r is the raw index that the
regime before would have read at that slot. Every epoch has n - |X| live indices, so both directions are closed forms
up to a binary search in the sorted dead indices of one epoch, which the inverse order gives.

Legend: N slots or indices, J regimes, X dropped samples.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from .dead import DeadIndices, dead_indices
from .order import SourceOrder

__all__ = ["DropRegime", "SourceDrops"]

_Ints = NDArray[np.int64]
_KEPT_NUMBERS = 1 << 22
_LEAST_KEPT = 8  # also of millions of samples, of which it holds those of a few windows


@dataclass(frozen=True)
class DropRegime:
    """Attributes:
    start_rank: rank of the source's first slot at or after the stamp.
    sample_X: samples dropped from there on, sorted and unique, those of earlier regimes included.
    """

    start_rank: int
    sample_X: _Ints


class SourceDrops:
    """The drops of one source.

    Args:
        order: its order.
        regimes: by ascending stamp, each with all samples of the ones before.
        name: its name, for messages.

    Raises:
        RefusedError: nothing would be left of the source.
    """

    def __init__(self, order: SourceOrder, regimes: Sequence[DropRegime], name: str) -> None:
        if regimes and len(regimes[-1].sample_X) >= order.num_samples:
            raise RefusedError(
                "TR-SKIP-EMPTY",
                f"the skip list drops all {order.num_samples} samples of source {name!r}",
                f"source {name!r}",
                "a mixture stage that gives the source weight 0",
            )
        self._order = order
        self._sample_JX = [np.empty(0, np.int64), *(regime.sample_X for regime in regimes)]
        self._rank_J = np.array([0, *(regime.start_rank for regime in regimes)], np.int64)
        self._kept: OrderedDict[tuple[int, int], DeadIndices] = OrderedDict()
        self._max_kept = max(_LEAST_KEPT, _KEPT_NUMBERS // max(1, len(self._sample_JX[-1])))
        self._lock = threading.Lock()
        raw_J, live_J = [0], [0]
        for number in range(1, len(self._rank_J)):
            rank = np.array([self._rank_J[number] - self._rank_J[number - 1] + live_J[-1]])
            raw_J.append(int(self._raw_of_live(number - 1, rank)[0]))
            live_J.append(int(self._live_before(number, np.array([raw_J[-1]]))[0][0]))
        self._raw_J, self._live_J = np.array(raw_J, np.int64), np.array(live_J, np.int64)

    def raw_of_rank(self, rank_N: _Ints) -> _Ints:
        """The raw index that each slot reads, by its rank."""
        regime_N = np.searchsorted(self._rank_J, rank_N, "right") - 1
        raw_N = np.empty(len(rank_N), np.int64)
        for regime in np.unique(regime_N):
            here = regime_N == regime
            raw_N[here] = self._raw_of_live(int(regime), rank_N[here] - self._rank_J[regime] + self._live_J[regime])
        return raw_N

    def rank_of_raw(self, raw_N: _Ints) -> _Ints:
        """The rank of the slot that reads each raw index; -1 where it is passed over."""
        regime_N = np.searchsorted(self._raw_J, raw_N, "right") - 1
        rank_N = np.empty(len(raw_N), np.int64)
        for regime in np.unique(regime_N):
            here = regime_N == regime
            live, dead = self._live_before(int(regime), raw_N[here])
            rank_N[here] = np.where(dead, -1, live - self._live_J[regime] + self._rank_J[regime])
        return rank_N

    def _dead(self, regime: int, epoch: int) -> DeadIndices:
        with self._lock:
            kept = self._kept.get((regime, epoch))
            if kept is not None:
                self._kept.move_to_end((regime, epoch))
                return kept
        found = dead_indices(self._order, epoch, self._sample_JX[regime])
        with self._lock:
            self._kept[regime, epoch] = found
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return found

    def _raw_of_live(self, regime: int, live_N: _Ints) -> _Ints:
        """The raw index with each number of live ones (of this regime, counted from raw index 0) before it."""
        num_dead = len(self._sample_JX[regime])
        if not num_dead:
            return live_N
        num_samples = self._order.num_samples
        epoch_N, live_in_epoch_N = np.divmod(live_N, num_samples - num_dead)
        raw_N: _Ints = epoch_N * num_samples
        for epoch in np.unique(epoch_N):
            here = epoch_N == epoch
            raw_N[here] += self._dead(regime, int(epoch)).index_of_live(live_in_epoch_N[here])
        return raw_N

    def _live_before(self, regime: int, raw_N: _Ints) -> tuple[_Ints, NDArray[np.bool_]]:
        """Live raw indices below each raw index, and whether that itself is dead."""
        num_dead = len(self._sample_JX[regime])
        if not num_dead:
            return raw_N, np.zeros(len(raw_N), np.bool_)
        num_samples = self._order.num_samples
        epoch_N, index_N = np.divmod(raw_N, num_samples)
        live_N, dead_N = epoch_N * (num_samples - num_dead) + index_N, np.zeros(len(raw_N), np.bool_)
        for epoch in np.unique(epoch_N):
            here = np.flatnonzero(epoch_N == epoch)
            before, dead_N[here] = self._dead(regime, int(epoch)).before(index_N[here])
            live_N[here] -= before
        return live_N, dead_N
