"""Mixing by tokens: shares hold, policies differ where a source runs out, a larger budget keeps the earlier
documents.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.config import MixConfig
from dataprep.mix import keep_prefix, mix_table, plan_mix, realised
from loader.errors import JobError, RefusedError

TOKENS = {"web": 9000, "code": 1000, "books": 500}


def planned(config: MixConfig) -> dict[str, int]:
    return {source: row[1] for source, row in plan_mix(TOKENS, config).items()}


def test_nothing_asked_keeps_everything() -> None:
    rows = plan_mix(TOKENS, MixConfig())
    assert {source: row[2] for source, row in rows.items()} == TOKENS
    assert sum(row[0] for row in rows.values()) == pytest.approx(1)


def test_ratios_alone_are_limited_by_the_scarcest_source() -> None:
    config = MixConfig(ratios={"web": 1, "code": 1, "books": 2})
    assert planned(config) == {"web": 250, "code": 250, "books": 500}
    more = MixConfig(ratios={"web": 1, "code": 1, "books": 2}, max_epochs={"books": 3})
    assert planned(more) == {"web": 750, "code": 750, "books": 1500}
    assert plan_mix(TOKENS, more)["books"][2] == 500


def test_total_is_shared_by_ratio_and_repeats_where_allowed() -> None:
    config = MixConfig(ratios={"web": 0.5, "code": 0.25, "books": 0.25}, total_tokens=8000)
    assert planned(config) == {"web": 4000, "code": 2000, "books": 2000}
    assert plan_mix(TOKENS, config)["books"] == (0.25, 2000, 500)


def test_too_many_epochs_are_refused_by_name() -> None:
    config = MixConfig(ratios={"web": 2, "code": 1, "books": 1}, total_tokens=8000, max_epochs={"books": 2})
    with pytest.raises(RefusedError, match=r"'books' would be seen 4\.00 times") as caught:
        plan_mix(TOKENS, config)
    assert caught.value.expected is not None
    assert "total_tokens <= 4000" in caught.value.expected


def test_stop_shortens_the_plan() -> None:
    ratios = {"web": 2.0, "code": 1.0, "books": 1.0}
    config = MixConfig(ratios=ratios, total_tokens=8000, exhaustion="stop")
    assert planned(config) == {"web": 1000, "code": 500, "books": 500}


def test_renormalise_gives_the_rest_to_the_others() -> None:
    ratios = {"web": 2.0, "code": 1.0, "books": 1.0}
    config = MixConfig(ratios=ratios, total_tokens=8000, exhaustion="renormalise")
    assert planned(config) == {"web": 6500, "code": 1000, "books": 500}
    everything = MixConfig(ratios=ratios, total_tokens=50_000, exhaustion="renormalise")
    assert planned(everything) == TOKENS


def test_empty_source_is_named() -> None:
    with pytest.raises(JobError, match="'code' has no documents") as caught:
        plan_mix({"web": 5, "code": 0}, MixConfig())
    assert caught.value.code == "TR-MIX-EMPTY"


@given(
    tokens=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    budgets=st.tuples(st.integers(0, 1500), st.integers(0, 1500)),
    seed=st.integers(0, 2**32 - 1),
)
def test_larger_budget_keeps_the_earlier_documents(tokens: list[int], budgets: tuple[int, int], seed: int) -> None:
    tokens_D = np.array(tokens)
    key_D = np.random.default_rng(seed).permutation(len(tokens)).astype(np.uint64)
    small_D, large_D = (keep_prefix(key_D, tokens_D, budget) for budget in sorted(budgets))
    assert not (small_D & ~large_D).any()
    assert small_D.any()
    for budget, kept_D in zip(sorted(budgets), (small_D, large_D), strict=True):
        assert tokens_D[kept_D].sum() <= max(budget, tokens_D[kept_D][0])
        assert key_D[kept_D].max() < key_D[~kept_D].min(initial=len(tokens))
        if not kept_D.all():
            following = tokens_D[np.argsort(key_D)][kept_D.sum()]
            assert tokens_D[kept_D].sum() + following > budget


def test_shares_are_realised_and_printed() -> None:
    config = MixConfig(ratios={"web": 1, "code": 1}, total_tokens=4000)
    plan = plan_mix({"web": 9000, "code": 1000}, config)
    rows = realised(plan, {"web": (90, 9000), "code": (10, 1000)}, {"web": (20, 1990), "code": (10, 1000)})
    assert [row.share for row in rows] == [pytest.approx(1990 / 3990), pytest.approx(2000 / 3990)]
    assert [row.epochs for row in rows] == [1, 2]
    assert "code" in mix_table(rows)
