"""Spike detectors: what a step's numbers are compared with, and when they raise an alarm.

Every detector continues the trend of the last clean steps (least squares over ``window_steps``) and measures the
distance in robust deviations (1.4826 x median absolute residual). Steps that any detector flags, and all steps while
an alarm is open, stay out of every history: ``detector_set.py``. All state is JSON-able and comes back exactly.

One row of ``DETECTORS`` per detector; the contract test runs over that table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from .config import DetectorConfig
from .history import SourceMedians, Trend, fit_trend, median
from .records import StepRecord

__all__ = [
    "DETECTORS",
    "Detector",
    "NonFiniteDetector",
    "PlateauDetector",
    "Reading",
    "SeriesDetector",
    "SeriesRule",
]

_MIN_LOG_JUMP = 1.6
"""A single step's gradient norm must also grow by this much (natural logarithm), 5 times: one odd document among the
few of a small batch makes it 3 times, once in 2,500 clean steps, and 4 times hardly ever."""
_MIDDLE_STEPS, _MIN_LOG_MIDDLE = 6, 0.15
"""The median norm over so many steps must grow by this much, 1.16 times. Poison keeps coming; no odd document or two
move a median, so that it asks for a far smaller growth than a mean could."""
_LASTING_STEPS, _MIN_LOG_LASTING = 8, 0.11
"""The same over more steps, 1.12 times: digits and repeated markup raise the norm by little. Not at the lower threshold
of means: the median of made noise, and the line it is compared with, err too often by that much."""
_SOURCE_STEPS = 8
"""Steps whose mean loss against the sources' medians is judged too, at 1.2 times the threshold of one (at the same one
batches of 256 samples alarm three times in 1,900 clean steps): repeated markup raises it by little."""
_MIN_LOG_UPDATE = 0.7
"""The update's norm must grow by this much, 2 times: one odd document raises it by half, and for many steps, because
the optimizer remembers."""


@dataclass(frozen=True)
class Reading:
    """One detector's view of one step: ``z`` robust deviations from ``expected``; ``raised`` above its threshold."""

    detector: str
    value: float
    expected: float
    z: float
    raised: bool


class Detector(Protocol):
    """What a row of ``DETECTORS`` is."""

    name: str
    reports_only: bool

    def read(self, record: StepRecord, sources: SourceMedians) -> Reading | None:
        """The step against the history, which stays as it is; None while there is nothing to compare with."""

    def absorb(self, record: StepRecord, sources: SourceMedians, clean: bool) -> None:
        """The step is over; it joins the history if it was clean."""

    def move(self, nats: float) -> None:
        """The mixture changed as planned: the mean loss is expected to move by so much."""

    def settle(self) -> None:
        """An alarm was answered: the level of the steps held back since is the level from now on."""

    def state(self) -> dict[str, Any]:
        """JSON-able."""

    def load(self, state: Mapping[str, Any]) -> None:
        """As ``state`` gave it."""


Value = Callable[[StepRecord, SourceMedians], float | None]


@dataclass(frozen=True)
class SeriesRule:
    """How one number a step is judged.

    Attributes:
        name: its name in events. z: the threshold. least: the smallest excess, in the unit of the value.
        span: how many steps a mean spans; 1 is the step itself. middle: their median is judged, not their mean.
        moves: a planned mixture change moves it. rebases: an answered alarm sets its level anew.
    """

    name: str
    z: float
    least: float
    span: int = 1
    middle: bool = False
    moves: bool = False
    rebases: bool = True


class SeriesDetector:
    """One number a step, or the mean or median of its last ``span`` values, against the trend of clean steps."""

    reports_only = False

    def __init__(self, rule: SeriesRule, value: Value, config: DetectorConfig) -> None:
        self.name = rule.name
        self._rule, self._value, self._span = rule, value, rule.span
        self._window, self._warmup = config.window_steps, config.warmup_steps
        self._history: list[float] = []
        self._recent: list[tuple[float, bool]] = []
        self._held: list[float] = []
        self._seen = 0

    def trend(self) -> Trend | None:
        """The trend of the values (of their means or medians over ``span``), None before there are enough."""
        if len(self._history) < self._window // 2 + self._span - 1:
            return None
        values = np.asarray(self._history[-(self._window + self._span - 1) :], np.float64)
        if self._span == 1:
            return fit_trend(values)
        if self._rule.middle:
            spans = np.sort(np.lib.stride_tricks.sliding_window_view(values, self._span), axis=1)
            means = fit_trend((spans[:, (self._span - 1) // 2] + spans[:, self._span // 2]) / 2)
        else:
            means = fit_trend(np.convolve(values, np.full(self._span, 1 / self._span), "valid"))
        # overlapping means are few independent ones: their own scale may come out too small by chance
        return replace(means, scale=max(means.scale, fit_trend(values).scale / math.sqrt(self._span)))

    def read(self, record: StepRecord, sources: SourceMedians) -> Reading | None:
        """See ``Detector``."""
        value, trend = self._value(record, sources), self.trend()
        if value is None or trend is None:
            return None
        if self._span > 1:
            if len(self._recent) < self._span - 1:
                return None
            last = [v for v, _ in self._recent[-(self._span - 1) :]] + [value]
            value = median(np.asarray(last)) if self._rule.middle else float(np.mean(last))
        expected = trend.at(self._span)
        excess = value - expected
        z = excess / trend.scale
        raised = self._seen >= self._warmup and z > self._rule.z and excess > self._rule.least
        return Reading(self.name, value, expected, z, raised)

    def absorb(self, record: StepRecord, sources: SourceMedians, clean: bool) -> None:
        """See ``Detector``. A value leaves the mean's span before it joins the history."""
        value = self._value(record, sources)
        if value is None:
            return
        if not clean:
            self._held.append(value)
        self._recent.append((value, clean))
        while len(self._recent) >= self._span:
            old, was_clean = self._recent.pop(0)
            if was_clean:
                self._history = [*self._history, old][-(self._window + self._span) :]
                self._seen += 1

    def move(self, nats: float) -> None:
        """See ``Detector``."""
        if self._rule.moves:
            self._history = [v + nats for v in self._history]
            self._recent = [(v + nats, clean) for v, clean in self._recent]
            self._held = [v + nats for v in self._held]  # else an answer would mix the levels of both stages

    def settle(self) -> None:
        """See ``Detector``."""
        trend = self.trend()
        if trend is not None and self._held:
            moved = float(np.median(self._held)) - trend.at(self._span + len(self._held) / 2)
            step = moved if self._rule.rebases else 0.0
            self._history = [v + step for v in self._history]
            self._recent = [(trend.at(self._span) + step, True)] * (self._span - 1)
        self._held = []

    def state(self) -> dict[str, Any]:
        """See ``Detector``."""
        recent = [[v, clean] for v, clean in self._recent]
        return {"history": list(self._history), "recent": recent, "held": list(self._held), "seen": self._seen}

    def load(self, state: Mapping[str, Any]) -> None:
        """See ``Detector``."""
        self._history = [float(v) for v in state["history"]]
        self._recent = [(float(v), bool(clean)) for v, clean in state["recent"]]
        self._held = [float(v) for v in state["held"]]
        self._seen = int(state["seen"])


class NonFiniteDetector:
    """Loss, gradient or parameters that are no longer numbers: raised at once, also during warm-up."""

    name = "non_finite"
    reports_only = False

    def read(self, record: StepRecord, sources: SourceMedians) -> Reading | None:
        """See ``Detector``."""
        return Reading(self.name, float(not record.finite), 0.0, 0.0, not record.finite)

    def absorb(self, record: StepRecord, sources: SourceMedians, clean: bool) -> None:
        """Nothing to remember."""

    def move(self, nats: float) -> None:
        """Nothing to move."""

    def settle(self) -> None:
        """Nothing to settle."""

    def state(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""


class PlateauDetector:
    """Reports, once, that the smoothed loss has hardly fallen over ``plateau_steps``; asks for nothing."""

    name = "plateau"
    reports_only = True

    def __init__(self, config: DetectorConfig) -> None:
        self._steps, self._nats = config.plateau_steps, config.plateau_nats
        self._mean: float | None = None
        self._best = math.inf
        self._since = 0

    def read(self, record: StepRecord, sources: SourceMedians) -> Reading | None:
        """See ``Detector``."""
        if self._mean is None or self._steps <= 0:
            return None
        return Reading(self.name, self._mean, self._best, 0.0, self._since == self._steps)

    def absorb(self, record: StepRecord, sources: SourceMedians, clean: bool) -> None:
        """See ``Detector``."""
        if not clean or not math.isfinite(record.loss):
            return
        rate = min(1.0, 20.0 / max(self._steps, 20))
        self._mean = record.loss if self._mean is None else self._mean + rate * (record.loss - self._mean)
        if self._mean < self._best - self._nats:
            self._best, self._since = self._mean, 0
        else:
            self._since += 1

    def move(self, nats: float) -> None:
        """See ``Detector``."""
        self._mean = None if self._mean is None else self._mean + nats
        self._best += nats

    def settle(self) -> None:
        """Nothing to settle."""

    def state(self) -> dict[str, Any]:
        """See ``Detector``."""
        return {"mean": self._mean, "best": self._best if math.isfinite(self._best) else None, "since": self._since}

    def load(self, state: Mapping[str, Any]) -> None:
        """See ``Detector``."""
        self._mean = None if state["mean"] is None else float(state["mean"])
        self._best = math.inf if state["best"] is None else float(state["best"])
        self._since = int(state["since"])


def _loss(record: StepRecord, sources: SourceMedians) -> float | None:
    return record.loss if math.isfinite(record.loss) else None


def _log(value: float) -> float | None:
    return math.log(value) if math.isfinite(value) and value > 0 else None


def _log_grad(record: StepRecord, sources: SourceMedians) -> float | None:
    return _log(record.grad_norm)


def _source_residual(record: StepRecord, sources: SourceMedians) -> float | None:
    """Mean over labels of loss - median of its source; a source without history is taken against the others' mean."""
    medians = {name: sources.median(name) for name in record.source_loss}
    known = [m for m in medians.values() if m is not None]
    if not known:
        return None
    others = float(np.mean(known))
    count = sum(n for _, n in record.source_loss.values())
    total = 0.0
    for name, (loss_sum, n) in record.source_loss.items():
        median = medians[name]
        total += loss_sum - n * (others if median is None else median)
    return total / count if count > 0 and math.isfinite(total) else None


DETECTORS: dict[str, Callable[[DetectorConfig], Detector]] = {
    "non_finite": lambda c: NonFiniteDetector(),
    "loss_step": lambda c: SeriesDetector(SeriesRule("loss_step", c.loss_z, c.min_nats, moves=True), _loss, c),
    "loss_mean": lambda c: SeriesDetector(
        SeriesRule("loss_mean", c.mean_z, c.min_nats / 2, span=c.mean_steps, moves=True), _loss, c
    ),
    "source_loss": lambda c: SeriesDetector(
        SeriesRule("source_loss", c.source_z, c.min_nats, rebases=False), _source_residual, c
    ),
    "source_mean": lambda c: SeriesDetector(
        SeriesRule("source_mean", 1.2 * c.source_z, c.min_nats / 2, span=_SOURCE_STEPS, rebases=False),
        _source_residual,
        c,
    ),
    "grad_norm": lambda c: SeriesDetector(SeriesRule("grad_norm", c.grad_norm_z, _MIN_LOG_JUMP), _log_grad, c),
    "grad_middle": lambda c: SeriesDetector(
        SeriesRule("grad_middle", c.grad_norm_z, _MIN_LOG_MIDDLE, span=_MIDDLE_STEPS, middle=True), _log_grad, c
    ),
    "grad_lasting": lambda c: SeriesDetector(
        SeriesRule("grad_lasting", c.grad_norm_z, _MIN_LOG_LASTING, span=_LASTING_STEPS, middle=True), _log_grad, c
    ),
    "update_norm": lambda c: SeriesDetector(
        SeriesRule("update_norm", c.update_norm_z, _MIN_LOG_UPDATE), lambda record, sources: _log(record.update_norm), c
    ),
    "plateau": PlateauDetector,
}
"""Every detector by name; the order is the order of the readings."""
