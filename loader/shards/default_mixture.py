"""The Mixture that a Dataset was mixed for, as its manifest holds it. Untrusted when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ..order.exhaustion import ExhaustionPolicy
from ..order.weights import BLOCK, POSITION_LIMIT, WEIGHT_BITS
from .fields import Fields

__all__ = ["MAX_MIXTURE_STAGES", "DefaultMixture", "DefaultMixtureStage", "parse_mixture"]

MAX_MIXTURE_STAGES = 1 << 16
"""Most stages that a manifest may hold."""


@dataclass(frozen=True)
class DefaultMixtureStage:
    """Weights from a position on (a multiple of 256): source -> whole number above 0, of sum 2^26."""

    start: int
    weights: Mapping[str, int]


@dataclass(frozen=True)
class DefaultMixture:
    """The Mixture that a Dataset was mixed for.

    Attributes:
        policy: what its plan does about a source that runs out: repeat, stop or renormalise.
        total_positions: length of the plan.
        stages: the first starts at 0.
    """

    policy: str
    total_positions: int
    stages: tuple[DefaultMixtureStage, ...]

    def positions_of(self, source: str) -> float:
        """Positions of the plan that read a source: over the stages, length times share."""
        stops = [*(stage.start for stage in self.stages[1:]), self.total_positions]
        units = sum(
            (stop - stage.start) * stage.weights.get(source, 0) for stage, stop in zip(self.stages, stops, strict=True)
        )
        return units / (1 << WEIGHT_BITS)

    def to_json(self) -> dict[str, Any]:
        """As in manifest.json."""
        return {**vars(self), "stages": [vars(stage) for stage in self.stages]}


def parse_mixture(value: Any, known: set[str], place: str) -> DefaultMixture:
    """Read the ``mixture`` of a manifest.

    Args:
        value: untrusted JSON.
        known: names of the sources that hold samples.
        place: for messages.

    Raises:
        DamageError: it is no mixture of these sources.
    """
    fields = Fields(value, place)
    total = fields.count("total_positions", POSITION_LIMIT - 1, 1)
    stages, before = list[DefaultMixtureStage](), -BLOCK
    items = fields.list("stages")
    if not 1 <= len(items) <= MAX_MIXTURE_STAGES:
        raise fields.fail("stages", f"from 1 to {MAX_MIXTURE_STAGES} stages")
    for number, item in enumerate(items):
        stage = Fields(item, f"{place}: stages[{number}]")
        start = stage.count("start", total - 1 if number else 0, before + BLOCK)
        names = stage.object("weights", int)
        weights = Fields(names, f"{place}: stages[{number}]: weights")
        whole = {name: weights.count(name, 1 << WEIGHT_BITS, 1) for name in names}
        if start % BLOCK:
            raise stage.fail("start", f"a multiple of {BLOCK}")
        if sum(whole.values()) != 1 << WEIGHT_BITS or not whole.keys() <= known:
            raise stage.fail("weights", f"sources with samples, whole numbers of sum {1 << WEIGHT_BITS}")
        stages.append(DefaultMixtureStage(start, whole))
        before = start
    if known - {name for mixed in stages for name in mixed.weights}:
        raise fields.fail("stages", "every source that holds samples in one stage at least")
    policy = fields.text("policy")
    if policy not in get_args(ExhaustionPolicy):
        raise fields.fail("policy", f"one of {', '.join(get_args(ExhaustionPolicy))}")
    return DefaultMixture(policy, total, tuple(stages))
