"""Dropped samples of an epoch, looked at window by window: the same answers as from all of them, sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order import PlanConfig, SkipEntry, SkipList, SourceShape
from loader.order import dead as dead_module
from loader.order.dead import DeadByWindow, DeadWhole, dead_indices
from loader.order.order import SourceOrder
from loader.order.plan import BatchStage, MixtureStage, Plan
from loader.order.ranges import merged


@st.composite
def orders(draw: st.DrawFn) -> SourceOrder:
    shards = draw(st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any))
    return SourceOrder(shards, draw(st.integers(0, 1 << 40)), draw(st.integers(1, 9)), draw(st.integers(1, 6)))


@settings(deadline=None, max_examples=300)
@given(orders(), st.integers(0, 5), st.floats(0.01, 1), st.booleans(), st.integers(0, 1 << 30))
def test_by_window_as_whole(order: SourceOrder, epoch: int, share: float, in_runs: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num = order.num_samples
    if in_runs:  # whole shards and halves of them, all live beside all dead
        picked = rng.random(-(-num // 16)).repeat(16)[:num] < share
    else:
        picked = rng.random(num) < share
    sample_X = np.flatnonzero(picked)
    if not len(sample_X):
        return
    whole, window = DeadWhole(order, epoch, sample_X), DeadByWindow(order, epoch, sample_X)
    index_N = rng.permutation(num)
    for few in (index_N[:3], index_N):
        for one, other in zip(whole.before(few), window.before(few), strict=True):
            np.testing.assert_array_equal(one, other)
    live_N = rng.permutation(num - len(sample_X))
    fresh = DeadByWindow(order, epoch, sample_X)
    for few in (live_N[:3], live_N):
        np.testing.assert_array_equal(whole.index_of_live(few), fresh.index_of_live(few))
    _, dead_N = window.before(whole.index_of_live(live_N))
    assert not dead_N.any()


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_module, "_KEPT_NUMBERS", 50)
    order = SourceOrder([64] * 40, 7, 4, 2)
    sample_X = np.arange(0, order.num_samples, 3)
    window, whole = DeadByWindow(order, 2, sample_X), DeadWhole(order, 2, sample_X)
    for _ in range(2):
        index_N = np.arange(order.num_samples)
        np.testing.assert_array_equal(window.before(index_N)[0], whole.before(index_N)[0])
        assert len(window._kept) == 1


def test_a_plan_over_many_drops_reads_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SourceShape("a", np.full(50, 300))
    config = PlanConfig((shape,), 3, (MixtureStage(0, {"a": 1.0}),), (BatchStage(0, 16),))
    rng = np.random.default_rng(0)
    entries = []
    for stamp in (0, 700, 9_000, 21_000):
        starts = np.sort(rng.choice(1499, 200, replace=False)) * 10
        entries.append(SkipEntry("samples", "drop", stamp, "a", tuple((s, s + 7) for s in starts.tolist())))
    positions_N = np.arange(40_000)
    whole = Plan(config, SkipList(entries))
    expected = whole.samples(positions_N)
    monkeypatch.setattr(dead_module, "_FEW", 0)
    plan = Plan(config, SkipList(entries))
    assert isinstance(dead_indices(plan.orders[0], 0, np.arange(5)), DeadByWindow)
    found = plan.samples(positions_N)
    np.testing.assert_array_equal(found.sample_N, expected.sample_N)
    np.testing.assert_array_equal(found.epoch_N, expected.epoch_N)
    samples_N = rng.choice(15_000, 50)
    for one, other in zip(
        plan.positions_of_samples("a", samples_N, 40_000),
        whole.positions_of_samples("a", samples_N, 40_000),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@given(st.lists(st.sets(st.integers(0, 50)), max_size=5))
def test_merged_is_the_union(sets: list[set[int]]) -> None:
    found = merged([np.array(sorted(one), np.int64) for one in sets])
    assert found.tolist() == sorted(set[int]().union(*sets))
    assert found.dtype == np.int64
