"""What an order makes a node read: bytes that are live at once, that the first step waits for, and in all.

Every node reads every shard once an epoch, as each sample of a shard may fall to any rank; nothing here depends on how
many nodes there are. A pure function of plan and shard sizes, without touching a file.

Legend: S shards of a source, Q slices, N positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .order import SourceOrder
from .plan import Plan

__all__ = ["SourceTraffic", "Traffic", "order_traffic"]

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SourceTraffic:
    """What one source costs a node; shards without samples count for nothing.

    Attributes:
        name: of the source.
        live_shards, live_bytes: most that its order can hold open at once: window_shards x slices of its largest
            shards. In an epoch's first and last windows it is less; where two epochs meet it may be the last windows
            of the one and the first of the other together.
        cold_shards, cold_bytes: that the first step reads from.
        total_bytes: of the shards whose windows the range enters, each once an epoch.
        epochs: samples read by samples of an epoch.
    """

    name: str
    live_shards: int
    live_bytes: int
    cold_shards: int
    cold_bytes: int
    total_bytes: int
    epochs: float


@dataclass(frozen=True)
class Traffic:
    """The sources that are read in a range of steps, in the plan's order, and their sums."""

    sources: tuple[SourceTraffic, ...]

    @property
    def live_shards(self) -> int:
        """Shards that are open at once."""
        return sum(source.live_shards for source in self.sources)

    @property
    def live_bytes(self) -> int:
        """What a cache needs to hold so that no shard is fetched twice in an epoch."""
        return sum(source.live_bytes for source in self.sources)

    @property
    def cold_bytes(self) -> int:
        """What has to be fetched before the first step."""
        return sum(source.cold_bytes for source in self.sources)

    @property
    def total_bytes(self) -> int:
        """What a node fetches from the first step to the last."""
        return sum(source.total_bytes for source in self.sources)


def order_traffic(plan: Plan, shard_bytes: Mapping[str, _Ints], start_step: int, stop_step: int) -> Traffic:
    """The traffic of steps ``[start_step, stop_step)``; positions that a skip list cuts between them count as read.

    Args:
        plan: what is read when.
        shard_bytes: source name -> bytes_S, what is fetched for each shard.
        start_step, stop_step: the range; the first is where the node starts with an empty cache.

    Raises:
        ConfigError: no such range of steps, or another number of shards than the plan has.
    """
    if not 0 <= start_step < stop_step:
        raise ConfigError("TR-PLAN-STEP", f"no steps {start_step}:{stop_step}", expected="A:B with 0 <= A < B")
    first, stop = plan.first_position(start_step), plan.next_position(stop_step - 1)
    before_S, after_S = plan.mixture.counts_before(first), plan.mixture.counts_before(stop)
    refs = plan.samples(plan.step_positions(start_step))
    found = []
    for number, (name, order) in enumerate(zip(plan.source_names, plan.orders, strict=True)):
        if after_S[number] == before_S[number]:
            continue
        bytes_S = np.asarray(shard_bytes[name], np.int64)
        if len(bytes_S) != len(order.layout.samples_S):
            raise ConfigError(
                "TR-PLAN-SHARDS", f"{len(bytes_S)} shard sizes", f"source {name!r}", str(len(order.layout.samples_S))
            )
        bytes_S = np.where(order.layout.samples_S > 0, bytes_S, 0)
        cold = _shards_of(order, refs.sample_N[refs.source_N == number])
        most = min(order.layout.window_shards * order.layout.slices, int(np.count_nonzero(order.layout.samples_S)))
        rank_2 = np.array([before_S[number], after_S[number] - 1], np.int64)
        found.append(
            SourceTraffic(
                name=name,
                live_shards=most,
                live_bytes=int(np.sort(bytes_S)[len(bytes_S) - most :].sum()),
                cold_shards=len(cold),
                cold_bytes=int(bytes_S[cold].sum()),
                total_bytes=_total_bytes(order, _raw_of_ranks(plan, number, rank_2), bytes_S),
                epochs=int(after_S[number] - before_S[number]) / order.num_samples,
            )
        )
    return Traffic(tuple(found))


def _raw_of_ranks(plan: Plan, source: int, ranks_N: _Ints) -> _Ints:
    """The raw indices that a source's slots read."""
    refs = plan.samples(plan.mixture.position_of(source, ranks_N))
    return plan.orders[source].raw_of(refs.epoch_N, refs.sample_N)


def _shards_of(order: SourceOrder, sample_N: _Ints) -> _Ints:
    """The shards that hold samples, each once."""
    shards: _Ints = np.unique(np.searchsorted(order.layout.first_S, sample_N, "right") - 1)
    return shards


def _total_bytes(order: SourceOrder, raw_2: _Ints, bytes_S: _Ints) -> int:
    """Bytes of the shards in the windows from the first raw index to the last, each shard once an epoch."""
    first_epoch, first = divmod(int(raw_2[0]), order.num_samples)
    last_epoch, last = divmod(int(raw_2[1]), order.num_samples)
    total = max(0, last_epoch - first_epoch - 1) * int(bytes_S.sum())
    for epoch in {first_epoch, last_epoch}:
        start = first if epoch == first_epoch else 0
        stop = last if epoch == last_epoch else order.num_samples - 1
        total += int(bytes_S[_entered(order, epoch, start, stop)].sum())
    return total


def _entered(order: SourceOrder, epoch: int, first: int, last: int) -> _Ints:
    """The shards with samples in the windows that hold an epoch's indices ``first`` to ``last``."""
    tables = order.tables(epoch)
    window_2 = np.searchsorted(tables.window_start_W, np.array([first, last]), "right") - 1
    ends_W = np.append(tables.window_start_W[1:], order.num_samples)
    start, stop = int(tables.window_start_W[window_2[0]]), int(ends_W[window_2[1]])
    size_Q = np.diff(tables.slice_start_Q, append=order.num_samples)
    inside_Q = (tables.slice_start_Q >= start) & (tables.slice_start_Q < stop) & (size_Q > 0)
    shards: _Ints = np.unique(tables.slice_shard_Q[inside_Q])
    return shards
