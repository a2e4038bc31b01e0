"""Exact Jaccard similarity of sorted sets. Shapes: N documents, S elements of all sets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jit import helper

__all__ = ["Sets", "similarity_of"]


class Sets(NamedTuple):
    """Sorted distinct hashes of some documents: ``value_S`` uint64, those of document d at ``start_N[d]:stop_N[d]``."""

    value_S: NDArray[np.uint64]
    start_N: NDArray[np.int64]
    stop_N: NDArray[np.int64]


@helper
def similarity_of(sets: Sets, a: Any, b: Any, floor: float) -> Any:
    """Jaccard similarity of two documents if it is at least ``floor``, else 0 (also if either set is empty); gives
    up as soon as it cannot be."""
    value_S = sets.value_S
    i, i_stop, j, j_stop = sets.start_N[a], sets.stop_N[a], sets.start_N[b], sets.stop_N[b]
    total = (i_stop - i) + (j_stop - j)
    needed = np.int64(np.ceil(floor * total / (1.0 + floor) - 1e-6))
    spare_a, spare_b = (i_stop - i) - needed, (j_stop - j) - needed
    if i == i_stop or j == j_stop or spare_a < 0 or spare_b < 0:
        return 0.0
    shared = np.int64(0)
    i_first = i
    while i < i_stop and j < j_stop and i - i_first - shared <= spare_a:
        x, y = value_S[i], value_S[j]
        shared += np.int64(x == y)
        i += np.int64(x <= y)
        j += np.int64(y <= x)
    similarity = shared / (total - shared)
    return similarity if similarity >= floor else 0.0
