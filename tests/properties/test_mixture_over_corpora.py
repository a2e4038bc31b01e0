"""The mixture over whole runs: no sample lost or repeated at stage borders, bounds on adversarial weights and stages,
and batches that look like independent draws where the corpus is sorted by source.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import ConfigError
from loader.order import (
    BLOCK,
    POSITION_LIMIT,
    BatchStage,
    Mixture,
    MixtureStage,
    Plan,
    PlanConfig,
    SourceShape,
    compile_mixture,
)

SIZES = [1, 3, 127, 128, 131, 1009, 1024]  # one sample, three, primes, powers of two
TOTAL = 1 << 26


def shards_of(size: int, kind: str) -> list[int]:
    """A source of ``size`` samples in one shard, in ragged ones, or in shards of one sample."""
    if kind == "crumbs":
        return [1] * size
    return [size] if kind == "whole" else [size // 3, 0, size - size // 3 - size // 2, size // 2]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kinds = st.tuples(st.sampled_from(SIZES), st.sampled_from(["whole", "ragged", "crumbs"]))
    sources = [(1009, draw(st.sampled_from(["whole", "ragged"]))), *draw(st.lists(kinds, max_size=5))]
    names = [f"s{number}" for number in range(len(sources))]
    starts = [0, *sorted(draw(st.sets(st.integers(1, 12), max_size=5)))]
    # epochs of a sample or three cost a table each: they get little weight
    few, many = st.sampled_from([0.0, 1e-6, 0.02]), st.sampled_from([0.0, 1e-6, 0.3, 1.0, 5.0])
    weights = {name: few if source[0] <= 3 else many for name, source in zip(names, sources, strict=True)}
    stages = tuple(
        MixtureStage(BLOCK * start, {name: draw(some) for name, some in weights.items()} | {names[0]: 1.0})
        for start in starts
    )
    shapes = tuple(SourceShape(name, shards_of(*source)) for name, source in zip(names, sources, strict=True))
    return Plan(PlanConfig(shapes, draw(st.integers(0, 99)), stages, (BatchStage(0, 32),), 2, 3))


@settings(max_examples=25, deadline=None)
@given(plans())
def test_no_sample_is_lost_or_repeated_over_stage_borders(plan: Plan) -> None:
    """Each source's readings are whole epochs one after the other, whatever stages they fall in; the last is part of
    one. The reference is a plan of that source alone, with one stage."""
    refs = plan.samples(np.arange(14 * BLOCK))
    for number, shape in enumerate(plan.config.sources):
        mine = refs.source_N == number
        size = plan.orders[number].num_samples
        sample_N, epoch_N = refs.sample_N[mine], refs.epoch_N[mine]
        assert epoch_N.tolist() == (np.arange(len(sample_N)) // size).tolist()
        for epoch in range(len(sample_N) // size):
            assert np.array_equal(np.sort(sample_N[epoch * size : (epoch + 1) * size]), np.arange(size))
        rest = sample_N[len(sample_N) // size * size :]
        assert len(np.unique(rest)) == len(rest)
        alone = Plan(
            PlanConfig((shape,), plan.config.seed, (MixtureStage(0, {shape.name: 1}),), (BatchStage(0, 1),), 2, 3)
        )
        assert np.array_equal(alone.samples(np.arange(len(sample_N))).sample_N, sample_N)


@settings(max_examples=20, deadline=None)
@given(plans(), st.integers(1, 12), st.integers(1, 200))
def test_a_longer_run_keeps_the_prefix(plan: Plan, border: int, batch: int) -> None:
    """Stages, batch sizes and sources that come later change no step before; neither does the order of sources."""
    config, stop = plan.config, BLOCK * border
    kept = tuple(stage for stage in config.stages if stage.start < stop)
    more = SourceShape("later", [17])
    longer = PlanConfig(
        (more, *reversed(config.sources)),
        config.seed,
        (*kept, MixtureStage(stop, {"later": 2, config.sources[0].name: 1})),
        (*config.batch, BatchStage(stop, batch)),
        2,
        3,
    )
    other = Plan(longer)
    old, new = plan.samples(np.arange(stop)), other.samples(np.arange(stop))
    assert [plan.source_names[s] for s in old.source_N] == [other.source_names[s] for s in new.source_N]
    assert np.array_equal(old.sample_N, new.sample_N)
    assert np.array_equal(old.epoch_N, new.epoch_N)
    for step in range(stop // 32):
        assert np.array_equal(plan.step_positions(step), other.step_positions(step))


def hostile(num_sources: int, kind: str, rng: np.random.Generator, mixture: Mixture | None, at: int) -> np.ndarray:
    """Weights of the next stage. ``tiny``: all but one near 1e-6. ``flip``: two halves in turns. ``greedy``: what is
    ahead of its target gets next to nothing, what is behind gets much. ``spiky``: 30 powers of two of range."""
    if kind == "tiny":
        weights = 1e-6 * (1 + rng.random(num_sources))
        weights[int(rng.integers(num_sources))] = 1.0
        return weights
    if kind == "flip":
        return np.where((np.arange(num_sources) < num_sources // 2) == (at // BLOCK % 2 == 0), 1.0, 1e-6)
    if kind == "spiky" or mixture is None:
        return np.maximum(2.0 ** -rng.integers(0, 20, num_sources), 1e-6)
    ahead = mixture.counts_before(at) - mixture.targets_before(at)
    return np.where(ahead > 0, 1e-5, 1.0 + rng.random(num_sources))


@pytest.mark.parametrize("kind", ["tiny", "flip", "spiky", "greedy"])
@pytest.mark.parametrize("num_sources", [2, 3, 17, 256])
def test_hostile_weights_stay_within_four(num_sources: int, kind: str) -> None:
    """Targets in whole numbers over 60 stages that are chosen with a view of the counts so far."""
    rng = np.random.default_rng(num_sources)
    names = [f"s{number:03d}" for number in range(num_sources)]
    stages, at, mixture = list[MixtureStage](), 0, None
    for _ in range(60):
        weights = hostile(num_sources, kind, rng, mixture, at).tolist()
        stages.append(MixtureStage(at, dict(zip(names, weights, strict=True))))
        mixture = compile_mixture(names, stages, 0)
        at += BLOCK * int(rng.integers(1, 3))
    assert mixture is not None
    target_S, starts = np.zeros(num_sources, np.int64), [stage.start for stage in mixture.stages] + [at]
    for stage, stop in zip(mixture.stages, starts[1:], strict=True):
        weight_S = np.array([stage.weights.get(name, 0) for name in names])
        for border in range(stage.start + BLOCK, stop + 1, BLOCK):
            target_S = target_S + BLOCK * weight_S
            assert np.abs((mixture.counts_before(border) << 26) - target_S).max() <= 4 * TOTAL


def test_batches_of_a_sorted_corpus_are_like_independent_draws() -> None:
    """A corpus in the order of its sources, 50 seeds: a batch's counts per source never vary more than draws would.

    Blocks are exact, so whole blocks vary less; small batches are the hard case. Over 50 seeds x 200 batches the mean
    of a source's count lies within 5 standard errors, its variance is at most the binomial's (plus 5 of its own), no
    single count is 6 standard deviations off, and each place of the batch sees each source at its share.
    """
    weights = {"a": 0.55, "b": 0.3, "c": 0.1, "d": 0.05}
    share_S = np.array(list(weights.values()))
    for batch in (8, 100, 256, 1000):
        counts, at_place_BS = [], np.zeros((batch, 4))
        for seed in range(50):
            source_N, _ = compile_mixture(list(weights), (MixtureStage(0, weights),), seed).locate(
                np.arange(200 * batch)
            )
            rows = source_N.reshape(200, batch)
            counts.append(np.stack([(rows == source).sum(axis=1) for source in range(4)], axis=1))
            at_place_BS += np.stack([(rows == source).sum(axis=0) for source in range(4)], axis=1)
        counts_US = np.concatenate(counts)
        variance_S = batch * share_S * (1 - share_S)
        num = len(counts_US)
        assert (np.abs(counts_US.mean(axis=0) - batch * share_S) <= 5 * np.sqrt(variance_S / num) + 1e-9).all()
        assert (counts_US.var(axis=0) <= variance_S * (1 + 5 * np.sqrt(2 / num))).all()
        assert (np.abs(counts_US - batch * share_S).max(axis=0) <= 6 * np.sqrt(variance_S) + 1).all()
        error_S = np.sqrt(share_S * (1 - share_S) / num)  # no place of a batch, so no rank, gets more of a source
        assert (np.abs(at_place_BS / num - share_S) <= 6 * error_S).all()


def test_samples_of_a_batch_come_from_all_over_the_window() -> None:
    """A source sorted by content: each of 50 seeds spreads a batch over the live shards like draws from them."""
    shard_samples, window, slices, batch = 256, 4, 4, 128
    for seed in range(50):
        shapes = (SourceShape("web", [shard_samples] * 64),)
        plan = Plan(PlanConfig(shapes, seed, (MixtureStage(0, {"web": 1}),), (BatchStage(0, batch),), window, slices))
        middle = window * shard_samples * 6
        sample_N = plan.samples(np.arange(middle, middle + 8 * batch)).sample_N
        for part in np.split(sample_N, 8):
            counts = np.unique(part // shard_samples, return_counts=True)[1]
            expected = batch / (window * slices)
            assert len(counts) == window * slices
            assert counts.max() <= expected + 6 * expected**0.5


@pytest.mark.parametrize("weight", [2.0**-28, 7e-9])
def test_a_weight_that_would_round_to_nothing_is_refused(weight: float) -> None:
    names = [f"s{number}" for number in range(256)]
    stages = [MixtureStage(0, dict.fromkeys(names, 1.0)), MixtureStage(BLOCK, {"s0": 1.0, "s1": weight})]
    with pytest.raises(ConfigError, match="would round to 0") as caught:
        compile_mixture(names, stages, 0)
    assert caught.value.place == "mixture stage at position 256"
    smallest = compile_mixture(names, [MixtureStage(0, {"s0": 1.0, "s1": 2.0**-26})], 0)
    assert smallest.counts_before(POSITION_LIMIT)[1] == POSITION_LIMIT >> 26
    assert compile_mixture(names, [MixtureStage(0, {"s0": 1.0, "s1": 0})], 0).counts_before(POSITION_LIMIT)[1] == 0
