"""The Plan: sources, order, mixture, batches and skips as one pure function, in both directions.

    position -> (source, rank)        mixture
    (source, rank) -> raw index       drops: a dropped sample is replaced by its source's next one
    raw index -> (epoch, sample)      order
    step <-> positions                schedule over the positions that are not cut

A Plan is immutable; what it caches is guarded, so threads may share it. Entries act from their stamp on.

Legend: N positions or samples, B positions of a step, S sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .drops import DropRegime, SourceDrops
from .masks import MaskQuery, Masks
from .mixture import Mixture, MixtureStage, compile_mixture
from .order import OrderSet, SourceOrder, source_key
from .ranges import Ranges, merged, union_of
from .sample_refs import PORTION, ReadOn, SampleRefs
from .schedule import BatchStage, Schedule
from .skips import DocumentResolver, SkipEntry, SkipList
from .start import PlanStart
from .weights import POSITION_LIMIT

__all__ = ["ORDER_VERSION", "BatchStage", "MixtureStage", "Plan", "PlanConfig", "SampleRefs", "SourceShape"]

ORDER_VERSION = 1
_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SourceShape:
    """A source's name and the samples of each of its shards, in shard order."""

    name: str
    shard_samples: Sequence[int] | _Ints


@dataclass(frozen=True, eq=False)
class PlanConfig:
    """What a Plan is made of.

    Attributes:
        sources: unique names; their order takes no part in what is read when.
        seed: of order and blocks, >= 0.
        stages: of the mixture, on multiples of 256, the first at 0.
        batch: batch sizes, the first at 0.
        window_shards: shards shuffled together.
        slices: staggered slices a shard is cut in.
        start: where it takes over from a plan over other data; None: it begins at position 0.
        stop_position: first position that is not planned; a step that would reach it does not exist.
    """

    sources: tuple[SourceShape, ...]
    seed: int
    stages: tuple[MixtureStage, ...]
    batch: tuple[BatchStage, ...]
    window_shards: int = 8
    slices: int = 2
    start: PlanStart | None = None
    stop_position: int = POSITION_LIMIT


class Plan:
    """What is read when.

    Args:
        config: sources, seed, stages.
        skips: entries, each acting from its stamp on.
        resolver: finds documents; needed if an entry drops documents.

    Raises:
        ConfigError: stages, batches or sources that mean nothing; an entry that names an unknown source, samples that
            the source does not have, or a document that no source holds.
        RefusedError: the entries drop every sample of a source, or every position.
    """

    def __init__(
        self, config: PlanConfig, skips: SkipList | None = None, resolver: DocumentResolver | None = None
    ) -> None:
        self.config = config
        self.skips = skips if skips is not None else SkipList()
        self.source_names = tuple(source.name for source in config.sources)
        self._number = {name: number for number, name in enumerate(self.source_names)}
        if not config.sources or len(self._number) != len(config.sources):
            raise ConfigError("TR-PLAN-SOURCES", "no sources, or one name twice", expected="unique source names")
        self.mixture: Mixture = compile_mixture(self.source_names, config.stages, config.seed)
        self.orders = tuple(
            SourceOrder(source.shard_samples, source_key(config.seed, source.name), config.window_shards, config.slices)
            for source in config.sources
        )
        self._order_set = OrderSet(self.orders)
        start = config.start or PlanStart(0, 0, "")
        self._first_position = start.position
        self._carried_S = np.array([start.carried.get(name, 0) for name in self.source_names], np.int64)
        self._first_rank_S = self.mixture.counts_before(self._first_position) - self._carried_S
        self._check_sources()
        self._resolver = resolver
        self._drops = self._compile_drops()
        self.cut: Ranges = _cut_positions(self.skips.entries, config.stop_position)
        self.schedule = Schedule(config.batch, self.cut)
        self._masks = Masks(self.skips.entries, self._number)
        self._read_on = ReadOn()

    def _check_sources(self) -> None:
        for stage in self.mixture.stages:
            empty = [name for name in stage.weights if self.orders[self._number[name]].num_samples == 0]
            if empty:
                raise ConfigError(
                    "TR-MIXTURE-EMPTY",
                    f"source {empty[0]!r} has weight but no sample",
                    f"mixture stage at position {stage.start}",
                    "weight 0 for a source without samples",
                )
        for entry in self.skips.entries:
            if entry.source is not None and entry.source not in self._number:
                raise ConfigError(
                    "TR-SKIP-SOURCE", f"a skip entry names source {entry.source!r}", None, ", ".join(self.source_names)
                )
            if entry.kind == "samples" and entry.source is not None:
                num_samples = self.orders[self._number[entry.source]].num_samples
                if int(entry.ranges_R2[:, 1].max()) > num_samples:
                    raise ConfigError(
                        "TR-SKIP-SAMPLES",
                        f"a skip entry names sample {int(entry.ranges_R2[:, 1].max()) - 1} of source {entry.source!r}",
                        expected=f"0 .. {num_samples - 1}",
                    )

    def dropped_samples(self, entry: SkipEntry) -> dict[int, _Ints]:
        """Sorted sample numbers, by source number, that an entry of mode drop takes out; empty for other entries.

        Raises:
            ConfigError: it drops documents and there is no resolver, or a document that no source holds.
        """
        if entry.mode != "drop" or entry.kind == "positions":
            return {}
        if entry.kind == "samples":
            assert entry.source is not None
            return {self._number[entry.source]: entry.acting.numbers()}
        found: dict[int, list[_Ints]] = {}
        for document in entry.documents:
            places = self._resolver.samples_of_document(document) if self._resolver is not None else ()
            if not places:
                raise ConfigError(
                    "TR-SKIP-DOCUMENT", f"a skip entry drops document {document:016x}", None, "one that a source holds"
                )
            for name, sample_X in places:
                found.setdefault(self._number[name], []).append(np.asarray(sample_X, np.int64))
        return {source: np.unique(np.concatenate(parts)) for source, parts in found.items()}

    def _compile_drops(self) -> dict[int, SourceDrops]:
        by_stamp: dict[int, dict[int, list[_Ints]]] = {}
        for entry in self.skips.entries:
            for source, sample_X in self.dropped_samples(entry).items():
                by_stamp.setdefault(source, {}).setdefault(entry.stamp, []).append(sample_X)
        all_stamps = {max(stamp, self._first_position) for stamps in by_stamp.values() for stamp in stamps}
        ranks_at = {stamp: self.mixture.counts_before(stamp) for stamp in all_stamps}
        drops = {}
        for source, stamps in by_stamp.items():
            regimes, all_X = [], np.empty(0, np.int64)
            for stamp in sorted(stamps):
                all_X = merged([all_X, *stamps[stamp]])
                start_rank = int(ranks_at[max(stamp, self._first_position)][source] - self._first_rank_S[source])
                regimes.append(DropRegime(start_rank, all_X))
            drops[source] = SourceDrops(self.orders[source], regimes, self.source_names[source])
        return drops

    def source_number(self, name: str) -> int:
        """The number of a source.

        Raises:
            ConfigError: there is no such source.
        """
        if name not in self._number:
            raise ConfigError("TR-PLAN-SOURCE", f"no source {name!r}", expected=", ".join(self.source_names))
        return self._number[name]

    def samples(self, positions_N: _Ints) -> SampleRefs:
        """What each position reads (also what a cut one would have read).

        Raises:
            ValueError: a position is negative or not below 2^36.
            ConfigError: a position lies before the plan's start.
        """
        positions_N = np.asarray(positions_N, np.int64)
        if self._first_position and len(positions_N) and int(positions_N.min()) < self._first_position:
            start = self._first_position
            raise ConfigError("TR-PLAN-BEFORE", f"positions before {start} are another plan's", expected=f">= {start}")
        if len(positions_N) > PORTION:  # arrays that stay in the processor's cache
            starts = range(0, len(positions_N), PORTION)
            return SampleRefs.join([self._samples(positions_N[start : start + PORTION]) for start in starts])
        return self._read_on.samples(positions_N, self._samples)

    def _samples(self, positions_N: _Ints) -> SampleRefs:
        source_N, rank_N = self.mixture.locate(positions_N)
        if self._first_position:
            rank_N = rank_N - self._first_rank_S[source_N]
        raw_N = rank_N
        if self._drops:
            raw_N = rank_N.copy()
            for source, drops in self._drops.items():
                here = np.flatnonzero(source_N == source)
                if len(here):
                    raw_N[here] = drops.raw_of_rank(rank_N[here])
        epoch_N, sample_N = self._order_set.locate(source_N, raw_N)
        return SampleRefs(positions_N, source_N, rank_N, epoch_N, sample_N)

    def raw_before(self, position: int) -> dict[str, int]:
        """Source -> raw index of its order that its first slot at or behind ``position`` reads."""
        rank_S = self.mixture.counts_before(position) - self._first_rank_S
        raw = {n: int(drops.raw_of_rank(rank_S[n : n + 1])[0]) for n, drops in self._drops.items()}
        return {name: raw.get(number, int(rank_S[number])) for number, name in enumerate(self.source_names)}

    def step_positions(self, step: int) -> _Ints:
        """positions_B: the surviving positions of a step, ascending.

        Raises:
            ConfigError: no such step.
        """
        return self.schedule.positions(step)

    def first_position(self, step: int) -> int:
        """The first surviving position of a step.

        Raises:
            ConfigError: no such step.
        """
        return int(self.cut.outside_at(np.array([self.schedule.live_range(step)[0]], np.int64))[0])

    def step_samples(self, step: int) -> int:
        """How many surviving positions a step has.

        Raises:
            ConfigError: no such step.
        """
        start, stop = self.schedule.live_range(step)
        return stop - start

    def next_position(self, step: int) -> int:
        """The first position that a step leaves unconsumed: its last one + 1. Step -1 leaves all: 0.

        Raises:
            ConfigError: no such step.
        """
        if step < 0:
            return 0
        return int(self.cut.outside_at(np.array([self.schedule.live_range(step)[1] - 1], np.int64))[0]) + 1

    @property
    def num_steps(self) -> int:
        """Steps of the plan, counted from step 0 of the run; each reads a whole batch."""
        return self.schedule.num_steps

    def step_of(self, position: int) -> int | None:
        """The step that reads a position; None where none does, as in :meth:`steps_of`."""
        step = int(self.schedule.steps_of(np.array([position], np.int64))[0])
        return None if step < 0 else step

    def steps_of(self, positions_N: _Ints) -> _Ints:
        """The step that reads each position; -1 where it is cut, or lies behind the last whole step."""
        return self.schedule.steps_of(np.asarray(positions_N, np.int64))

    def positions_of_sample(self, source: int | str, sample: int, stop_position: int) -> _Ints:
        """All positions below ``stop_position`` that read a sample, over all epochs, ascending; cut ones included."""
        return self.positions_of_samples(source, np.array([sample], np.int64), stop_position)[0]

    def positions_of_samples(self, source: int | str, sample_N: _Ints, stop_position: int) -> tuple[_Ints, _Ints]:
        """(position_M, which_M): all positions below ``stop_position`` that read one of the samples, ascending.

        Cut positions are included; ``which_M`` is an index into ``sample_N``.

        Raises:
            ConfigError: no such source. ValueError: no such sample.
        """
        number = self.source_number(source) if isinstance(source, str) else int(source)
        sample_N = np.asarray(sample_N, np.int64)
        order, drops = self.orders[number], self._drops.get(number)
        first_rank = int(self._first_rank_S[number])
        num_slots = self.mixture.rank_before(number, stop_position) - first_rank
        if num_slots <= 0 or not len(sample_N):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        last_raw = num_slots - 1 if drops is None else int(drops.raw_of_rank(np.array([num_slots - 1]))[0])
        num_epochs = last_raw // order.num_samples + 1
        which_M = np.tile(np.arange(len(sample_N)), num_epochs)
        epoch_M = np.repeat(np.arange(num_epochs), len(sample_N))
        raw_M = order.raw_of(epoch_M, sample_N[which_M])
        rank_M = raw_M if drops is None else drops.rank_of_raw(raw_M)
        inside_M = (rank_M >= int(self._carried_S[number])) & (rank_M < num_slots)
        position_M = self.mixture.position_of(number, rank_M[inside_M] + first_rank)
        below_M = (position_M >= 0) & (position_M < stop_position)
        position_M, which_M = position_M[below_M], which_M[inside_M][below_M]
        by_position = np.argsort(position_M, kind="stable")
        return position_M[by_position], which_M[by_position]

    def mask_of(
        self,
        position_S: _Ints,
        source_S: _Ints,
        sample_S: _Ints,
        segment_S: _Ints,
        document_S: NDArray[np.uint64],
    ) -> NDArray[np.bool_]:
        """masked_S: whether an entry masks each segment where it stands; arguments as in ``masks.MaskQuery``."""
        return self._masks.mask_of(MaskQuery(position_S, source_S, sample_S, segment_S, document_S))

    def removed_by_source(self, entry: SkipEntry) -> Mapping[str, int]:
        """What an entry of mode drop takes out, by source: positions that are not replaced, or samples that are."""
        if entry.kind == "positions":
            counts_S = np.zeros(len(self.source_names), np.int64)
            for start, stop in zip(entry.acting.start_R.tolist(), entry.acting.stop_R.tolist(), strict=True):
                counts_S += self.mixture.counts_before(stop) - self.mixture.counts_before(start)
            return {name: int(count) for name, count in zip(self.source_names, counts_S, strict=True) if count}
        return {self.source_names[source]: len(sample_X) for source, sample_X in self.dropped_samples(entry).items()}


def _cut_positions(entries: Sequence[SkipEntry], stop_position: int) -> Ranges:
    """Positions that entries of kind ``positions`` cut, each from its stamp on, and all behind the plan's end."""
    behind = stop_position < POSITION_LIMIT
    starts = [np.array([stop_position] if behind else [], np.int64)]
    stops = [np.array([POSITION_LIMIT] if behind else [], np.int64)]
    for entry in entries:
        if entry.kind == "positions":
            starts.append(np.maximum(entry.ranges_R2[:, 0], entry.stamp))
            stops.append(np.minimum(entry.ranges_R2[:, 1], POSITION_LIMIT))
    return union_of(np.concatenate(starts), np.concatenate(stops))
