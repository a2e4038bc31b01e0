"""Validation documents: chosen by a keyed hash of the document id, near copies always on one side.

Shapes: N documents in priority order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .documents import Status

__all__ = ["hold_out", "holdout_remarks", "keyed_hash"]

_SURE = 3.0
"""With a fraction of so many times 1/N, nothing of N documents is held out once in 20 times: (1 - 3/N)^N < e^-3."""


def keyed_hash(id_N: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A uniform uint64 per id and seed: two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014), the seed
    between."""
    seed_64 = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
    return _mix(_mix(id_N + np.uint64(0x9E3779B97F4A7C15)) ^ _mix(np.full(1, seed_64) + np.uint64(0xD1B54A32D192ED03)))


def _mix(value_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value_N = (value_N ^ (value_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value_N = (value_N ^ (value_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = value_N ^ (value_N >> np.uint64(31))
    return mixed


def hold_out(
    status_N: NDArray[np.uint8], component_N: NDArray[np.int64], id_N: NDArray[np.uint64], fraction: float, seed: int
) -> NDArray[np.uint8]:
    """Turn about ``fraction`` of the kept documents to HELD_OUT: whole components, by the hash of their best document.

    ``component_N`` (int64) names the best document of each document's component. Returns a new status array (uint8).
    """
    if fraction <= 0:
        return status_N.copy()
    chosen_N = keyed_hash(id_N, seed) < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))
    held = (status_N == Status.KEPT) & chosen_N[component_N]
    return np.where(held, np.uint8(Status.HELD_OUT), status_N).astype(np.uint8)


def holdout_remarks(sources: Mapping[str, Mapping[str, Any]], fraction: float) -> list[str]:
    """One sentence for each source that is trained on and has no document in the validation Dataset.

    Args:
        sources: rows of the account, with ``trained`` and ``held_out`` documents. fraction: ``holdout.fraction``; 0:
            none was wanted.
    """
    found = []
    for name, row in sources.items():
        documents = int(row["trained"])
        if fraction <= 0 or row["held_out"] or not documents:
            continue
        enough = max(math.ceil(_SURE / documents * 1000) / 1000, 2 * fraction)  # with what is usual none was drawn
        advice = (
            f"raise holdout.fraction from {fraction:g} to about {enough:g}"
            if enough < 0.5
            else "it needs more documents"
        )
        found.append(
            f"{name}: none of {documents:,} documents was held out, so nothing validates this source; {advice}"
        )
    return found
