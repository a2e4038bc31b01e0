"""The Plan against a slow oracle that walks position by position and knows no closed form of skips or steps.

The oracle takes from the package only what other tests settle: the source of each position and each source's endless
order without skips. Everything that skips, stamps, batches and epochs do on top it does by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order import (
    BatchStage,
    MixtureStage,
    Plan,
    PlanConfig,
    SkipEntry,
    SkipList,
    SourceOrder,
    SourceShape,
)

STOP = 700
DOCUMENTS = {11: [("s0", [0, 1]), ("s1", [2])], 12: [("s1", [0])]}


class Documents:
    """Two documents that lie in known samples."""

    def samples_of_document(self, document: int, /) -> list[tuple[str, np.ndarray]]:
        return [(name, np.array(samples)) for name, samples in DOCUMENTS.get(document, [])]


def oracle(plan: Plan, entries: Sequence[SkipEntry]) -> tuple[dict[int, tuple[int, int, int]], list[list[int]]]:
    """{position: (source, epoch, sample)} and the surviving positions of each whole step below STOP, by walking."""
    reads: dict[int, tuple[int, int, int]] = {}
    endless = [endless_of(order) for order in plan.orders]
    drops = [(entry.stamp, name, set(dropped_by(entry, name))) for entry in entries for name in plan.source_names]
    for position, source in enumerate(plan.mixture.locate(np.arange(STOP))[0].tolist()):
        name = plan.source_names[source]
        dropped = set().union(*(samples for stamp, where, samples in drops if where == name and position >= stamp))
        epoch, sample = next(place for place in endless[source] if place[1] not in dropped)
        reads[position] = (source, epoch, sample)
    return reads, steps_by_walking(plan, entries)


def endless_of(order: SourceOrder) -> Iterator[tuple[int, int]]:
    """(epoch, sample) one after the other, for ever."""
    for epoch in count():
        index = np.arange(order.num_samples) + epoch * order.num_samples
        yield from ((epoch, int(sample)) for sample in order.locate(index)[1])


def dropped_by(entry: SkipEntry, name: str) -> list[int]:
    """Samples of a source that an entry drops."""
    if entry.kind == "samples" and entry.mode == "drop" and entry.source == name:
        return [sample for start, stop in entry.ranges for sample in range(start, stop)]
    if entry.kind == "documents":
        return [s for document in entry.documents for where, some in DOCUMENTS[document] if where == name for s in some]
    return []


def steps_by_walking(plan: Plan, entries: Sequence[SkipEntry]) -> list[list[int]]:
    """Steps as lists of positions."""
    cuts = [entry for entry in entries if entry.kind == "positions"]
    surviving = [
        position
        for position in range(STOP)
        if not any(position >= e.stamp and any(a <= position < b for a, b in e.ranges) for e in cuts)
    ]
    steps = []
    while surviving:
        size = [stage.global_batch for stage in plan.config.batch if stage.start <= surviving[0]][-1]
        if len(surviving) < size:
            break
        steps.append(surviving[:size])
        surviving = surviving[size:]
    return steps


stamps = st.one_of(st.integers(0, STOP), st.sampled_from([0, 16, 256, 300, 512]))
position_range = st.tuples(st.integers(0, STOP - 1), st.integers(1, 200)).map(lambda pair: (pair[0], sum(pair)))


@st.composite
def entries_for(draw: st.DrawFn, sizes: dict[str, int]) -> SkipEntry:
    kind = draw(st.sampled_from(["positions", "samples", "samples", "documents", "mask"]))
    stamp = draw(stamps)
    if kind == "positions":
        ranges = draw(st.lists(position_range, min_size=1, max_size=3))
        return SkipEntry("positions", "drop", stamp, ranges=tuple(ranges))
    if kind == "documents":
        return SkipEntry("documents", "drop", stamp, documents=(draw(st.sampled_from([11, 12])),))
    name = draw(st.sampled_from(sorted(sizes)))
    start = draw(st.integers(0, sizes[name] - 1))
    stop = min(sizes[name], start + draw(st.integers(1, max(1, sizes[name] // 4))))
    return SkipEntry("samples", "mask" if kind == "mask" else "drop", stamp, name, ranges=((start, stop),))


@st.composite
def plans(draw: st.DrawFn) -> tuple[PlanConfig, list[SkipEntry]]:
    num_sources = draw(st.integers(2, 4))
    shards = {
        f"s{number}": [*draw(st.lists(st.integers(0, 30), min_size=1, max_size=4)), draw(st.integers(12, 40))]
        for number in range(num_sources)
    }
    starts = sorted({0, *draw(st.lists(st.sampled_from([256, 512]), max_size=2))})
    stages = tuple(
        MixtureStage(start, {name: draw(st.sampled_from([0.0, 0.2, 1.0, 3.5])) for name in shards} | {"s1": 0.5})
        for start in starts
    )
    borders = sorted({0, *draw(st.lists(st.integers(1, STOP), max_size=2))})
    batch = tuple(BatchStage(start, draw(st.integers(1, 70))) for start in borders)
    config = PlanConfig(
        sources=tuple(SourceShape(name, samples) for name, samples in shards.items()),
        seed=draw(st.integers(0, 1000)),
        stages=stages,
        batch=batch,
        window_shards=draw(st.integers(1, 4)),
        slices=draw(st.integers(1, 3)),
    )
    sizes = {name: sum(samples) for name, samples in shards.items()}
    entries = draw(st.lists(entries_for(sizes), max_size=4))
    return config, entries


@settings(max_examples=60, deadline=None)
@given(plans())
def test_stream_equals_walking_with_skips(case: tuple[PlanConfig, list[SkipEntry]]) -> None:
    config, entries = case
    plan = Plan(config, SkipList(entries), Documents())
    reads, steps = oracle(plan, entries)
    refs = plan.samples(np.arange(STOP))
    found = zip(refs.source_N.tolist(), refs.epoch_N.tolist(), refs.sample_N.tolist(), strict=True)
    assert list(found) == [reads[position] for position in range(STOP)]

    for step, positions in enumerate(steps):
        assert plan.step_positions(step).tolist() == positions
        assert plan.first_position(step) == positions[0]
        assert plan.next_position(step) == positions[-1] + 1
    step_of = {position: step for step, positions in enumerate(steps) for position in positions}
    end = steps[-1][-1] + 1 if steps else 0
    assert [plan.step_of(position) for position in range(end)] == [step_of.get(position) for position in range(end)]


@st.composite
def drops_of_one_source(draw: st.DrawFn) -> tuple[PlanConfig, list[SkipEntry]]:
    """Two to four stamps at which one source loses samples, small enough for the epochs between them to be few."""
    config, _ = draw(plans())
    size = int(np.sum(config.sources[1].shard_samples))
    stops = draw(st.lists(st.integers(0, STOP - 100), min_size=2, max_size=4, unique=True))
    starts = draw(st.lists(st.integers(0, size - 2), min_size=len(stops), max_size=len(stops)))
    most = max(1, (size - 1) // len(stops))
    return config, [
        SkipEntry("samples", "drop", stamp, "s1", ((start, min(size, start + draw(st.integers(1, most)))),))
        for stamp, start in zip(stops, starts, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(drops_of_one_source())
def test_several_stamps_of_one_source(case: tuple[PlanConfig, list[SkipEntry]]) -> None:
    config, entries = case
    plan = Plan(config, SkipList(entries), Documents())
    reads, _ = oracle(plan, entries)
    refs = plan.samples(np.arange(STOP))
    found = zip(refs.source_N.tolist(), refs.epoch_N.tolist(), refs.sample_N.tolist(), strict=True)
    assert list(found) == [reads[position] for position in range(STOP)]
    sample_N = np.arange(plan.orders[1].num_samples)
    position_M, which_M = plan.positions_of_samples("s1", sample_N, STOP)
    assert position_M.tolist() == np.flatnonzero(refs.source_N == 1).tolist()
    assert sample_N[which_M].tolist() == refs.sample_N[position_M].tolist()


@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(1, STOP))
def test_inverse_finds_every_reading_of_a_sample(case: tuple[PlanConfig, list[SkipEntry]], stop: int) -> None:
    config, entries = case
    plan = Plan(config, SkipList(entries), Documents())
    refs = plan.samples(np.arange(stop))
    for source, order in enumerate(plan.orders):
        sample_N = np.arange(order.num_samples)
        position_M, which_M = plan.positions_of_samples(source, sample_N, stop)
        expected = np.flatnonzero(refs.source_N == source)
        assert position_M.tolist() == expected.tolist()
        assert sample_N[which_M].tolist() == refs.sample_N[expected].tolist()


@settings(max_examples=40, deadline=None)
@given(plans(), st.data())
def test_history_before_a_stamp_never_changes(case: tuple[PlanConfig, list[SkipEntry]], data: st.DataObject) -> None:
    config, entries = case
    before = Plan(config, SkipList(entries), Documents())
    sizes = {source.name: int(np.sum(source.shard_samples)) for source in config.sources}
    entry = data.draw(entries_for(sizes))
    after = Plan(config, SkipList(entries).extend(entry), Documents())
    positions = np.arange(min(STOP, entry.stamp))
    old, new = before.samples(positions), after.samples(positions)
    for name in ("source_N", "rank_N", "epoch_N", "sample_N"):
        assert np.array_equal(getattr(old, name), getattr(new, name))
    step = 0
    while before.next_position(step) <= entry.stamp:
        assert np.array_equal(before.step_positions(step), after.step_positions(step))
        step += 1
