"""The ``mix`` block: shares by tokens, how long, how often, and what changes on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .config_problems import raise_problems

__all__ = ["MixConfig", "MixStageConfig"]

_MAX_RATIO = 1e9


def _ratio_problems(ratios: Mapping[str, float], key: str) -> list[str]:
    return [
        f"{key}: {name} must be positive, from 1e-9 to 1e9"
        for name, ratio in ratios.items()
        if not 1 / _MAX_RATIO <= ratio <= _MAX_RATIO
    ]


@dataclass(frozen=True)
class MixStageConfig:
    """A part of the plan with shares of its own.

    Attributes:
        share: of the plan's tokens, any scale: stages follow one another in the order of the file.
        ratios: source -> share of this stage's tokens, any scale; sources that are not named rest.
    """

    share: float
    ratios: Mapping[str, float]

    def __post_init__(self) -> None:
        problems = _ratio_problems(self.ratios, "ratios")
        if not self.ratios:
            problems.append("ratios: one source at least")
        if not 1 / _MAX_RATIO <= self.share <= _MAX_RATIO:
            problems.append("share: positive, from 1e-9 to 1e9")
        raise_problems(problems)


@dataclass(frozen=True)
class MixConfig:
    """Shares by tokens: ``ratios``, or ``temperature``, or ``stages``; none of them keeps every source whole.

    Attributes:
        ratios: source -> share of the plan, any scale from 1e-9 to 1e9.
        temperature: shares in proportion to (available tokens)^(1 / temperature): 1 = natural, larger = flatter.
        stages: shares that change on the way, as for an annealing phase.
        total_tokens: length of the plan; ``null`` with shares = the longest plan within everybody's ``max_epochs`` (1
            if not given).
        max_epochs: source -> how often its documents may be seen.
        exhaustion: what happens to a source that runs out: ``repeat`` it, ``stop`` the plan there, or ``renormalise``
            the others.
    """

    ratios: Mapping[str, float] | None = None
    temperature: float | None = None
    stages: tuple[MixStageConfig, ...] = ()
    total_tokens: int | None = None
    max_epochs: Mapping[str, float] = field(default_factory=dict)
    exhaustion: Literal["repeat", "stop", "renormalise"] = "repeat"

    def __post_init__(self) -> None:
        problems = _ratio_problems(self.ratios or {}, "ratios")
        if sum((self.ratios is not None, self.temperature is not None, bool(self.stages))) > 1:
            problems.append("ratios: one of ratios, temperature, stages")
        if self.temperature is not None and not 1e-3 <= self.temperature <= 1e6:
            problems.append("temperature: from 1e-3 to 1e6")
        if self.total_tokens is not None and self.total_tokens <= 0:
            problems.append("total_tokens: positive")
        for name, epochs in self.max_epochs.items():
            if not 0 < epochs < float("inf"):
                problems.append(f"max_epochs: {name} must be positive and finite")
        raise_problems(problems)
