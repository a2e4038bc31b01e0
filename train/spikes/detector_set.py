"""All detectors over one run: which steps they learn from, and what a planned change of the mixture does to them.

A planned change moves the histories, and what is held back of an open alarm, by what the sources' own medians predict;
a source without history gets no allowance.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .config import DetectorConfig
from .detectors import DETECTORS, Reading, SeriesDetector
from .history import SourceMedians, Trend
from .records import StepRecord

__all__ = ["DetectorSet"]


class DetectorSet:
    """All detectors over one run: reads a step, then lets it join the histories if it was clean.

    Args:
        config: thresholds. stages: (first position, source -> share), in order.
    """

    def __init__(self, config: DetectorConfig, stages: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        self.sources = SourceMedians()
        self.detectors = {name: make(config) for name, make in DETECTORS.items()}
        self._stages = tuple((int(start), dict(weights)) for start, weights in stages)
        self._starts = [start for start, _ in self._stages]
        self._shares: dict[str, float] | None = None
        self._held_sources: list[Mapping[str, tuple[float, int]]] = []

    def enter_stage(self, position: int) -> float:
        """Moves the histories to the shares in force at a position; by how many nats the mean loss is expected to move.

        A second call for the same position does nothing. The histories know the shares that they are of, not the number
        of a stage: another plan may have taken over since, with other stages.
        """
        reached = bisect.bisect_right(self._starts, position)
        shares = self._stages[max(0, reached - 1)][1]
        before, self._shares = self._shares, shares
        if before is None or before == shares:
            return 0.0
        nats = self.sources.shift(before, shares)
        for detector in self.detectors.values():
            detector.move(nats)
        return nats

    def observe(self, record: StepRecord, holding: bool) -> tuple[Reading, ...]:
        """The raised readings of a step. ``holding``: an alarm is open, the step joins no history anyway."""
        self.enter_stage(record.first_position)
        if record.label_count == 0 and record.finite:
            return ()
        self.sources.see(record)
        readings = [detector.read(record, self.sources) for detector in self.detectors.values()]
        raised = tuple(r for r in readings if r is not None and r.raised)
        clean = not holding and all(self.detectors[r.detector].reports_only for r in raised)
        for detector in self.detectors.values():
            detector.absorb(record, self.sources, clean)
        if clean:
            self.sources.absorb(record.source_loss)
        else:
            sums = {name: v for name, v in record.source_loss.items() if math.isfinite(v[0])}
            self._held_sources.append(sums)  # what is no number could not be written into a checkpoint's state
        return raised

    def loss_trend(self) -> Trend | None:
        """The trend of the clean single-step loss."""
        detector = self.detectors["loss_step"]
        return detector.trend() if isinstance(detector, SeriesDetector) else None

    def settle(self) -> None:
        """The open alarm was answered: what was held back is the new normal."""
        for detector in self.detectors.values():
            detector.settle()
        self.sources.settle(self._held_sources)
        self._held_sources = []

    def drop(self) -> None:
        """The open alarm is dropped unanswered: what was held back is nobody's level, nor part of any mean."""
        for detector in self.detectors.values():
            detector.load({**detector.state(), "held": [], "recent": []})
        self._held_sources = []

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "shares": self._shares,
            "sources": self.sources.state(),
            "held": [{name: list(v) for name, v in sorted(h.items())} for h in self._held_sources],
            "detectors": {name: detector.state() for name, detector in self.detectors.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """As ``state`` gave it; a row that did not exist when it was written begins anew.

        An earlier version kept the number of the stage: that of the same plan, as far as anybody knows.
        """
        if "shares" in state:
            self._shares = None if state["shares"] is None else {n: float(v) for n, v in state["shares"].items()}
        else:
            number = int(state["stage"])
            self._shares = dict(self._stages[number][1]) if number < len(self._stages) else None
        self.sources.load(state["sources"])
        self._held_sources = [{n: (float(v[0]), int(v[1])) for n, v in h.items()} for h in state["held"]]
        for name, detector in self.detectors.items():
            if name in state["detectors"]:
                detector.load(state["detectors"][name])
