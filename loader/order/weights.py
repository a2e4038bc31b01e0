"""Stages of a mixture: checked, with weights as integers of sum 2^26, so that all that follows is exact."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigError

__all__ = [
    "BLOCK",
    "LARGEST_BATCH",
    "POSITION_LIMIT",
    "WEIGHT_BITS",
    "MixtureStage",
    "WeightStage",
    "integer_stages",
    "integer_weights",
]

BLOCK = 256
WEIGHT_BITS = 26
POSITION_LIMIT = 1 << 36
LARGEST_BATCH = 1 << 24
_LARGEST_WEIGHT = sys.float_info.max


@dataclass(frozen=True)
class MixtureStage:
    """Weights from a position on.

    Attributes:
        start: first position, a multiple of ``BLOCK``.
        weights: source name to weight, any scale, >= 0; a source that is not named has weight 0.
    """

    start: int
    weights: Mapping[str, float]


@dataclass(frozen=True)
class WeightStage:
    """A checked stage: integer weights > 0 of sum 2^26, by source name."""

    start: int
    weights: Mapping[str, int]

    def to_json(self) -> list[object]:
        """Canonical form for digests."""
        return [self.start, dict(self.weights)]


def integer_weights(weights: Mapping[str, float], place: str) -> dict[str, int]:
    """Weights scaled to sum 2^26 by largest remainder (ties: by name), exactly; zero weights are left out.

    Raises:
        ConfigError: a weight is negative or not finite, all are zero, or one is so small that it would round to 0.
    """
    for name, weight in weights.items():
        if not 0 <= weight <= _LARGEST_WEIGHT:  # integers of any size too; false for NaN
            raise ConfigError("TR-MIXTURE-WEIGHT", f"weight {weight} of source {name!r}", place, "a finite number >= 0")
    ratios = {name: float(weights[name]).as_integer_ratio() for name in sorted(weights) if weights[name] > 0}
    if not ratios:
        raise ConfigError("TR-MIXTURE-WEIGHT", "no source has a weight above 0", place, "one weight > 0 at least")
    scale = max(denominator for _, denominator in ratios.values())  # denominators are powers of two
    exact = {name: numerator * (scale // denominator) for name, (numerator, denominator) in ratios.items()}
    total = sum(exact.values())
    rounded = {name: (value << WEIGHT_BITS) // total for name, value in exact.items()}
    missing = (1 << WEIGHT_BITS) - sum(rounded.values())
    by_remainder = sorted(exact, key=lambda name: (-((exact[name] << WEIGHT_BITS) % total), name))
    for name in by_remainder[:missing]:
        rounded[name] += 1
    vanished = [name for name, value in rounded.items() if value == 0]
    if vanished:
        raise ConfigError(
            "TR-MIXTURE-WEIGHT",
            f"the weight of source {vanished[0]!r} is {exact[vanished[0]] / total:.3g} of all and would round to 0",
            place,
            f"0, or at least {2.0**-WEIGHT_BITS:.3g} of the total",
        )
    return rounded


def integer_stages(stages: Sequence[MixtureStage], sources: Sequence[str]) -> tuple[WeightStage, ...]:
    """Checked stages in order; one with the integer weights of the one before is the same stage, so it is left out.

    Raises:
        ConfigError: no stage, the first does not start at 0, starts do not ascend or are no block borders, a weight is
            unusable, or a source is unknown.
    """
    if not stages or stages[0].start != 0:
        raise ConfigError("TR-MIXTURE-START", "the first mixture stage must start at position 0", "mixture", "start: 0")
    known, result, before = set(sources), list[WeightStage](), -1
    for stage in stages:
        place = f"mixture stage at position {stage.start}"
        if stage.start % BLOCK:
            low = stage.start // BLOCK * BLOCK
            raise ConfigError(
                "TR-MIXTURE-BORDER",
                f"a mixture stage cannot start at position {stage.start}: it is no multiple of {BLOCK}",
                place,
                f"{low} or {low + BLOCK}",
            )
        if not before < stage.start < POSITION_LIMIT:
            raise ConfigError("TR-MIXTURE-START", "starts must ascend, below 2^36", place, f"more than {before}")
        unknown = sorted(set(stage.weights) - known)
        if unknown:
            raise ConfigError(
                "TR-MIXTURE-SOURCE", f"unknown source {unknown[0]!r}", place, f"one of {', '.join(sorted(known))}"
            )
        weights = integer_weights(stage.weights, place)
        if not result or result[-1].weights != weights:
            result.append(WeightStage(stage.start, weights))
        before = stage.start
    return tuple(result)
