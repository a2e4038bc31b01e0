"""The default Mixture of a Dataset, for the same documents in samples of another length."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from loader.errors import RefusedError
from loader.order.weights import BLOCK, WEIGHT_BITS
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage

from .mix_plan import largest_remainder

__all__ = ["repacked_mixture"]


def repacked_mixture(
    mixture: DefaultMixture, samples: Mapping[str, tuple[int, int]], seq_lens: tuple[int, int]
) -> DefaultMixture:
    """The same plan, in tokens, over repacked samples.

    Borders go to the nearest block, at most 128 samples away; a stage that this leaves nothing of is left out. Weights
    follow the samples of each source, so that shares of tokens stay what they were.

    Args:
        mixture: as it was.
        samples: source -> its samples before and after.
        seq_lens: tokens of a sample before and after.

    Raises:
        RefusedError: a source would not be read any more (``TR-MIX-STAGE-SHORT``).
    """
    before, after = seq_lens
    stages: list[DefaultMixtureStage] = []
    for stage in mixture.stages:
        start = int((Fraction(stage.start * before, after) + BLOCK // 2) // BLOCK) * BLOCK
        exact = {name: Fraction(weight * samples[name][1], samples[name][0]) for name, weight in stage.weights.items()}
        weights = {name: weight for name, weight in largest_remainder(exact, 1 << WEIGHT_BITS).items() if weight}
        if stages and start == stages[-1].start:
            stages.pop()
        stages.append(DefaultMixtureStage(start, weights))
    total = max(mixture.total_positions * before // after, 1)
    while len(stages) > 1 and stages[-1].start >= total:
        stages.pop()
    read = {name for stage in stages for name in stage.weights}
    for name in (name for stage in mixture.stages for name in stage.weights if name not in read):
        raise RefusedError(
            "TR-MIX-STAGE-SHORT",
            f"the stage of the mix that reads source {name!r} would be shorter than a block of {BLOCK} samples",
            "mixture",
            f"samples of fewer than {after} tokens",
            "choose a smaller sequence length, or build anew with a longer plan",
        )
    return DefaultMixture(mixture.policy, total, tuple(stages))
