"""The clean steps that a window is compared with: an investigation and ``replay`` read the same ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .attribute import SegmentColumns, concatenate, enough_baseline
from .config import AttributionConfig

__all__ = ["LEAST_BASELINE", "read_baseline"]

LEAST_BASELINE = 60
"""Fewer clean segments than this say nothing."""


def read_baseline(
    score: Callable[[int], SegmentColumns], steps: tuple[int, int], rules: AttributionConfig
) -> list[SegmentColumns]:
    """The scored rows of the steps in front of a window, one table a step, newest first: until there are enough
    segments in all and of each source, or ``rules.max_baseline_steps`` steps.

    Args:
        score: step -> its rows, marked as baseline. steps: [first there is, window).
    """
    first, stop = steps
    parts: list[SegmentColumns] = []
    for step in range(stop - 1, max(first, stop - rules.max_baseline_steps) - 1, -1):
        parts.append(score(step))
        table = concatenate(parts)
        if enough_baseline(table, np.unique(table.source_S).tolist(), rules):
            break
    return parts
