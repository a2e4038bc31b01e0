"""Where the time of a step goes, by the host's clock alone: nothing here waits for a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["Part", "StepClock", "StepTimes"]

Part = Literal["loader", "checkpoint", "evaluation", "spikes", "ledger", "metrics"]
"""What a step's wall time is divided into; the rest is the step itself."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds between the reading of one step's numbers and of the next one's.

    Attributes:
        wall: all of it.
        loader: waiting for a batch. ledger, metrics: appending to the ledger; writing metrics (of the step before).
        checkpoint: the loop stood still for a checkpoint. evaluation: it scored held-out data. spikes: the watch
            judged, investigated, or waited for a save.
    """

    wall: float
    loader: float = 0.0
    checkpoint: float = 0.0
    evaluation: float = 0.0
    spikes: float = 0.0
    ledger: float = 0.0
    metrics: float = 0.0

    @property
    def step(self) -> float:
        """Seconds of the training step: without checkpoint, evaluation and what spikes took."""
        return max(self.wall - self.checkpoint - self.evaluation - self.spikes, 1e-9)


class StepClock:
    """Measures parts of a step and laps between steps.

    Where the host runs a step ahead of what it reads, a part counts for the lap in which it happened: over more than a
    few steps the sums are right.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._begin_s = now()
        self._parts: dict[str, float] = dict.fromkeys(get_args(Part), 0.0)

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Count what happens inside the block as ``name``."""
        begin_s = self._now()
        try:
            yield
        finally:
            self._parts[name] += self._now() - begin_s

    def lap(self) -> StepTimes:
        """The seconds since the last lap, divided; begins the next one."""
        now_s = self._now()
        times = StepTimes(now_s - self._begin_s, **self._parts)
        self._begin_s = now_s
        self._parts = dict.fromkeys(self._parts, 0.0)
        return times
