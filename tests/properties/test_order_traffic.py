"""Bytes that an order makes a node read, against walking the positions and noting every shard."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import ConfigError
from loader.order import BatchStage, MixtureStage, Plan, PlanConfig, SkipEntry, SkipList, SourceOrder, SourceShape
from loader.order.traffic import order_traffic


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, dict[str, np.ndarray]]:
    shards = {
        name: [*draw(st.lists(st.integers(0, 2) | st.integers(0, 40), max_size=9)), draw(st.integers(1, 40))]
        for name in ("a", "b", "c")
    }
    config = PlanConfig(
        tuple(SourceShape(name, samples) for name, samples in shards.items()),
        draw(st.integers(0, 99)),
        (MixtureStage(0, {"a": 3, "b": draw(st.sampled_from([0.0, 1e-3, 1.0]))}), MixtureStage(512, {"b": 1, "c": 1})),
        (BatchStage(0, draw(st.integers(1, 90))),),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
    )
    drop = SkipEntry("samples", "drop", 100, "a", ((0, 3),))
    cut = SkipEntry("positions", "drop", 0, ranges=((40, 70),))
    skips = SkipList([cut, drop] if sum(shards["a"]) > 3 and draw(st.booleans()) else [])
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return Plan(config, skips), {name: rng.integers(1, 1000, len(samples)) for name, samples in shards.items()}


def shards_at(order: SourceOrder, raw_N: np.ndarray) -> set[int]:
    shard_of_sample = np.repeat(np.arange(len(order.layout.samples_S)), order.layout.samples_S)
    return set(shard_of_sample[order.locate(raw_N)[1]].tolist())


def windows(order: SourceOrder, epoch: int) -> list[tuple[int, int]]:
    """Raw ranges of the epoch's windows."""
    starts = [*order.tables(epoch).window_start_W.tolist(), order.num_samples]
    base = epoch * order.num_samples
    return [(base + start, base + stop) for start, stop in itertools.pairwise(starts)]


@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(0, 9), st.integers(1, 9))
def test_figures_equal_walking(case: tuple[Plan, dict[str, np.ndarray]], start: int, num: int) -> None:
    plan, shard_bytes = case
    found = order_traffic(plan, shard_bytes, start, start + num)
    refs = plan.samples(np.arange(plan.first_position(start), plan.next_position(start + num - 1)))
    cold = plan.samples(plan.step_positions(start))
    names = [plan.source_names[number] for number in np.unique(refs.source_N)]
    assert [source.name for source in found.sources] == names
    for source in found.sources:
        number = plan.source_number(source.name)
        order, bytes_S = plan.orders[number], shard_bytes[source.name]
        mine, first = refs.source_N == number, cold.source_N == number
        raw_N = order.raw_of(refs.epoch_N[mine], refs.sample_N[mine])
        entered = set()
        for epoch in range(int(raw_N[0]) // order.num_samples, int(raw_N[-1]) // order.num_samples + 1):
            for low, high in windows(order, epoch):
                if high > low and low <= raw_N[-1] and high > raw_N[0]:
                    entered |= {(epoch, shard) for shard in shards_at(order, np.arange(low, high))}
        assert source.total_bytes == sum(int(bytes_S[shard]) for _, shard in entered)
        first_raw_N = order.raw_of(cold.epoch_N[first], cold.sample_N[first])
        cold_shards = shards_at(order, first_raw_N)
        assert source.cold_shards == len(cold_shards)
        assert source.cold_bytes == sum(int(bytes_S[shard]) for shard in cold_shards)
        assert source.epochs == mine.sum() / order.num_samples
    assert found.total_bytes == sum(source.total_bytes for source in found.sources)


def test_a_source_read_through_is_read_once_an_epoch_and_keeps_its_window_live() -> None:
    """Equal shards: as many are live in the middle of an epoch as the figure says, and never more."""
    config = PlanConfig((SourceShape("a", [50] * 20),), 3, (MixtureStage(0, {"a": 1}),), (BatchStage(0, 100),), 2, 3)
    plan, size = Plan(config), 10**9
    found = order_traffic(plan, {"a": np.full(20, size)}, 0, 30)
    assert found.total_bytes == 3 * 20 * size
    assert (found.live_shards, found.live_bytes) == (6, 6 * size)
    shard_N = plan.samples(np.arange(1000)).sample_N // 50
    first = np.array([np.argmax(shard_N == shard) for shard in range(20)])
    last = np.array([999 - np.argmax(shard_N[::-1] == shard) for shard in range(20)])
    live = [int(((first <= at) & (at <= last)).sum()) for at in range(1000)]
    assert max(live) == 6
    assert found.sources[0].cold_shards == len(set(shard_N[:100].tolist()))


def test_questions_that_mean_nothing() -> None:
    config = PlanConfig((SourceShape("a", [50]),), 3, (MixtureStage(0, {"a": 1}),), (BatchStage(0, 100),))
    for steps in ((-1, 3), (3, 3)):
        with pytest.raises(ConfigError, match="no steps"):
            order_traffic(Plan(config), {"a": np.ones(1)}, *steps)
    with pytest.raises(ConfigError, match="shard sizes"):
        order_traffic(Plan(config), {"a": np.ones(2)}, 0, 1)
