"""What clean steps look like: a trend with a robust scale, and each source's running median loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .records import StepRecord

__all__ = ["SourceMedians", "Trend", "fit_trend", "median"]

SourceLoss = Mapping[str, tuple[float, int]]

SOURCE_STEPS = 32
"""A source's median is taken over its last so many clean steps."""
SOURCE_LEAST = 8
"""A source has a history once it was seen in so many clean steps."""
_TINY = 1e-9


@dataclass(frozen=True)
class Trend:
    """A line through clean steps; ``scale`` is the robust deviation of one step around it."""

    offset: float
    slope: float
    count: int
    scale: float

    def at(self, ahead: float) -> float:
        """The expected value ``ahead`` steps after the last clean one (1 is the next step)."""
        return self.offset + self.slope * ((self.count - 1) / 2 + ahead)

    def error(self, ahead: float) -> float:
        """Standard error of the line itself at ``ahead``, in the unit of the values."""
        n = self.count
        distance = (n - 1) / 2 + ahead
        return float(self.scale * math.sqrt(1 / n + distance**2 / max(n * (n * n - 1) / 12, 1.0)))


@functools.lru_cache(maxsize=256)
def _times(count: int) -> tuple[NDArray[np.float64], float]:
    """Centred times of ``count`` steps and the sum of their squares (1 for a single step)."""
    times = np.arange(count) - (count - 1) / 2
    return times, max(float((times * times).sum()), 1.0)


def median(values: NDArray[np.float64]) -> float:
    """The median; like ``np.median``, for a few dozen numbers several times as fast."""
    ordered, n = np.sort(values), len(values)
    return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def fit_trend(values: Sequence[float] | NDArray[np.float64]) -> Trend:
    """Least-squares line through equally spaced values (at least one) and the robust scale of what is left."""
    x = np.asarray(values, np.float64)
    times, squares = _times(len(x))
    slope, offset = float((times * x).sum()) / squares, float(x.sum()) / len(x)
    rest = x - offset - slope * times
    return Trend(offset, slope, len(x), 1.4826 * median(np.abs(rest - median(rest))) + _TINY)


class SourceMedians:
    """Running median loss of each source over clean steps, and when each source first appeared."""

    def __init__(self) -> None:
        self.losses: dict[str, list[float]] = {}
        self.first_step: dict[str, int] = {}
        self._medians: dict[str, float] = {}

    def see(self, record: StepRecord) -> None:
        """Remembers when each source first appeared."""
        for name, (_, count) in record.source_loss.items():
            if count > 0:
                self.first_step.setdefault(name, record.step)

    def _put(self, name: str, losses: Sequence[float]) -> None:
        self.losses[name] = list(losses)[-SOURCE_STEPS:]
        if len(self.losses[name]) >= SOURCE_LEAST:
            self._medians[name] = median(np.array(self.losses[name]))

    def absorb(self, source_loss: SourceLoss) -> None:
        """A clean step's losses join."""
        for name, (total, count) in source_loss.items():
            if count > 0 and math.isfinite(total):
                self._put(name, [*self.losses.get(name, []), total / count])

    def settle(self, held: Sequence[SourceLoss]) -> None:
        """The level of the steps held back is the level from now on; a new source gets its history."""
        found: dict[str, list[float]] = {}
        for source_loss in held:
            for name, (total, count) in source_loss.items():
                if count > 0 and math.isfinite(total):
                    found.setdefault(name, []).append(total / count)
        for name, losses in found.items():
            median = self.median(name)
            step = 0.0 if median is None or len(losses) < 3 else float(np.median(losses)) - median
            self._put(name, [*(v + step for v in self.losses.get(name, [])), *losses])

    def median(self, name: str) -> float | None:
        """Median of a source's clean losses; None without history."""
        return self._medians.get(name)

    def shift(self, old: Mapping[str, float], new: Mapping[str, float]) -> float:
        """By how much the mean loss is expected to move when the shares go from old to new, nats.

        Only sources with a history take part, on both sides: one without gets no allowance. In the order of their
        names: a sum in that of their first appearance would have other last bits after a load.
        """
        known = sorted(self._medians.items())

        def expected(shares: Mapping[str, float]) -> float | None:
            total = sum(shares.get(name, 0.0) for name, _ in known)
            if total <= 0:
                return None
            return sum(shares.get(name, 0.0) * median for name, median in known) / total

        before, after = expected(old), expected(new)
        return 0.0 if before is None or after is None else after - before

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        losses = {name: list(v) for name, v in sorted(self.losses.items())}
        return {"losses": losses, "first_step": dict(sorted(self.first_step.items()))}

    def load(self, state: Mapping[str, Any]) -> None:
        """As ``state`` gave it."""
        self.losses, self._medians = {}, {}
        for name, losses in state["losses"].items():
            self._put(name, [float(v) for v in losses])
        self.first_step = {name: int(step) for name, step in state["first_step"].items()}
