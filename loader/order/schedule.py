"""Steps over surviving positions: which positions step k reads, and which step reads a position; closed form.

A step is the next ``global_batch`` surviving positions, the batch size being that of the stage which holds the step's
first one. Counted in surviving positions a stage is a run of equal steps that starts where the last step of the stage
before ends, so one table row a stage and a binary search answer both questions.

Legend: K steps, N positions, R rows (stages that own a step at least).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, RefusedError
from .ranges import Ranges
from .weights import LARGEST_BATCH, POSITION_LIMIT

__all__ = ["BatchStage", "Schedule"]

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BatchStage:
    """Samples a step reads, all ranks together, from a position on."""

    start: int
    global_batch: int


class Schedule:
    """position <-> step.

    Args:
        stages: by ascending start, the first at 0.
        cut: the positions that do not survive.

    Raises:
        ConfigError: no stage at 0, starts that do not ascend, or a batch size outside 1 .. 2^24.
        RefusedError: no position survives.
    """

    def __init__(self, stages: Sequence[BatchStage], cut: Ranges) -> None:
        _check(stages)
        self.stages, self.cut = tuple(stages), cut
        self.num_surviving = POSITION_LIMIT - cut.count
        if not self.num_surviving:
            raise RefusedError(
                "TR-SKIP-EMPTY", "the skip list drops every position", "skips", "positions that are left to train on"
            )
        border_live = cut.outside_before(np.array([stage.start for stage in stages], np.int64)).tolist()
        first_step, first_live, batch, step, live = list[int](), list[int](), list[int](), 0, 0
        for number, stage in enumerate(stages):
            stop = border_live[number + 1] if number + 1 < len(stages) else self.num_surviving
            if stop > live:
                first_step.append(step)
                first_live.append(live)
                batch.append(stage.global_batch)
                num_steps = -(-(stop - live) // stage.global_batch)
                step, live = step + num_steps, live + num_steps * stage.global_batch
        self._step_R, self._live_R, self._batch_R = (np.array(row, np.int64) for row in (first_step, first_live, batch))
        self.num_steps = first_step[-1] + (self.num_surviving - first_live[-1]) // batch[-1]

    def live_start(self, steps_K: _Ints) -> _Ints:
        """Surviving positions before each step >= 0."""
        row_K = np.searchsorted(self._step_R, steps_K, "right") - 1
        starts_K: _Ints = self._live_R[row_K] + (steps_K - self._step_R[row_K]) * self._batch_R[row_K]
        return starts_K

    def positions(self, step: int) -> _Ints:
        """positions_B: the surviving positions that ``step`` reads, ascending.

        Raises:
            ConfigError: the plan ends before: position 2^36.
        """
        start, stop = self.live_range(step)
        return self.cut.outside_at(np.arange(start, stop))

    def live_range(self, step: int) -> tuple[int, int]:
        """The surviving positions that ``step`` reads, counted from the first surviving one.

        Raises:
            ConfigError: the plan ends before, at position 2^36 at the latest.
        """
        if 0 <= step < POSITION_LIMIT:  # larger ones do not fit an array
            start, stop = self.live_start(np.array([step, step + 1], np.int64)).tolist()
            if stop <= self.num_surviving:
                return start, stop
        expected = f"a step below {self.num_steps}, where the plan ends (position 2^36 at the latest)"
        raise ConfigError("TR-PLAN-STEP", f"no step {step}", expected=expected)

    def steps_of(self, positions_N: _Ints) -> _Ints:
        """The step that reads each position >= 0; -1 where none does: it is cut, or lies behind the last whole step."""
        live_N = self.cut.outside_before(positions_N)
        row_N = np.searchsorted(self._live_R, live_N, "right") - 1
        step_N = self._step_R[row_N] + (live_N - self._live_R[row_N]) // self._batch_R[row_N]
        return np.where(self.cut.contains(positions_N) | (step_N >= self.num_steps), -1, step_N)

    def step_from(self, position: int) -> int | None:
        """The step whose first position is the first surviving one >= ``position``; None inside a step."""
        live_N = self.cut.outside_before(np.array([position], np.int64))
        row = int(np.searchsorted(self._live_R, live_N[0], "right")) - 1
        steps, inside = divmod(int(live_N[0] - self._live_R[row]), int(self._batch_R[row]))
        return None if inside else int(self._step_R[row]) + steps

    def stages_before(self, position: int) -> list[list[int]]:
        """[start, batch size] of the stages that shaped steps before ``position``."""
        return [[stage.start, stage.global_batch] for stage in self.stages if stage.start < position]


def _check(stages: Sequence[BatchStage]) -> None:
    if not stages or stages[0].start != 0:
        raise ConfigError("TR-BATCH-START", "the first batch stage must start at position 0", "batch", "start: 0")
    for before, after in pairwise(stages):
        if not before.start < after.start < POSITION_LIMIT:
            raise ConfigError(
                "TR-BATCH-START", "starts must ascend, below 2^36", f"batch stage at {after.start}", f"> {before.start}"
            )
    for stage in stages:
        if not 1 <= stage.global_batch <= LARGEST_BATCH:
            raise ConfigError(
                "TR-BATCH-STAGE", f"batch of {stage.global_batch}", f"stage at {stage.start}", "1 .. 2^24"
            )
