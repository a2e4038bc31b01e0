"""The ``mix`` block: shares by tokens, how long, how often, and what changes on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loader.order.exhaustion import ExhaustionPolicy

from .config_problems import raise_problems

__all__ = ["MixConfig", "MixStageConfig"]

_MAX_RATIO = 1e9
_MAX_STAGES = 1024
_MAX_TOKENS = 1 << 55


@dataclass(frozen=True)
class MixStageConfig:
    """A part of the plan with shares of its own.

    Attributes:
        share: of the plan's tokens, any scale: stages follow one another in the order of the file.
        ratios: source -> share of this stage's tokens, any scale; sources with 0 or without a name rest.
    """

    share: float
    ratios: Mapping[str, float]

    def __post_init__(self) -> None:
        problems = [
            f"ratios: {name} must be 0, or from 1e-9 to 1e9"
            for name, ratio in self.ratios.items()
            if ratio != 0 and not 1 / _MAX_RATIO <= ratio <= _MAX_RATIO
        ]
        if not any(self.ratios.values()):
            problems.append("ratios: one source above 0 at least")
        if not 1 / _MAX_RATIO <= self.share <= _MAX_RATIO:
            problems.append("share: positive, from 1e-9 to 1e9")
        raise_problems(problems)


@dataclass(frozen=True)
class MixConfig:
    """Shares by tokens: ``ratios``, or ``temperature``, or ``stages``; none of them keeps the shares as they are.

    Attributes:
        ratios: source -> share of the plan, any scale from 1e-9 to 1e9.
        temperature: shares in proportion to (available tokens)^(1 / temperature): 1 = natural, larger = flatter.
        stages: shares that change on the way, as for an annealing phase.
        total_tokens: length of the plan; ``null`` with shares, or with a ``max_epochs`` below 1 = the longest plan
            within everybody's ``max_epochs`` (1 if not given).
        max_epochs: source -> how often its documents may be seen. Without an entry: as often as needed if
            ``total_tokens`` is given and ``exhaustion`` is ``repeat``, else once.
        exhaustion: what happens to a source that runs out: ``repeat`` it (beyond ``max_epochs``: refused), ``stop`` the
            plan there, or ``renormalise``: the others share the rest.
        thin: leave out documents of a source that is far too large before they are tokenised; the same ones that the
            mix would leave out.
    """

    ratios: Mapping[str, float] | None = None
    temperature: float | None = None
    stages: tuple[MixStageConfig, ...] = ()
    total_tokens: int | None = None
    max_epochs: Mapping[str, float] = field(default_factory=dict)
    exhaustion: ExhaustionPolicy = "repeat"
    thin: bool = True

    def __post_init__(self) -> None:
        problems = [
            f"ratios: {name} must be positive, from 1e-9 to 1e9"
            for name, ratio in (self.ratios or {}).items()
            if not 1 / _MAX_RATIO <= ratio <= _MAX_RATIO
        ]
        if sum((self.ratios is not None, self.temperature is not None, bool(self.stages))) > 1:
            problems.append("ratios: one of ratios, temperature, stages")
        if self.temperature is not None and not 1e-3 <= self.temperature <= 1e6:
            problems.append("temperature: from 1e-3 to 1e6")
        if len(self.stages) > _MAX_STAGES:
            problems.append(f"stages: at most {_MAX_STAGES}")
        if self.total_tokens is not None and not 1 <= self.total_tokens <= _MAX_TOKENS:
            problems.append("total_tokens: positive, at most 2^55")
        for name, epochs in self.max_epochs.items():
            if not 1e-9 <= epochs <= _MAX_RATIO:
                problems.append(f"max_epochs: {name} must be positive, from 1e-9 to 1e9")
        raise_problems(problems)

    @property
    def asks(self) -> bool:
        """Whether anything is asked for that the Dataset's natural shares would not say: also that some source may not
        be seen whole."""
        return self.shaped or self.total_tokens is not None or any(epochs < 1 for epochs in self.max_epochs.values())

    @property
    def shaped(self) -> bool:
        """Whether shares other than the natural ones are asked for."""
        return self.ratios is not None or self.temperature is not None or bool(self.stages)
