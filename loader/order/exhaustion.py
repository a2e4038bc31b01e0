"""What a mixture does when a source runs out, compiled to stages: repeat it, stop there, or let the others go on.

A source may be read ``max_epochs`` times through. Where it would be read once more is a closed form of the mixture, so
nothing is counted at run time, the stages say all there is to say, and a restart needs no memory of who ran out.

A source leaves at the last border of a block of 256 before its budget ends, as stages start on such borders: what stays
unread of it is less than a block. Budgets count positions; a skip list that drops k of a source's n samples makes its
epochs shorter by k, which is not made up for.

``dataprep.mix_plan`` has the same policies and is another computation: it plans in tokens before anything is packed,
without a seed, and lets a source give all it has left in the block in which it runs out. Its stages are in the Dataset;
a run whose ``exhaustion`` is set bounds them once more, by what this module finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from ..errors import ConfigError, RefusedError
from .mixture import Mixture, compile_mixture
from .weights import BLOCK, POSITION_LIMIT, MixtureStage

__all__ = ["DerivedStages", "Exhaustion", "ExhaustionPolicy", "derive_stages"]

ExhaustionPolicy = Literal["repeat", "stop", "renormalise"]


@dataclass(frozen=True)
class Exhaustion:
    """What is to happen.

    Attributes:
        policy: ``repeat``: sources start again, but one that would pass its ``max_epochs`` is refused; ``stop``: the
            plan ends before the first source passes its own; ``renormalise``: such a source leaves, the others share
            its weight in proportion to theirs, and the plan ends when nobody is left.
        max_epochs: source -> how often it may be read through, > 0; without an entry: any number of times under
            ``repeat``, else once.
        stop_position: positions from here on are not planned; what would happen there takes no part.
        start_position: positions before it were read of other data (``start.PlanStart``) and count for nothing.
        carried: source -> samples of its order that were read before ``start_position``, where its data stayed
            the same: so much of its budget is used.
    """

    policy: ExhaustionPolicy = "repeat"
    max_epochs: Mapping[str, float] = field(default_factory=dict)
    stop_position: int = POSITION_LIMIT
    start_position: int = 0
    carried: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DerivedStages:
    """Stages that keep within the budgets.

    Attributes:
        stages: as given, without what ran out, and with the stages at which something did.
        stop_position: first position that is no longer planned; at most the one asked for.
        left_at: source -> position from which on it has no weight because it ran out.
    """

    stages: tuple[MixtureStage, ...]
    stop_position: int
    left_at: Mapping[str, int]


def derive_stages(
    stages: Sequence[MixtureStage], num_samples: Mapping[str, int], exhaustion: Exhaustion, seed: int
) -> DerivedStages:
    """The stages that a mixture with a policy comes to.

    Args:
        stages: of the mixture; the first at 0.
        num_samples: samples of one epoch of every source.
        exhaustion: policy and budgets.
        seed: of the plan: it decides where inside a block a source is read.

    Raises:
        ConfigError: as ``compile_mixture``; an unknown policy, or a ``max_epochs`` that is no positive number or names
            no source.
        RefusedError: under ``repeat``, a source would pass its ``max_epochs``; the position is named.
    """
    budgets = _budgets(num_samples, exhaustion)
    if exhaustion.policy == "repeat":
        found = _runs_out(compile_mixture(list(num_samples), stages, seed), budgets, exhaustion)
        if found:
            raise _refusal(found, exhaustion)
        return DerivedStages(tuple(stages), exhaustion.stop_position, {})
    if exhaustion.policy == "stop":
        found = _runs_out(compile_mixture(list(num_samples), stages, seed), budgets, exhaustion)
        stop = min(found.values(), default=exhaustion.stop_position)
        return DerivedStages(tuple(stage for stage in stages if stage.start < max(1, stop)), stop, {})
    return _renormalise(tuple(stages), num_samples, budgets, exhaustion, seed)


def _renormalise(
    stages: tuple[MixtureStage, ...],
    num_samples: Mapping[str, int],
    budgets: Mapping[str, int],
    exhaustion: Exhaustion,
    seed: int,
) -> DerivedStages:
    """Take out who runs out first, and ask again: what is before that border stays as it is, whatever comes after."""
    left_at: dict[str, int] = {}
    stop = exhaustion.stop_position
    while True:
        until = replace(exhaustion, stop_position=stop)
        found = _runs_out(compile_mixture(list(num_samples), stages, seed), budgets, until)
        if not found:
            return DerivedStages(tuple(stage for stage in stages if stage.start < max(1, stop)), stop, left_at)
        border = min(found.values()) // BLOCK * BLOCK
        leaving = sorted(name for name, position in found.items() if position // BLOCK * BLOCK == border)
        left_at.update(dict.fromkeys(leaving, border))
        acting = [stage for stage in stages if stage.start <= border][-1]
        later = [MixtureStage(border, acting.weights), *(stage for stage in stages if stage.start > border)]
        kept = [stage for stage in stages if stage.start < border]
        for stage in later:
            weights = {name: weight for name, weight in stage.weights.items() if name not in left_at}
            if not any(weights.values()):
                stop = min(stop, stage.start)
                break
            kept.append(MixtureStage(stage.start, weights))
        if stop <= border:
            return DerivedStages(tuple(kept) or stages[:1], stop, left_at)
        stages = tuple(kept)


def _budgets(num_samples: Mapping[str, int], exhaustion: Exhaustion) -> dict[str, int]:
    """Positions that each source may be read at; a source without an entry has no limit."""
    if exhaustion.policy not in get_args(ExhaustionPolicy):
        allowed = ", ".join(get_args(ExhaustionPolicy))
        raise ConfigError("TR-MIXTURE-EXHAUSTION", f"no policy {exhaustion.policy!r}", "mixture", allowed)
    for name, epochs in exhaustion.max_epochs.items():
        if name not in num_samples or not 0 < epochs < float("inf"):
            raise ConfigError(
                "TR-MIXTURE-EXHAUSTION",
                f"max_epochs {epochs} of source {name!r}",
                "mixture",
                f"a number > 0 for one of {', '.join(sorted(num_samples))}",
            )
    default = {} if exhaustion.policy == "repeat" else dict.fromkeys(num_samples, 1.0)
    epochs_of = {**default, **exhaustion.max_epochs}
    return {name: int(Fraction(str(epochs)) * num_samples[name]) for name, epochs in epochs_of.items()}


def _runs_out(mixture: Mixture, budgets: Mapping[str, int], exhaustion: Exhaustion) -> dict[str, int]:
    """The position at which each source that passes its budget before ``stop_position`` would do so."""
    found = {}
    before_S = mixture.counts_before(exhaustion.start_position).tolist()
    for name, budget in budgets.items():
        source = mixture.sources.index(name)
        rank = before_S[source] + max(0, budget - exhaustion.carried.get(name, 0))
        if rank < POSITION_LIMIT:
            position = int(mixture.position_of(source, np.array([rank], np.int64))[0])
            if 0 <= position < exhaustion.stop_position:
                found[name] = position
    return found


def _refusal(found: Mapping[str, int], exhaustion: Exhaustion) -> RefusedError:
    name = min(found, key=lambda source: (found[source], source))
    return RefusedError(
        "TR-MIXTURE-EXHAUSTED",
        f"source {name!r} would be read more than {exhaustion.max_epochs[name]} times through",
        f"position {found[name]}",
        "a smaller weight, a shorter plan, more max_epochs, or exhaustion: stop or renormalise",
    )
