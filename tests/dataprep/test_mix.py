"""Mixing by tokens: shares hold, policies differ where a source runs out, a larger plan keeps the earlier documents.

Oracles: sums worked out by hand in the tests, and brute force over single tokens.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.tokenizer_models import small_tokenizer

from dataprep import mix_plan
from dataprep.mix import keep_cover, keep_prefix, mix_table, realised, stages_table
from dataprep.mix_config import MixConfig, MixStageConfig
from dataprep.mix_plan import SHARE_BITS, MixPlan, largest_remainder, most_tokens, plan_mix
from dataprep.thin_stage import MOST_TOKENS_A_BYTE
from loader.errors import JobError, RefusedError
from loader.text.tokenizers import TOKENIZERS

TOKENS = {"web": 9000, "code": 1000, "books": 500}
LARGE = {source: 1000 * tokens for source, tokens in TOKENS.items()}
ANNEAL = (MixStageConfig(0.9, {"web": 3, "code": 1}), MixStageConfig(0.1, {"books": 1, "web": 0}))


def planned(config: MixConfig, tokens: dict[str, int] = TOKENS, seq_len: int = 1) -> dict[str, int]:
    plan = plan_mix(tokens, config, seq_len)
    return {source: plan.planned_tokens(source) for source in tokens}


def borders(plan: MixPlan) -> list[tuple[int, int]]:
    return [(stage.asked, stage.start_tokens) for stage in plan.stages]


def test_nothing_asked_keeps_everything() -> None:
    plan = plan_mix(TOKENS, MixConfig(), 8)
    assert plan.keep_tokens == TOKENS
    assert planned(MixConfig()) == TOKENS
    assert sum(plan.ratios.values()) == pytest.approx(1)


def test_ratios_alone_are_limited_by_the_scarcest_source() -> None:
    config = MixConfig(ratios={"web": 1, "code": 1, "books": 2})
    assert planned(config) == {"web": 250, "code": 250, "books": 500}
    more = MixConfig(ratios={"web": 1, "code": 1, "books": 2}, max_epochs={"books": 3})
    assert planned(more) == {"web": 750, "code": 750, "books": 1500}
    assert plan_mix(TOKENS, more, 1).keep_tokens["books"] == 500


def test_total_is_shared_by_ratio_and_repeats_where_allowed() -> None:
    config = MixConfig(ratios={"web": 0.5, "code": 0.25, "books": 0.25}, total_tokens=8000)
    assert planned(config) == {"web": 4000, "code": 2000, "books": 2000}
    assert plan_mix(TOKENS, config, 1).keep_tokens == {"web": 4001, "code": 1000, "books": 500}


def test_a_total_alone_takes_the_natural_shares() -> None:
    assert planned(MixConfig(total_tokens=2100)) == {"web": 1800, "code": 200, "books": 100}


def test_too_many_epochs_are_refused_by_name() -> None:
    config = MixConfig(ratios={"web": 2, "code": 1, "books": 1}, total_tokens=8000, max_epochs={"books": 2})
    with pytest.raises(RefusedError, match=r"'books' would be seen 4\.00 times") as caught:
        plan_mix(TOKENS, config, 1)
    assert caught.value.expected is not None
    assert "total_tokens <= 4000" in caught.value.expected
    allowed = MixConfig(ratios={"web": 2, "code": 1, "books": 1}, total_tokens=4000, max_epochs={"books": 2})
    assert planned(allowed) == {"web": 2000, "code": 1000, "books": 1000}


def test_stop_ends_the_plan_where_the_first_source_runs_out() -> None:
    ratios = {"web": 2.0, "code": 1.0, "books": 1.0}
    config = MixConfig(ratios=ratios, total_tokens=8000, exhaustion="stop")
    for seq_len in (1, 64):  # an end needs no border
        assert planned(config, seq_len=seq_len) == {"web": 1000, "code": 500, "books": 500}


def test_renormalise_gives_the_rest_to_the_others() -> None:
    ratios = {"web": 2.0, "code": 1.0, "books": 1.0}
    config = MixConfig(ratios=ratios, total_tokens=8000, exhaustion="renormalise")
    assert planned(config) == {"web": 6500, "code": 1000, "books": 500}
    plan = plan_mix(TOKENS, config, 1)
    # books end in the block behind 1792 (500 / 0.25 = 2000), code in that behind 3328
    assert borders(plan) == [(0, 0), (0, 1792), (0, 2048), (0, 3328), (0, 3584)]
    assert plan.stages[1].tokens == {"books": 500 - 448, "web": 136, "code": 68}
    assert set(plan.stages[-1].tokens) == {"web"}
    everything = MixConfig(ratios=ratios, total_tokens=50_000, exhaustion="renormalise")
    for seq_len in (1, 4, 64):
        assert planned(everything, seq_len=seq_len) == TOKENS


def test_temperature_flattens() -> None:
    tokens = {"web": 10_000, "code": 100}
    assert planned(MixConfig(temperature=1, total_tokens=10_100), tokens) == tokens
    assert planned(MixConfig(temperature=2, total_tokens=1100), tokens) == {"web": 1000, "code": 100}
    assert planned(MixConfig(temperature=1e6, total_tokens=100), tokens) == {"web": 50, "code": 50}
    with pytest.raises(RefusedError, match=r"'code'.*temperature") as caught:
        plan_mix(tokens, MixConfig(temperature=0.01), 1)
    assert caught.value.code == "TR-MIX-UNREACHED"


def test_stages_follow_each_other_on_block_borders() -> None:
    plan = plan_mix(LARGE, MixConfig(stages=ANNEAL, total_tokens=3_000_000), 64)
    grid = 256 * 64
    assert borders(plan) == [(0, 0), (1, round(2_700_000 / grid) * grid)]
    assert plan.stages[0].shares == {"web": 3 << (SHARE_BITS - 2), "code": 1 << (SHARE_BITS - 2)}
    assert plan.stages[1].shares == {"books": 1 << SHARE_BITS}
    assert plan.total_tokens == 3_000_000
    assert plan.ratios == {"web": pytest.approx(0.675), "code": pytest.approx(0.225), "books": pytest.approx(0.1)}
    for source, available in LARGE.items():
        assert plan.planned_tokens(source) <= plan.keep_tokens[source] <= 0.9 * available


def test_longest_plan_with_stages_reads_nobody_more_than_it_may() -> None:
    plan = plan_mix(LARGE, MixConfig(stages=ANNEAL), 64)
    used = {source: plan.planned_tokens(source) for source in LARGE}
    assert all(used[source] <= LARGE[source] for source in LARGE)
    assert used["code"] > 0.99 * LARGE["code"]


def test_a_source_that_runs_out_in_an_early_stage() -> None:
    config = MixConfig(stages=ANNEAL, total_tokens=9_000_000, exhaustion="renormalise", max_epochs={"books": 2})
    plan = plan_mix(LARGE, config, 64)
    assert plan.planned_tokens("code") == 1_000_000
    assert [stage.asked for stage in plan.stages] == [0, 0, 0, 1]
    assert set(plan.stages[2].tokens) == {"web"}
    assert plan.stages[3].tokens == {"books": plan.total_tokens - plan.stages[3].start_tokens}


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"stages": ANNEAL, "total_tokens": 60_000}, "TR-MIX-STAGE-SHORT", "stage 1"),
        ({"stages": ANNEAL, "total_tokens": 30_000_000, "exhaustion": "stop"}, "TR-MIX-STAGE-SHORT", "stage 1"),
        ({"ratios": {"web": 1, "code": 1, "books": 1e-8}, "total_tokens": 10**6}, "TR-MIX-UNREACHED", "'books'"),
        ({"ratios": {"web": 1e9, "code": 1, "books": 1}, "total_tokens": 10**12}, "TR-MIX-UNREACHED", "share"),
        ({"ratios": {"web": 1, "code": 1, "books": 1}, "total_tokens": 1 << 55}, "TR-MIX-LONG", "samples"),
    ],
)
def test_what_would_leave_a_source_out_in_silence_is_refused(change: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as caught:
        plan_mix(LARGE, MixConfig(**change), 64)
    assert caught.value.code == code


def test_empty_source_is_named() -> None:
    with pytest.raises(JobError, match="'code' has no documents") as caught:
        plan_mix({"web": 5, "code": 0}, MixConfig(), 8)
    assert caught.value.code == "TR-MIX-EMPTY"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratios": {"web": 1.0}, "temperature": 2.0}, "one of ratios, temperature, stages"),
        ({"temperature": 0.0}, "temperature"),
        ({"total_tokens": 0}, "total_tokens"),
        ({"max_epochs": {"web": 0.0}}, "web must be positive"),
        ({"max_epochs": {"web": float("inf")}}, "web must be positive"),
    ],
)
def test_what_a_mix_block_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixConfig(**change)


@pytest.mark.parametrize("ratios", [{}, {"web": 0.0}, {"web": -1.0}, {"web": float("nan")}])
def test_what_a_stage_refuses(ratios: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="ratios"):
        MixStageConfig(1, ratios)


counts = st.lists(st.integers(1, 50), min_size=1, max_size=60)


@given(tokens=counts, budgets=st.tuples(st.integers(1, 1500), st.integers(1, 1500)), seed=st.integers(0, 2**32 - 1))
def test_larger_budget_keeps_the_earlier_documents(tokens: list[int], budgets: tuple[int, int], seed: int) -> None:
    tokens_D = np.array(tokens)
    key_D = np.random.default_rng(seed).permutation(len(tokens)).astype(np.uint64)
    in_order = tokens_D[np.argsort(key_D)]
    for keep in (keep_prefix, keep_cover):
        small_D, large_D = (keep(key_D, tokens_D, budget) for budget in sorted(budgets))
        assert not (small_D & ~large_D).any()
        assert small_D.any()
        for kept_D in (small_D, large_D):
            assert key_D[kept_D].max() < key_D[~kept_D].min(initial=len(tokens))
    for budget in budgets:
        inside, covering = (keep(key_D, tokens_D, budget) for keep in (keep_prefix, keep_cover))
        assert in_order[: inside.sum()].sum() <= budget or inside.sum() == 1
        assert in_order[: covering.sum()].sum() >= budget or covering.all()
        assert in_order[: covering.sum() - 1].sum() < budget


@given(weights=st.lists(st.integers(0, 10**9), min_size=1, max_size=20).filter(any), total=st.integers(0, 10**12))
def test_whole_numbers_in_proportion(weights: list[int], total: int) -> None:
    parts = largest_remainder({str(i): weight for i, weight in enumerate(weights)}, total)
    assert sum(parts.values()) == total
    for i, weight in enumerate(weights):
        assert abs(parts[str(i)] - Fraction(weight * total, sum(weights))) < 1


names = ("a", "b", "c", "d")
some_tokens = st.lists(st.integers(2_000, 400_000), min_size=4, max_size=4)
some_ratios = st.lists(st.integers(1, 20), min_size=4, max_size=4)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration without its total; every source has a share."""
    epochs = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([1.0, 1.5, 4.0]), max_size=4))
    kind = draw(st.sampled_from(["ratios", "temperature", "stages", "plain"]))
    config: dict[str, Any] = {"max_epochs": epochs}
    if kind == "ratios":
        config["ratios"] = dict(zip(names, map(float, draw(some_ratios)), strict=True))
    elif kind == "temperature":
        config["temperature"] = draw(st.sampled_from([0.7, 1.0, 3.0]))
    elif kind == "stages":
        first = dict(zip(names, map(float, draw(some_ratios)), strict=True))
        rest = draw(st.lists(st.dictionaries(st.sampled_from(names), st.floats(1, 9), min_size=1), min_size=1))
        config["stages"] = tuple(MixStageConfig(draw(st.floats(1, 5)), ratios) for ratios in (first, *rest[:3]))
    return config


@settings(max_examples=150, deadline=None)
@given(
    tokens=some_tokens,
    config=configs(),
    totals=st.tuples(st.integers(20_000, 900_000), st.integers(20_000, 900_000)),
    policy=st.sampled_from(["repeat", "stop", "renormalise"]),
    seq_len=st.sampled_from([1, 4, 16]),
)
def test_plans_hold_what_they_say(
    tokens: list[int], config: dict[str, Any], totals: tuple[int, int], policy: Any, seq_len: int
) -> None:
    available = dict(zip(names, tokens, strict=True))
    plans = []
    for total in sorted(totals):
        asked = MixConfig(**config, total_tokens=total, exhaustion=policy)
        plan = plan_or_code(available, asked, seq_len)
        if isinstance(plan, str):
            event(plan)
            refusals = {"TR-MIX-STAGE-SHORT", "TR-MIX-UNREACHED", *(["TR-MIX-EPOCHS"] if policy == "repeat" else [])}
            assert plan in refusals
            return
        _check_plan(plan, asked, available, seq_len)
        plans.append(plan)
    event("planned")
    small, large = plans
    if policy != "stop" or len(config.get("stages", ())) < 2:
        assert all(small.keep_tokens[s] <= large.keep_tokens[s] for s in names)


def plan_or_code(tokens: dict[str, int], config: MixConfig, seq_len: int) -> MixPlan | str:
    """The plan, or the code of the refusal."""
    try:
        return plan_mix(tokens, config, seq_len)
    except RefusedError as error:
        return error.code


def _check_plan(plan: MixPlan, config: MixConfig, available: dict[str, int], seq_len: int) -> None:
    grid = 256 * seq_len
    assert plan.stages[0].start_tokens == 0
    for before, after in zip(plan.stages, plan.stages[1:], strict=False):
        assert before.stop_tokens == after.start_tokens
        assert after.start_tokens % grid == 0
    assert config.total_tokens is not None
    assert plan.total_tokens <= config.total_tokens
    assert (plan.total_tokens == config.total_tokens) or config.exhaustion != "repeat"
    once = 1.0 if config.exhaustion != "repeat" else float("inf")
    for source in names:
        used = plan.planned_tokens(source)
        assert used <= config.max_epochs.get(source, once) * available[source]
        assert min(used, available[source]) <= plan.keep_tokens[source] <= available[source]
    for stage in plan.stages:
        assert sum(stage.tokens.values()) == stage.stop_tokens - stage.start_tokens
        assert sum(stage.shares.values()) == 1 << SHARE_BITS
        for source, share in stage.shares.items():
            exact = Fraction(share * sum(stage.tokens.values()), 1 << SHARE_BITS)
            assert abs(stage.tokens[source] - exact) < 2
    most = most_tokens(list(names), config, seq_len)
    assert all(plan.keep_tokens[source] <= most.get(source, 1 << 60) for source in names)
    kept = {source: (1, tokens) for source, tokens in plan.keep_tokens.items()}
    rows = realised(plan, {source: (1, tokens) for source, tokens in available.items()}, kept, {})
    assert sum(row.share for row in rows) == pytest.approx(1)


@settings(max_examples=80, deadline=None)
@given(tokens=some_tokens, ratios=some_ratios, more=st.integers(1, 20), total=st.integers(10_000, 900_000))
def test_a_larger_ratio_keeps_the_earlier_documents(
    tokens: list[int], ratios: list[int], more: int, total: int
) -> None:
    available = dict(zip(names, tokens, strict=True))
    for length in (total, None):
        keeps = []
        for first in (ratios[0], ratios[0] + more):
            shares = dict(zip(names, map(float, [first, *ratios[1:]]), strict=True))
            keeps.append(plan_mix(available, MixConfig(ratios=shares, total_tokens=length), 4).keep_tokens["a"])
        assert keeps[0] <= keeps[1]


def test_shares_are_realised_and_printed() -> None:
    plan = plan_mix({"web": 9000, "code": 1000}, MixConfig(ratios={"web": 1, "code": 1}, total_tokens=4000), 8)
    rows = realised(plan, {"web": (90, 9000), "code": (10, 1000)}, {"web": (21, 2010), "code": (10, 1000)}, {"web": 5})
    assert [(row.share, row.error) for row in rows] == [(0.5, 0), (0.5, 0)]
    assert [row.epochs for row in rows] == [2000 / 2010, 2]
    table = mix_table(rows).splitlines()
    assert table[1].split() == ["source", "available", "planned", "kept", "asked", "share", "error", "epochs"]
    assert table[2].split() == ["web", "~9,000", "2,000", "2,010", "50.00%", "50.00%", "+0.000%", "0.995"]
    assert table[-1].startswith("~ estimated")
    assert "web 50.00%  code 50.00%" in stages_table(plan.stages)


def test_a_cap_below_one_epoch_holds_where_nothing_else_is_asked_for() -> None:
    config = MixConfig(max_epochs={"code": 0.5})
    assert config.asks
    assert planned(config) == {"web": 4500, "code": 500, "books": 250}
    assert not MixConfig(max_epochs={"code": 3}).asks


def test_many_stages_of_many_sources_have_one_denominator() -> None:
    """Quotients of their own would sum to numbers of thousands of digits; what was asked for stays, to 2^-40."""
    names = [f"s{number}" for number in range(40)]
    stages = tuple(
        MixStageConfig(1.1 + s % 3, {n: 0.1 + (7 * i + s) % 11 for i, n in enumerate(names)}) for s in range(48)
    )
    plan = plan_mix(dict.fromkeys(names, 10**9), MixConfig(stages=stages, total_tokens=10**10), 8)
    for planned_stage in plan.stages:
        weights = stages[planned_stage.asked].ratios
        for name in names:
            exact = Fraction(weights[name]) / sum(map(Fraction, weights.values()))
            assert abs(exact - Fraction(planned_stage.shares[name], 1 << SHARE_BITS)) <= Fraction(1, 1 << SHARE_BITS)
    assert (
        max(len(str(mix_plan._asked(dict.fromkeys(names, 1), MixConfig(stages=stages)).mean(n))) for n in names) < 200
    )


@pytest.mark.parametrize(
    ("kind", "lossless"),
    [(kind, lossless) for kind in TOKENIZERS for lossless in (True, False) if lossless or kind != "tiktoken"],
)
@pytest.mark.parametrize("text", ["\ufdfa", "\ufdfa" * 100, "\x00" * 100, "\u0390" * 100, " ", "e\u0301" * 50])
def test_no_text_has_more_tokens_than_thinning_counts_with(kind: str, lossless: bool, text: str) -> None:
    """U+FDFA is what normalising makes longest: eleven bytes of one."""
    assert len(small_tokenizer(kind, lossless).encode(text)[0]) <= MOST_TOKENS_A_BYTE * len(text.encode())
