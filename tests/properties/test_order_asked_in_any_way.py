"""What a plan keeps to answer faster changes no answer: rows by table, samples read ahead, joined epochs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order import POSITION_LIMIT, BatchStage, MixtureStage, Plan, PlanConfig, SampleRefs, SkipEntry, SkipList
from loader.order import SourceShape as Shape
from loader.order.rows import RowIndex

sizes = st.lists(st.sampled_from([0, 0, 1, 2, 5, 64, 1000, 12_345, 1 << 33]), min_size=1, max_size=300)


@settings(max_examples=80, deadline=None)
@given(sizes, st.integers(0, 10**6))
def test_rows_are_what_a_binary_search_finds(row_sizes: list[int], seed: int) -> None:
    start_Q = np.concatenate([[0], np.cumsum(row_sizes)])
    rng = np.random.default_rng(seed)
    inside = rng.integers(0, start_Q[-1] + 1, 200)
    number_N = np.concatenate([start_Q, np.maximum(start_Q - 1, 0), inside, [start_Q[-1] + 10**12]])
    found_N = RowIndex.build(start_Q).rows_of(number_N)
    assert found_N.tolist() == [int(np.flatnonzero(start_Q <= number)[-1]) for number in number_N]


def plan_of(shapes: list[list[int]], seed: int) -> Plan:
    """Sources of very different sizes; one is left out of the first stage, one loses samples."""
    names = [f"s{number}" for number in range(len(shapes))]
    first = {name: 1.0 + number % 3 for number, name in enumerate(names[: max(1, len(names) - 1)])}
    return Plan(
        PlanConfig(
            tuple(Shape(name, shards) for name, shards in zip(names, shapes, strict=True)),
            seed,
            (MixtureStage(0, first), MixtureStage(1 << 14, dict.fromkeys(names, 1.0))),
            (BatchStage(0, 64),),
        ),
        SkipList([SkipEntry("samples", "drop", 9000, "s0", ((0, sum(shapes[0]) // 2),))] if sum(shapes[0]) > 1 else []),
    )


def equal(one: SampleRefs, other: SampleRefs) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("position_N", "source_N", "rank_N", "epoch_N", "sample_N")
    )


shards = st.lists(st.sampled_from([1, 40, 100, 257, 900]), min_size=1, max_size=5).map(lambda some: [*some, 60])
questions = st.lists(
    st.tuples(
        st.sampled_from(["on", "on", "on", "jump", "back", "scatter"]),
        st.integers(0, 20_000),
        st.sampled_from([1, 2, 64, 255, 1000, 2048, 2049, 4500]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=15, deadline=None)
@given(st.lists(shards, min_size=1, max_size=12), st.integers(0, 99), questions)
def test_answers_do_not_depend_on_what_was_asked_before(
    shapes: list[list[int]], seed: int, asked: list[tuple[str, int, int]]
) -> None:
    plan, at = plan_of(shapes, seed), 0
    for kind, place, num in asked:
        start = {"on": at, "jump": place, "back": max(0, at - num // 2), "scatter": 0}[kind]
        positions_N = np.arange(start, start + num)
        if kind == "scatter":
            positions_N = np.random.default_rng(place).integers(0, 30_000, num)
        else:
            at = start + num
        found = plan.samples(positions_N)
        fresh = plan_of(shapes, seed)
        picked = np.unique(np.linspace(0, num - 1, 5).astype(np.int64))
        alone = [fresh.samples(positions_N[index : index + 1]) for index in picked.tolist()]
        rows = SampleRefs(*(getattr(found, name)[picked] for name in vars(found)))
        assert equal(rows, SampleRefs.join(alone))
        found.sample_N[:], found.source_N[:] = -1, -1  # the caller's own: the plan's next answers do not see it
    assert equal(plan.samples(positions_N), plan_of(shapes, seed).samples(positions_N))


@pytest.mark.parametrize("batch", [1, 100, 1024, 3000])
def test_reading_on_up_to_the_last_position(batch: int) -> None:
    plan = plan_of([[500] * 3, [16], [9000]], 1)
    for start in range(POSITION_LIMIT - 5 * batch, POSITION_LIMIT, batch):
        positions_N = np.arange(start, start + batch)
        found = plan.samples(positions_N)
        assert equal(found, plan_of([[500] * 3, [16], [9000]], 1).samples(positions_N[::-1].copy()[::-1]))
        for source in range(3):
            mine = found.source_N == source
            assert plan.mixture.position_of(source, found.rank_N[mine]).tolist() == positions_N[mine].tolist()
            raw_N = plan.orders[source].raw_of(found.epoch_N[mine], found.sample_N[mine])
            assert (np.diff(raw_N) >= 1).all()
    for stop in (POSITION_LIMIT, 0):
        with pytest.raises(ValueError, match="positions"):
            plan.samples(np.arange(stop - 1, stop + 1))
