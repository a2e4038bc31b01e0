"""A default Mixture over repacked samples gives the tokens that it gave before."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.mix_repack import repacked_mixture
from loader.errors import RefusedError
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage, parse_mixture

UNITS = 1 << 26
weights = st.integers(1, UNITS - 1).map(lambda a: {"a": a, "b": UNITS - a})


@given(
    stages=st.lists(weights, min_size=1, max_size=4),
    blocks=st.lists(st.integers(8, 90), min_size=4, max_size=4),
    seq_lens=st.tuples(st.sampled_from([64, 96, 128]), st.sampled_from([48, 64, 128, 256])),
    samples=st.tuples(st.integers(500, 9000), st.integers(500, 9000)),
)
def test_shares_of_tokens_and_borders_stay(
    stages: list[dict[str, int]], blocks: list[int], seq_lens: tuple[int, int], samples: tuple[int, int]
) -> None:
    starts = [256 * sum(blocks[:number]) for number in range(len(stages) + 1)]
    old = DefaultMixture("stop", starts[-1], tuple(map(DefaultMixtureStage, starts, stages)))
    before, after = seq_lens
    tokens = {"a": samples[0] * before - 7, "b": samples[1] * before - 300}
    counts = {name: (n, -(-tokens[name] // after)) for name, n in zip("ab", samples, strict=True)}
    new = repacked_mixture(old, counts, seq_lens)
    assert parse_mixture(new.to_json(), {"a", "b"}, "here") == new
    assert abs(new.total_positions * after - old.total_positions * before) < after
    assert len(new.stages) == len(old.stages)
    for was, now in zip(old.stages, new.stages, strict=True):
        assert abs(now.start * after - was.start * before) <= 128 * after
        shares = []
        for stage, which in ((was, 0), (now, 1)):
            read = {name: Fraction(stage.weights.get(name, 0) * tokens[name], counts[name][which]) for name in "ab"}
            shares.append(read["a"] / sum(read.values()))
        assert abs(shares[0] - shares[1]) < Fraction(8, UNITS)


def test_a_stage_without_a_block_left_is_left_out_or_refused() -> None:
    both, only_b = {"a": UNITS // 2, "b": UNITS // 2}, {"b": UNITS}
    samples = {"a": (900, 90), "b": (900, 90)}
    middle = DefaultMixture(
        "repeat",
        9000,
        (DefaultMixtureStage(0, both), DefaultMixtureStage(2560, only_b), DefaultMixtureStage(2816, {"a": UNITS})),
    )
    assert [stage.start for stage in repacked_mixture(middle, samples, (10, 100)).stages] == [0, 256]
    last = DefaultMixture("repeat", 3000, (DefaultMixtureStage(0, {"a": UNITS}), DefaultMixtureStage(2816, only_b)))
    with pytest.raises(RefusedError, match="'a'"):
        repacked_mixture(last, samples, (10, 1000))
