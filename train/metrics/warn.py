"""When to tell somebody: utilisation, waiting, memory and book-keeping against the thresholds of the field.

A threshold is judged over a window of steps, never over one, and an incident is told once: again only after a window
(or a look at memory) in which all was well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .clock import StepTimes
from .memory import MemoryUse

__all__ = ["THRESHOLDS", "StepWatch", "Threshold", "Warned"]

WINDOW_STEPS = 20
WINDOW_S = 30.0
"""A window is over when it has as many steps and as many seconds: a run of seconds is too short to advise on."""

WARM_UP_STEPS = 5
"""Left out at the beginning of an attempt: compilation, cold caches."""

_MEMORY_CLEAR = 0.05


@dataclass(frozen=True)
class Threshold:
    """A row of the table.

    Attributes:
        limit: the share from which on it is told. side: whether it is told above or below it.
        what: for people. advice: what helps.
    """

    limit: float
    side: Literal["above", "below"]
    what: str
    advice: str

    def violated(self, share: float) -> bool:
        """Whether a share is on the wrong side."""
        return share > self.limit if self.side == "above" else share < self.limit


THRESHOLDS: dict[str, Threshold] = {
    "mfu": Threshold(
        0.30, "below", "model FLOPs utilisation", "larger micro-batches, compile, another mesh (`tokenreel plan`)"
    ),
    "loader_wait": Threshold(
        0.01, "above", "of the step spent waiting for data", "more run.reader_threads, a faster disk, a warm cache"
    ),
    "host_memory": Threshold(
        0.95, "above", "of the machine's memory in use", "fewer processes, a smaller cache: the next thing is a kill"
    ),
    "device_memory": Threshold(
        0.95, "above", "of the device's memory reserved", "smaller micro-batches or activation checkpointing"
    ),
    "ledger": Threshold(
        0.001, "above", "of the step spent on the ledger", "a run folder on a faster file system"
    ),
}  # fmt: skip
"""What -> threshold (field/train.md; DESIGN 13)."""


@dataclass(frozen=True)
class Warned:
    """An incident: a key of ``THRESHOLDS``, the measured share, over how many steps."""

    what: str
    share: float
    steps: int

    def __str__(self) -> str:
        threshold = THRESHOLDS[self.what]
        over = f" over {self.steps} steps" if self.steps else ""
        relation = "more" if threshold.side == "above" else "less"
        return (
            f"warning: {self.share:.3g} {threshold.what}{over}, {relation} than {threshold.limit:g}; "
            f"what helps: {threshold.advice}"
        )


class StepWatch:
    """Collects steps into windows and says what begins to be wrong.

    Args:
        mfu: whether utilisation is judged: on accelerators of known peak.
        now: a clock in seconds.
    """

    def __init__(self, mfu: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._judges_mfu, self._now = mfu, now
        self._active: set[str] = set()
        self._left = WARM_UP_STEPS
        self._begin()

    def _begin(self) -> None:
        self._started_s, self._steps = self._now(), 0
        self._step_s = self._loader_s = self._ledger_s = self._busy_s = 0.0

    def step(self, times: StepTimes, mfu: float | None) -> list[Warned]:
        """Count a step; at the end of a window, what began to be wrong in it."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._begin()
            return []
        self._steps += 1
        self._step_s += times.step
        self._loader_s += times.loader
        self._ledger_s += times.ledger
        self._busy_s += (mfu or 0.0) * times.step
        if self._steps < WINDOW_STEPS or self._now() - self._started_s < WINDOW_S:
            return []
        shares = {"loader_wait": self._loader_s / self._step_s, "ledger": self._ledger_s / self._step_s}
        if self._judges_mfu and mfu is not None:
            shares["mfu"] = self._busy_s / self._step_s
        found = [Warned(what, share, self._steps) for what, share in shares.items() if self._begins(what, share, 0.0)]
        self._begin()
        return found

    def memory(self, use: MemoryUse) -> list[Warned]:
        """Judge a new look at memory."""
        shares = {"host_memory": use.host_share, "device_memory": use.device_share}
        return [
            Warned(what, share, 0)
            for what, share in shares.items()
            if share is not None and self._begins(what, share, _MEMORY_CLEAR)
        ]

    def _begins(self, what: str, share: float, clear: float) -> bool:
        """Whether an incident begins; one ends when the share is right again by ``clear``."""
        threshold = THRESHOLDS[what]
        if threshold.violated(share):
            begins = what not in self._active
            self._active.add(what)
            return begins
        if not threshold.violated(share + clear):
            self._active.discard(what)
        return False
