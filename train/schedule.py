"""Learning rates as functions of position: they do not depend on batch size, rollbacks or skips of other steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from loader.errors import ConfigError, RefusedError
from loader.run_config import DataConfig, MixtureStageConfig

from .optim_config import AnnealConfig, ScheduleConfig

__all__ = ["SCHEDULES", "check_annealing", "learning_rate", "with_annealing"]


def _constant(progress: float, schedule: ScheduleConfig) -> float:
    del progress, schedule
    return 1.0


def _linear(progress: float, schedule: ScheduleConfig) -> float:
    return 1.0 - (1.0 - schedule.final_fraction) * progress


def _cosine(progress: float, schedule: ScheduleConfig) -> float:
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress))


def _wsd(progress: float, schedule: ScheduleConfig) -> float:
    """Warm-up, stable, decay: constant until the last ``decay_fraction``, then linear."""
    begin = 1.0 - schedule.decay_fraction
    return 1.0 if progress <= begin else _linear((progress - begin) / schedule.decay_fraction, schedule)


SCHEDULES: dict[str, Callable[[float, ScheduleConfig], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
}
"""kind -> factor of the peak for a progress in [0, 1] between the end of the warm-up and ``total_positions``."""


def learning_rate(position: int, peak: float, schedule: ScheduleConfig, anneal: AnnealConfig | None = None) -> float:
    """The learning rate of the step whose first surviving position is ``position``.

    Args:
        peak: ``optimizer.lr``.
        anneal: from its start on the rate falls from what the schedule says there, whatever it would say later.
    """
    if anneal is not None and position >= anneal.start:
        begin = learning_rate(anneal.start, peak, schedule)
        progress = min(1.0, (position - anneal.start) / anneal.positions)
        shape = replace(schedule, final_fraction=anneal.final_fraction)
        return begin * SCHEDULES[anneal.kind](progress, shape)
    if position < schedule.warmup_positions:
        return peak * (position + 1) / schedule.warmup_positions
    if schedule.total_positions is None:
        return peak
    span = max(1, schedule.total_positions - schedule.warmup_positions)
    progress = min(1.0, (position - schedule.warmup_positions) / span)
    return peak * SCHEDULES[schedule.kind](progress, schedule)


def with_annealing(data: DataConfig, anneal: AnnealConfig | None) -> DataConfig:
    """The ``data:`` block with the annealing stage's mixture as its last stage; doing it twice changes nothing.

    Raises:
        ConfigError: no mixture says what comes before, or a stage begins behind the annealing.
    """
    if anneal is None or anneal.weights is None:
        return data
    stage = MixtureStageConfig(anneal.start, anneal.weights)
    if data.mixture and data.mixture[-1] == stage:
        return data
    starts: Sequence[int] = [known.start for known in data.mixture]
    if anneal.start > 0 and (not starts or starts[0] != 0):
        raise ConfigError(
            "TR-TRAIN-ANNEAL", "the mixture before the annealing is not said", "data.mixture", "a stage from position 0"
        )
    if any(start >= anneal.start for start in starts):
        raise ConfigError(
            "TR-TRAIN-ANNEAL", f"a mixture stage begins at or behind the annealing at {anneal.start}", "data.mixture",
            "stages before anneal.start",
        )  # fmt: skip
    return replace(data, mixture=(*data.mixture, stage))


def check_annealing(before: AnnealConfig | None, now: AnnealConfig | None, next_position: int) -> None:
    """A run may get, lose or change its annealing as long as none of it has begun.

    Raises:
        RefusedError: one of the two began before ``next_position``.
    """
    if before == now:
        return
    for anneal in (before, now):
        if anneal is not None and anneal.start < next_position:
            raise RefusedError(
                "TR-RUN-DIFFERS", f"the annealing at position {anneal.start} acts before position {next_position}",
                "anneal", "an annealing that begins later", "tokenreel rollback RUN --to STEP, then the same command",
            )  # fmt: skip
