"""The mixture: counts stay near their targets over any stages, ranks are gapless, and the inverse is exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order import BLOCK, POSITION_LIMIT, Mixture, MixtureStage, compile_mixture
from loader.order.tree import Tree, build_tree
from loader.order.weights import integer_weights

TOTAL = 1 << 26
WeightList = list[float]


def names_of(count: int) -> list[str]:
    return [f"s{number:03d}" for number in range(count)]


def mixture_of(lists: list[WeightList], starts: list[int], seed: int = 0) -> Mixture:
    names = names_of(len(lists[0]))
    stages = [
        MixtureStage(start, dict(zip(names, some, strict=True))) for start, some in zip(starts, lists, strict=True)
    ]
    return compile_mixture(names, stages, seed)


def exact_deviation(mixture: Mixture, stop: int, every: int = BLOCK) -> float:
    """Largest distance between counts and stage-weighted targets at multiples of ``every``, in whole numbers."""
    starts = [stage.start for stage in mixture.stages] + [1 << 60]
    worst = 0
    for border in range(0, stop + 1, every):
        target = dict.fromkeys(mixture.sources, 0)
        for stage, end in zip(mixture.stages, starts[1:], strict=True):
            for name, weight in stage.weights.items():
                target[name] += weight * max(0, min(border, end) - stage.start)
        counts = mixture.counts_before(border).tolist()
        distances = [abs(t - (c << 26)) for t, c in zip(target.values(), counts, strict=True)]
        worst = max(worst, *distances)
    return worst / TOTAL


weight = st.one_of(
    st.floats(1e-7, 1.0), st.sampled_from([0.0, 1e-7, 1e-6, 1 / 3, 0.5, 1.0, 1e3]), st.integers(1, 9).map(float)
)


@st.composite
def weight_lists(draw: st.DrawFn, count: int) -> WeightList:
    base = draw(st.lists(weight, min_size=min(count, 8), max_size=min(count, 8)))
    some = (base * (count // len(base) + 1))[:count]
    some[draw(st.integers(0, count - 1))] += 1.0
    total = sum(some)
    return [value if value / total > 4e-8 else 0.0 for value in some]


@st.composite
def stage_lists(draw: st.DrawFn) -> tuple[list[WeightList], list[int]]:
    count = draw(st.sampled_from([1, 2, 3, 5, 16, 17, 64, 255, 256]))
    lists = draw(st.lists(weight_lists(count), min_size=1, max_size=5))
    lengths = draw(st.lists(st.integers(1, 4), min_size=len(lists) - 1, max_size=len(lists) - 1))
    return lists, [0, *np.cumsum(np.array(lengths, np.int64) * BLOCK).tolist()][: len(lists)]


@settings(max_examples=60, deadline=None)
@given(stage_lists(), st.integers(0, 99))
def test_counts_stay_within_four_of_the_target(case: tuple[list[WeightList], list[int]], seed: int) -> None:
    mixture = mixture_of(*case, seed)
    assert exact_deviation(mixture, case[1][-1] + 6 * BLOCK) <= 4
    far = POSITION_LIMIT - 5 * BLOCK
    target = mixture.targets_before(far)  # float64: exact to 1e-5 here
    assert np.abs(mixture.counts_before(far) - target).max() <= 4 + 1e-4


@settings(max_examples=30, deadline=None)
@given(stage_lists(), st.integers(0, 99))
def test_ranks_follow_positions_without_gaps_and_invert(case: tuple[list[WeightList], list[int]], seed: int) -> None:
    mixture = mixture_of(*case, seed)
    stop = case[1][-1] + 2 * BLOCK
    source_N, rank_N = mixture.locate(np.arange(stop))
    for source in np.unique(source_N).tolist():
        here = np.flatnonzero(source_N == source)
        assert np.array_equal(rank_N[here], np.arange(len(here)))
        assert np.array_equal(mixture.position_of(source, rank_N[here]), here)
    some = 777 % stop
    assert np.array_equal(mixture.counts_before(some), np.bincount(source_N[:some], minlength=len(mixture.sources)))
    scattered = np.random.default_rng(seed).integers(0, POSITION_LIMIT, 30)
    source_N, rank_N = mixture.locate(scattered)
    for source in np.unique(source_N).tolist():
        here = source_N == source
        assert np.array_equal(mixture.position_of(source, rank_N[here]), scattered[here])


@settings(max_examples=40, deadline=None)
@given(stage_lists(), st.data())
def test_later_stages_and_sources_change_nothing_before(
    case: tuple[list[WeightList], list[int]], data: st.DataObject
) -> None:
    lists, starts = case
    names = names_of(len(lists[0]))
    stages = [
        MixtureStage(start, dict(zip(names, some, strict=True))) for start, some in zip(starts, lists, strict=True)
    ]
    before = compile_mixture(names, stages, 3)
    border = starts[-1] + BLOCK * data.draw(st.integers(1, 3))
    more = ["aaa", "zzz"]
    later = MixtureStage(border, {**dict(zip(names, data.draw(weight_lists(len(names))), strict=True)), "aaa": 1.0})
    after = compile_mixture(data.draw(st.permutations([*names, *more])), [*stages, later], 3)
    old, old_rank = before.locate(np.arange(border))
    new, new_rank = after.locate(np.arange(border))
    assert [before.sources[s] for s in old.tolist()] == [after.sources[s] for s in new.tolist()]
    assert np.array_equal(old_rank, new_rank)


def test_a_thousand_equal_stages_are_one() -> None:
    rng = np.random.default_rng(1)
    weights = (rng.random(37) ** 6 + 1e-6).tolist()
    one = mixture_of([weights], [0])
    many = mixture_of([weights] * 1000, [BLOCK * number for number in range(1000)])
    positions_N = np.arange(0, BLOCK * 1010)
    for left, right in zip(one.locate(positions_N), many.locate(positions_N), strict=True):
        assert np.array_equal(left, right)


def test_phases_telescope_without_merging() -> None:
    """A stage that ends and starts again with the same weights goes on as if it had not: also in the tree itself."""
    rng = np.random.default_rng(2)
    weight_D = np.zeros(32, np.int64)
    weight_D[:29] = list(
        integer_weights({str(n): float(w) for n, w in enumerate(rng.random(29) ** 5 + 1e-6)}, "").values()
    )
    zero = np.zeros(32, np.int64)
    whole = build_tree(weight_D, zero)
    for border in (256, 512, 4096, 256 * 997):
        counts_D = whole.counts_before(np.array([border]))[0]
        again = build_tree(weight_D, border * weight_D - (counts_D << 26))
        assert np.array_equal(again.phase_K, (whole.phase_K + phase_gain(whole, border)) % np.maximum(whole.total_K, 1))


def phase_gain(tree: Tree, arrivals: int) -> np.ndarray:
    """arrivals x left at every node, with the arrivals of that node."""
    gain_K = np.zeros(2 * tree.size)
    count_K = np.zeros(2 * tree.size)
    count_K[tree.size :] = tree.counts_before(np.array([arrivals]))[0]
    for node in range(tree.size - 1, 0, -1):
        count_K[node] = count_K[2 * node] + count_K[2 * node + 1]
        gain_K[node] = count_K[node] * tree.left_K[node]
    return gain_K


def slow_locate(tree: Tree, coordinate: int) -> tuple[int, int]:
    """The tree's rule in unbounded integers, without taking the coordinate modulo anything."""
    node, arrivals = 1, coordinate
    while node < tree.size:
        total, left, phase = (int(row[node]) for row in (tree.total_K, tree.left_K, tree.phase_K))
        here, after = ((arrivals + step) * left + phase for step in (0, 1))
        if after // total > here // total:
            node, arrivals = 2 * node, here // total
        else:
            node, arrivals = 2 * node + 1, arrivals - here // total
    return node - tree.size, arrivals


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([2, 8, 64, 256]), st.integers(0, 10**6), st.sampled_from([1, 8, 30]))
def test_float_arithmetic_is_exact_up_to_the_last_position(size: int, seed: int, skew: int) -> None:
    rng = np.random.default_rng(seed)
    raw = rng.random(size) ** skew
    weight_D = np.maximum(np.floor(raw / raw.sum() * (TOTAL - 2 * size)).astype(np.int64), 1)
    weight_D[int(np.argmax(weight_D))] += TOTAL - weight_D.sum()
    owed_D = rng.integers(-TOTAL, TOTAL, size)
    owed_D[0] -= owed_D.sum()
    tree = build_tree(weight_D, owed_D)
    coordinate_N = np.concatenate([rng.integers(0, POSITION_LIMIT, 30), [0, 1, TOTAL - 1, TOTAL, POSITION_LIMIT - 1]])
    leaf_N, rank_N = tree.locate(coordinate_N)
    found = list(zip(leaf_N.tolist(), rank_N.tolist(), strict=True))
    assert found == [slow_locate(tree, int(coordinate)) for coordinate in coordinate_N]
    for coordinate, leaf, rank in zip(coordinate_N.tolist(), leaf_N.tolist(), rank_N.tolist(), strict=True):
        assert tree.coordinate_of(leaf, np.array([rank])).tolist() == [coordinate]


@pytest.mark.parametrize("num_sources", [16, 256])
def test_hostile_stages_do_not_accumulate(num_sources: int) -> None:
    """Stages that look at the counts so far and starve the sources that are ahead, block after block."""
    rng = np.random.default_rng(num_sources)
    names, stages, start = names_of(num_sources), list[MixtureStage](), 0
    active = np.ones(num_sources, np.bool_)
    for number in range(72):
        weights = rng.random(num_sources) ** 4 + 1e-4
        if number % 12 == 0:
            active[:] = True
        stages.append(MixtureStage(start, dict(zip(names, np.where(active, weights, 0).tolist(), strict=True))))
        start += BLOCK * int(rng.integers(1, 4))
        mixture = compile_mixture(names, stages, 0)
        ahead = mixture.counts_before(start) - mixture.targets_before(start)
        assert np.abs(ahead).max() <= 4
        active &= (ahead <= np.median(ahead[active])) | (active.sum() < 3)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.floats(1e-3, 1e6), min_size=1, max_size=12))
def test_integer_weights_are_the_largest_remainder_rounding(weights: dict[str, float]) -> None:
    total = sum(Fraction(value) for value in weights.values())
    if min(weights.values()) / float(total) < 1e-7:
        return
    found = integer_weights(weights, "here")
    assert sum(found.values()) == TOTAL
    exact = {name: Fraction(value) * TOTAL / total for name, value in weights.items()}
    assert all(abs(found[name] - exact[name]) < 1 for name in weights)
    up = {name for name in weights if found[name] > exact[name]}
    down = {name for name in weights if found[name] < exact[name]}
    assert all(exact[a] % 1 >= exact[b] % 1 for a in up for b in down)


def test_no_source_is_pinned_to_a_place_in_the_block() -> None:
    source_N, _ = mixture_of([[0.5, 0.5]], [0]).locate(np.arange(BLOCK * 400))
    share_P = (source_N.reshape(-1, BLOCK) == 0).mean(axis=0)
    assert np.abs(share_P - 0.5).max() < 5 * 0.5 / 20
    runs = np.diff(np.flatnonzero(np.diff(source_N)))
    assert 1.8 < runs.mean() < 2.2


@pytest.mark.parametrize("lists", [[[1.0]], [[5.0, 3.0]], [[1.0] * 200]])
@given(start=st.integers(0, 5000) | st.integers(POSITION_LIMIT - 1500, POSITION_LIMIT - 1100), num=st.integers(0, 1100))
@settings(max_examples=15)
def test_a_run_reads_what_scattered_positions_read(lists: list[WeightList], start: int, num: int) -> None:
    mixture = mixture_of(lists, [0], 3)
    positions_N = np.arange(start, start + num)
    source_N, rank_N = mixture.locate(positions_N)
    turned_N = np.random.default_rng(num).permutation(num)
    scattered = mixture_of(lists, [0], 3).locate(positions_N[turned_N])
    assert np.array_equal(source_N[turned_N], scattered[0])
    assert np.array_equal(rank_N[turned_N], scattered[1])
    source_N[:], rank_N[:] = -1, -1  # the caller's own: what is kept inside stays as it was
    again = mixture.locate(positions_N)
    assert np.array_equal(again[0][turned_N], scattered[0])
    for source in np.unique(scattered[0]).tolist():
        mine = scattered[0] == source
        found_N = mixture.position_of(source, scattered[1][mine])
        assert np.array_equal(found_N, positions_N[turned_N][mine])
    if len(lists[0]) == 1:
        assert mixture.position_of(0, np.array([POSITION_LIMIT - 1, POSITION_LIMIT])).tolist() == [
            POSITION_LIMIT - 1,
            -1,
        ]
