"""Moving averages of the losses: a pure function of the steps before, so a resumed run goes on as if never stopped.

Legend: N steps, S sources.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HISTORY_STEPS", "MEDIAN_STEPS", "LossAverages"]

DECAY = 0.98
"""What a step leaves of the average before it; half of the weight lies on the last 34 steps."""

MEDIAN_STEPS = 64
HISTORY_STEPS = 1024
"""How many steps of the ledger a resumed run reads; what it leaves out has a weight of 1e-9."""


class LossAverages:
    """Exponential average and median of the loss, and the average of each source, weighted by labels.

    Steps without labels or with a loss that is not finite are left out: one such step would hide all that follow.
    """

    def __init__(self, source_names: Sequence[str]) -> None:
        self._names = tuple(source_names)
        self._sum = self._weight = 0.0
        self._recent: deque[float] = deque(maxlen=MEDIAN_STEPS)
        self._loss_S = np.zeros(len(self._names))
        self._labels_S = np.zeros(len(self._names))

    def seed(self, records_N: NDArray[Any]) -> None:
        """Take over the end of a ledger (``loader.ledger.ledger_dtype``)."""
        known = min(records_N.dtype["source_loss_S"].shape[0], len(self._names))
        for record in records_N[-HISTORY_STEPS:]:
            loss_S, labels_S = np.zeros_like(self._loss_S), np.zeros_like(self._labels_S)
            loss_S[:known], labels_S[:known] = record["source_loss_S"][:known], record["source_labels_S"][:known]
            self._add(float(record["loss"]), int(record["label_count"]), loss_S, labels_S)

    def add(self, loss: float, label_count: int, source_loss: Mapping[str, tuple[float, int]]) -> None:
        """Add a step: mean loss in nats, labels, and per source the sum of losses and the number of labels."""
        pairs_S2 = np.array([source_loss.get(name, (0.0, 0)) for name in self._names], np.float64).reshape(-1, 2)
        self._add(loss, label_count, pairs_S2[:, 0], pairs_S2[:, 1])

    def _add(self, loss: float, label_count: int, loss_S: NDArray[np.float64], labels_S: NDArray[np.float64]) -> None:
        if not label_count or not math.isfinite(loss):
            return
        self._sum = DECAY * self._sum + (1 - DECAY) * loss
        self._weight = DECAY * self._weight + (1 - DECAY)
        self._recent.append(loss)
        finite_S = np.isfinite(loss_S)
        self._loss_S = DECAY * self._loss_S + np.where(finite_S, loss_S, 0.0)
        self._labels_S = DECAY * self._labels_S + np.where(finite_S, labels_S, 0.0)

    @property
    def mean(self) -> float:
        """Exponential average, nats; NaN before the first step."""
        return self._sum / self._weight if self._weight else math.nan

    @property
    def median(self) -> float:
        """Median of the last ``MEDIAN_STEPS``, nats; NaN before the first step."""
        return statistics.median(self._recent) if self._recent else math.nan

    def by_source(self) -> dict[str, float]:
        """Exponential average of each source that had labels so far, nats a label."""
        pairs = zip(self._names, self._loss_S.tolist(), self._labels_S.tolist(), strict=True)
        return {name: loss / labels for name, loss, labels in pairs if labels > 0}
