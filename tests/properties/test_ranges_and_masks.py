"""Sets of ranges against Python sets, and masks against an oracle that asks every entry about every segment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order import BatchStage, SkipEntry
from loader.order.masks import MaskQuery, Masks
from loader.order.ranges import StampedRanges, union_of
from loader.order.schedule import Schedule

TOP = 120
pairs = st.lists(st.tuples(st.integers(0, TOP), st.integers(0, 30)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


@settings(max_examples=150, deadline=None)
@given(pairs)
def test_union_counts_and_selects_like_a_set(some: list[tuple[int, int]]) -> None:
    array_R2 = np.array(some, np.int64).reshape(-1, 2)
    ranges = union_of(array_R2[:, 0], array_R2[:, 1])
    inside = {number for start, stop in some for number in range(start, stop)}
    outside = [number for number in range(4 * TOP) if number not in inside]
    number_N = np.arange(2 * TOP)
    assert ranges.contains(number_N).tolist() == [number in inside for number in number_N.tolist()]
    assert ranges.count == len(inside)
    assert ranges.numbers().tolist() == sorted(inside)
    assert ranges.outside_before(number_N).tolist() == [sum(o < n for o in outside) for n in number_N.tolist()]
    assert ranges.outside_at(number_N).tolist() == outside[: len(number_N)]
    assert all(stop < after for stop, after in zip(ranges.stop_R.tolist(), ranges.start_R[1:].tolist(), strict=False))


@settings(max_examples=100, deadline=None)
@given(pairs, st.data())
def test_the_smallest_stamp_wins(some: list[tuple[int, int]], data: st.DataObject) -> None:
    some = [(start, stop) for start, stop in some if stop > start]
    stamps = data.draw(st.lists(st.integers(0, 9), min_size=len(some), max_size=len(some)))
    array_R2 = np.array(some, np.int64).reshape(-1, 2)
    stamped = StampedRanges.build(array_R2[:, 0], array_R2[:, 1], np.array(stamps, np.int64), 99)
    expected = [
        min([stamp for (start, stop), stamp in zip(some, stamps, strict=True) if start <= number < stop], default=99)
        for number in range(2 * TOP)
    ]
    assert stamped.stamps_of(np.arange(2 * TOP)).tolist() == expected


@st.composite
def mask_entries(draw: st.DrawFn) -> SkipEntry:
    kind = draw(st.sampled_from(["samples", "segments", "documents", "source"]))
    stamp = draw(st.integers(0, 50))
    if kind == "documents":
        return SkipEntry(
            kind, "mask", stamp, documents=tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
        )
    source = draw(st.sampled_from(["a", "b"]))
    if kind == "source":
        return SkipEntry(kind, "mask", stamp, source)
    start = draw(st.integers(0, 20))
    return SkipEntry(kind, "mask", stamp, source, ((start, start + draw(st.integers(1, 6))), (25, 26)))


def is_masked(entries: Sequence[SkipEntry], position: int, source: str, numbers: dict[str, int]) -> bool:
    """Asks every entry."""
    return any(
        position >= entry.stamp
        and (
            (entry.kind == "documents" and numbers["documents"] in entry.documents)
            or (entry.kind == "source" and entry.source == source)
            or (entry.source == source and any(a <= numbers.get(entry.kind, -1) < b for a, b in entry.ranges))
        )
        for entry in entries
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(mask_entries(), max_size=6), st.integers(0, 10**6))
def test_masks_equal_asking_every_entry(entries: list[SkipEntry], seed: int) -> None:
    rng = np.random.default_rng(seed)
    query = MaskQuery(*(rng.integers(0, top, 80) for top in (60, 2, 28, 28)), rng.integers(0, 12, 80).astype(np.uint64))
    found = Masks(entries, {"a": 0, "b": 1}).mask_of(query)
    columns = (query.position_S, query.source_S, query.sample_S, query.segment_S, query.document_S)
    expected = [
        is_masked(entries, position, "ab"[source], {"samples": sample, "segments": segment, "documents": document})
        for position, source, sample, segment, document in zip(*(c.tolist() for c in columns), strict=True)
    ]
    assert found.tolist() == expected


def test_document_ids_use_all_64_bits() -> None:
    top = (1 << 64) - 1
    masks = Masks([SkipEntry("documents", "mask", 5, documents=(top, 1 << 63))], {"a": 0})
    documents = np.array([top, 1 << 63, top - 1, 0, top], np.uint64)
    zero = np.zeros(5, np.int64)
    found = masks.mask_of(MaskQuery(np.array([5, 6, 9, 9, 4]), zero, zero, zero, documents))
    assert found.tolist() == [True, True, False, False, False]


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.integers(1, 300), st.integers(1, 90), max_size=4), st.integers(1, 50), pairs)
def test_steps_equal_walking(later: dict[int, int], first: int, some: list[tuple[int, int]]) -> None:
    array_R2 = np.array(some, np.int64).reshape(-1, 2)
    cut = union_of(array_R2[:, 0], array_R2[:, 1])
    stages = [BatchStage(0, first), *(BatchStage(start, later[start]) for start in sorted(later))]
    schedule = Schedule(stages, cut)
    inside = {number for start, stop in some for number in range(start, stop)}
    surviving, step = [number for number in range(600) if number not in inside], 0
    while True:
        size = [stage.global_batch for stage in stages if stage.start <= surviving[0]][-1]
        taken, surviving = surviving[:size], surviving[size:]
        if not surviving:
            break
        assert schedule.positions(step).tolist() == taken
        assert set(schedule.steps_of(np.array(taken)).tolist()) == {step}
        assert schedule.step_from(taken[0]) == step
        assert size == 1 or schedule.step_from(taken[-1]) is None
        assert schedule.step_from(taken[-1] + 1) == step + 1
        step += 1
    assert (schedule.steps_of(cut.numbers()) == -1).all()
