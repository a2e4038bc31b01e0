"""The default Mixture of a mix, read by the loader's real Plan: each stage has the shares that were asked for, and no
source is read more often than it may be.

Deviation: the loader keeps each source's count within 4 samples of its target at every border of a block, so within 8
between two of them; a sample is ``seq_len`` tokens at most.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dataprep.mix import keep_cover, realised
from dataprep.mix_config import MixConfig, MixStageConfig
from dataprep.mix_output import position_mixture
from dataprep.mix_plan import MixPlan, plan_mix
from dataprep.mix_stage import Mix
from loader.errors import RefusedError
from loader.order import BatchStage, MixtureStage, Plan, PlanConfig, SourceShape
from loader.shards.default_mixture import DefaultMixture

NAMES = ("a", "b", "c")
SEQ_LEN = 16


def packed(plan: MixPlan, kept: dict[str, int], seq_len: int, fill: dict[str, float]) -> tuple[Mix, dict[str, int]]:
    """A finished mix, and the samples that packing would make with ``fill`` of each sample used."""
    rows = realised(plan, {s: (1, t) for s, t in kept.items()}, {s: (1, t) for s, t in kept.items()}, {})
    samples = {source: max(1, -int(-tokens // (seq_len * fill[source]))) for source, tokens in kept.items()}
    return Mix(rows, plan.stages, {}, {}), samples


def loader_plan(mixture: DefaultMixture, samples: dict[str, int], seed: int) -> Plan:
    return Plan(
        PlanConfig(
            sources=tuple(SourceShape(name, [count]) for name, count in samples.items()),
            seed=seed,
            stages=tuple(MixtureStage(stage.start, dict(stage.weights)) for stage in mixture.stages),
            batch=(BatchStage(0, 8),),
        )
    )


def config_of(ratios: list[list[int]], parts: list[float], **more: Any) -> MixConfig:
    stages = tuple(
        MixStageConfig(part, {name: float(ratio) for name, ratio in zip(NAMES, some, strict=True) if ratio})
        for part, some in zip(parts, ratios, strict=True)
    )
    return MixConfig(stages=stages, **more)


some_ratios = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)


@settings(max_examples=80, deadline=None)
@given(
    available=st.lists(st.integers(5_000, 400_000), min_size=3, max_size=3),
    ratios=st.lists(some_ratios, min_size=1, max_size=3),
    fill=st.lists(st.floats(0.8, 1), min_size=3, max_size=3),
    total=st.integers(30_000, 600_000),
    policy=st.sampled_from(["repeat", "stop", "renormalise"]),
    seed=st.integers(0, 99),
)
def test_each_stage_has_its_shares_and_nobody_runs_over(
    available: list[int], ratios: list[list[int]], fill: list[float], total: int, policy: Any, seed: int
) -> None:
    tokens = dict(zip(NAMES, available, strict=True))
    config = config_of([[1, 1, 1], *ratios], [1.0] * (1 + len(ratios)), total_tokens=total, exhaustion=policy)
    try:
        plan = plan_mix(tokens, config, SEQ_LEN)
    except RefusedError as error:
        event(error.code)
        return
    event(f"{len(plan.stages)} stages")
    mix, samples = packed(plan, dict(plan.keep_tokens), SEQ_LEN, dict(zip(NAMES, fill, strict=True)))
    mixture = position_mixture(mix, samples, SEQ_LEN, policy)
    order = loader_plan(mixture, samples, seed).mixture
    starts = {stage.start_tokens // SEQ_LEN: stage for stage in plan.stages}
    # the end of a plan is no border of a block; the border before it is
    stops = [*(stage.start for stage in mixture.stages[1:]), mixture.total_positions // 256 * 256]
    density = {s: Fraction(plan.keep_tokens[s], samples[s]) for s in NAMES}
    for stage, stop in zip(mixture.stages, stops, strict=True):
        asked = starts[stage.start]
        if stop <= stage.start:
            continue
        counts = (order.counts_before(stop) - order.counts_before(stage.start)).tolist()
        read = {name: count * density[name] for name, count in zip(NAMES, counts, strict=True)}
        whole = sum(read.values())
        for name in NAMES:
            share = Fraction(asked.shares.get(name, 0), 1 << 40)
            # its own 8 samples, and its share of the others'; 2^-26 of a weight is nothing here
            assert abs(read[name] - share * whole) <= 8 * SEQ_LEN * (1 + share * len(NAMES)) + 1
    read_to_the_end = order.counts_before(mixture.total_positions).tolist()
    for name, count in zip(NAMES, read_to_the_end, strict=True):
        epochs = Fraction(plan.planned_tokens(name), plan.keep_tokens[name])
        assert count <= epochs * samples[name] + 4 + 16  # 16: the end lies inside a block, whose order is shuffled
        assert count > 0 or plan.planned_tokens(name) < 20 * SEQ_LEN


@pytest.mark.parametrize("seq_len", [2048, 8192])
@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.9, 0.09, 0.01)])
def test_shares_are_right_to_a_thousandth_per_ten_million_tokens(
    seq_len: int, weights: tuple[float, float, float]
) -> None:
    """Also where a single document is a tenth of the plan: ``a`` holds documents of 1 to 3 million tokens."""
    rng = np.random.default_rng(5)
    documents = {
        "a": rng.integers(1_000_000, 3_000_000, 60),
        "b": rng.integers(1, 200_000, 3_000),
        "c": rng.integers(1, 900, 90_000),
    }
    total = 40_000_000
    config = MixConfig(ratios=dict(zip(NAMES, weights, strict=True)), total_tokens=total)
    plan = plan_mix({name: int(tokens_D.sum()) for name, tokens_D in documents.items()}, config, seq_len)
    kept = {}
    for name, tokens_D in documents.items():
        kept_D = keep_cover(rng.permutation(len(tokens_D)).astype(np.uint64), tokens_D, plan.keep_tokens[name])
        kept[name] = int(tokens_D[kept_D].sum())
        assert plan.keep_tokens[name] <= kept[name] < plan.keep_tokens[name] + tokens_D.max()
    mix, samples = packed(plan, kept, seq_len, {"a": 1.0, "b": 0.9995, "c": 0.999})
    mixture = position_mixture(mix, samples, seq_len, "repeat")
    order = loader_plan(mixture, samples, 3).mixture
    density = np.array([kept[name] / samples[name] for name in NAMES])
    block = 256 * (10_000_000 // (256 * seq_len) + 1)  # the shortest run of blocks with ten million tokens
    for start in range(0, mixture.total_positions - block, block):
        read = (order.counts_before(start + block) - order.counts_before(start)) * density
        error = np.abs(read / read.sum() - weights).max()
        assert error < 0.001 * 10_000_000 / read.sum() * max(1, seq_len / 2048)
    whole = order.counts_before(mixture.total_positions // 256 * 256) * density
    assert np.abs(whole / whole.sum() - weights).max() < 0.00025
    assert all(order.counts_before(mixture.total_positions)[i] <= samples[name] for i, name in enumerate(NAMES))
