"""Exhaustion policies as derived stages, against an oracle that walks block by block and takes sources out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import ConfigError, RefusedError
from loader.order import BLOCK, Mixture, MixtureStage, compile_mixture
from loader.order.exhaustion import Exhaustion, derive_stages

STOP = 12 * BLOCK
Case = tuple[tuple[MixtureStage, ...], dict[str, int], dict[str, float]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = [f"s{number}" for number in range(draw(st.sampled_from([1, 2, 3, 5, 17])))]
    sizes = {name: draw(st.sampled_from([1, 2, 3, 127, 256, 700, 5000])) for name in names}
    starts = sorted({0, *draw(st.lists(st.sampled_from([BLOCK, 3 * BLOCK, 4 * BLOCK, 9 * BLOCK]), max_size=3))})
    weight = st.sampled_from([0.0, 1e-5, 0.1, 1.0, 7.0])
    stages = tuple(MixtureStage(start, {n: draw(weight) for n in names} | {names[0]: 1.0}) for start in starts)
    epochs = {name: draw(st.sampled_from([0.5, 1, 2.5, 9])) for name in names if draw(st.booleans())}
    return stages, sizes, epochs


def budgets_of(case: Case) -> dict[str, int]:
    _, sizes, epochs = case
    return {name: int(epochs.get(name, 1) * size + 1e-9) for name, size in sizes.items()}


def read_in(stages: list[MixtureStage], names: list[str], start: int, stop: int) -> dict[str, int]:
    source_N = compile_mixture(names, stages, 5).locate(np.arange(start, stop))[0]
    return dict(zip(names, np.bincount(source_N, minlength=len(names)).tolist(), strict=True))


def walk(case: Case) -> tuple[list[MixtureStage], int, dict[str, int]]:
    """At each block: while somebody would pass the budget in it, who does is taken out from here on."""
    stages, sizes, _ = case
    names, budgets = list(sizes), budgets_of(case)
    counts, left, done = dict.fromkeys(names, 0), dict[str, int](), list[MixtureStage]()
    for border in range(0, STOP, BLOCK):
        asked = [stage for stage in stages if stage.start <= border][-1]
        while True:
            weights = {name: weight for name, weight in asked.weights.items() if name not in left}
            if not any(weights.values()):
                return done, border, left
            here = [*done, MixtureStage(border, weights)]
            more = read_in(here, names, border, border + BLOCK)
            over = [name for name in names if more[name] and counts[name] + more[name] > budgets[name]]
            if not over:
                break
            left.update(dict.fromkeys(over, border))
        done = here
        counts = {name: counts[name] + more[name] for name in names}
    return done, STOP, left


def same_reads(one: Mixture, other: Mixture, stop: int) -> bool:
    pairs = zip(one.locate(np.arange(stop)), other.locate(np.arange(stop)), strict=True)
    return all(np.array_equal(left, right) for left, right in pairs)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_renormalise_equals_walking(case: Case) -> None:
    stages, sizes, epochs = case
    found = derive_stages(stages, sizes, Exhaustion("renormalise", epochs, STOP), 5)
    expected, stop, left = walk(case)
    assert found.stop_position == stop
    assert {name: border for name, border in found.left_at.items() if border < stop} == {
        name: border for name, border in left.items() if border < stop
    }
    if stop:
        names = list(sizes)
        mixture = compile_mixture(names, found.stages, 5)
        assert same_reads(mixture, compile_mixture(names, expected, 5), stop)
        counts = dict(zip(names, mixture.counts_before(stop).tolist(), strict=True))
        assert all(counts[name] <= budget for name, budget in budgets_of(case).items())


@settings(max_examples=60, deadline=None)
@given(cases())
def test_stop_ends_before_the_first_repetition(case: Case) -> None:
    stages, sizes, epochs = case
    found = derive_stages(stages, sizes, Exhaustion("stop", epochs, STOP), 5)
    source_N, rank_N = compile_mixture(list(sizes), stages, 5).locate(np.arange(STOP))
    budget_S = np.array(list(budgets_of(case).values()))
    over = np.flatnonzero(rank_N >= budget_S[source_N])
    assert found.stop_position == (int(over[0]) if len(over) else STOP)
    assert found.stages == tuple(stage for stage in stages if stage.start < max(1, found.stop_position))


@settings(max_examples=40, deadline=None)
@given(cases())
def test_repeat_refuses_only_what_passes_its_limit(case: Case) -> None:
    stages, sizes, epochs = case
    source_N, rank_N = compile_mixture(list(sizes), stages, 5).locate(np.arange(STOP))
    limit_S = np.array([budgets_of(case)[name] if name in epochs else STOP for name in sizes])
    over = np.flatnonzero(rank_N >= limit_S[source_N])
    if not len(over):
        assert derive_stages(stages, sizes, Exhaustion("repeat", epochs, STOP), 5).stages == stages
        return
    with pytest.raises(RefusedError, match=list(sizes)[source_N[over[0]]]) as caught:
        derive_stages(stages, sizes, Exhaustion("repeat", epochs, STOP), 5)
    assert caught.value.code == "TR-MIXTURE-EXHAUSTED"
    assert f"position {over[0]}" in str(caught.value)


def test_the_rest_goes_on_at_its_own_ratio() -> None:
    stages = (MixtureStage(0, {"a": 2, "b": 1, "c": 1}),)
    found = derive_stages(stages, {"a": 1000, "b": 10_000, "c": 10_000}, Exhaustion("renormalise"), 0)
    assert found.left_at["a"] == 1792  # 2 x 1000 positions hold all of a; the last border before is 7 x 256
    assert found.stages[1] == MixtureStage(1792, {"b": 1, "c": 1})
    counts = compile_mixture(["a", "b", "c"], found.stages, 0).counts_before(1792 + 4096).tolist()
    assert counts == [896, 448 + 2048, 448 + 2048]
    assert found.stop_position > 20_000 - 3 * BLOCK


def test_a_whole_run_is_derived_in_closed_form() -> None:
    """Budgets of 2^30 samples, and decimal epochs as they were written: 0.3 x 10 are 3."""
    stages = (MixtureStage(0, {"a": 1, "b": 3}),)
    found = derive_stages(stages, {"a": 1 << 28, "b": 1 << 30}, Exhaustion("stop", {"a": 4}), 0)
    assert abs(found.stop_position - (1 << 30) * 4 // 3) <= BLOCK
    found = derive_stages(stages, {"a": 10, "b": 1 << 30}, Exhaustion("stop", {"a": 0.3}), 0)
    source_N, _ = compile_mixture(["a", "b"], stages, 0).locate(np.arange(found.stop_position + 1))
    assert np.count_nonzero(source_N == 0) == 4


@pytest.mark.parametrize("epochs", [{"a": 0}, {"a": -1}, {"a": float("nan")}, {"a": float("inf")}, {"x": 1}])
def test_budgets_that_mean_nothing(epochs: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="max_epochs"):
        derive_stages((MixtureStage(0, {"a": 1}),), {"a": 5}, Exhaustion("stop", epochs), 0)
    with pytest.raises(ConfigError, match="policy"):
        derive_stages((MixtureStage(0, {"a": 1}),), {"a": 5}, Exhaustion("halt"), 0)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, STOP - 70), st.dictionaries(st.sampled_from(["s0", "s1", "s2"]), st.integers(0, 400)))
def test_what_was_read_of_other_data_counts_for_nothing(case: Case, start: int, carried: dict[str, int]) -> None:
    """By brute force: from ``start`` on a source gives its budget less what was carried over, under every policy."""
    stages, sizes, epochs = case
    carried = {name: count for name, count in carried.items() if name in sizes}
    left = {name: max(0, budget - carried.get(name, 0)) for name, budget in budgets_of(case).items()}
    for policy in ("stop", "renormalise"):
        found = derive_stages(stages, sizes, Exhaustion(policy, epochs, STOP, start, carried), 5)  # type: ignore[arg-type]
        source_N, _ = compile_mixture(list(sizes), found.stages, 5).locate(np.arange(STOP))
        read_N = source_N[start : max(start, found.stop_position)]
        counts = dict(zip(sizes, np.bincount(read_N, minlength=len(sizes)).tolist(), strict=True))
        assert all(counts[name] <= left[name] for name in sizes), (policy, counts, left)
        if policy == "stop" and found.stop_position < STOP:  # not a position too early
            source = list(sizes)[source_N[found.stop_position]]
            assert found.stop_position >= start
            assert counts[source] == left[source]
    limit_S = np.array([left[name] if name in epochs else STOP for name in sizes])
    source_N, _ = compile_mixture(list(sizes), stages, 5).locate(np.arange(start, STOP))
    seen_NS = (source_N[:, None] == np.arange(len(sizes))).cumsum(axis=0)
    over = (seen_NS > limit_S).any()
    try:
        derive_stages(stages, sizes, Exhaustion("repeat", epochs, STOP, start, carried), 5)
    except RefusedError:
        assert over
    else:
        assert not over
