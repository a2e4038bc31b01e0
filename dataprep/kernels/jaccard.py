"""Exact Jaccard similarity of sorted sets, the greedy walk over candidate pairs, and components of linked documents.

Shapes: N documents in priority order, S elements of all sets, P pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jit import helper, kernel

__all__ = ["NO_DOCUMENT", "Fates", "Sets", "link_pairs", "similarity_of", "walk_pairs"]

NO_DOCUMENT = -1


class Sets(NamedTuple):
    """Sorted distinct hashes of some documents: ``value_S`` uint64, those of document d at ``start_N[d]:stop_N[d]``."""

    value_S: NDArray[np.uint64]
    start_N: NDArray[np.int64]
    stop_N: NDArray[np.int64]


class Fates(NamedTuple):
    """Result of the walk: ``witness_N`` int64 (``NO_DOCUMENT`` = kept), ``similarity_N`` float64, ``kind_N`` uint8
    of the pair that removed, ``state`` int64: similarities computed."""

    witness_N: NDArray[np.int64]
    similarity_N: NDArray[np.float64]
    kind_N: NDArray[np.uint8]
    state: NDArray[np.int64]


@helper
def similarity_of(sets: Sets, a: Any, b: Any, floor: float) -> Any:
    """Jaccard similarity of two documents; 0 if their sizes already put it below ``floor``, or if either set is
    empty."""
    value_S = sets.value_S
    i, i_stop, j, j_stop = sets.start_N[a], sets.stop_N[a], sets.start_N[b], sets.stop_N[b]
    small, large = min(i_stop - i, j_stop - j), max(i_stop - i, j_stop - j)
    if small == 0 or small < floor * large - 1e-9 * large:
        return 0.0
    total = small + large
    shared = np.int64(0)
    while i < i_stop and j < j_stop:
        x, y = value_S[i], value_S[j]
        shared += np.int64(x == y)
        i += np.int64(x <= y)
        j += np.int64(y <= x)
    return shared / (total - shared)


@kernel
def walk_pairs(pair_P: Any, sets: Sets, threshold: float, fates: Fates) -> None:
    """The verified leader rule: a document goes if a *kept* better one is its duplicate, the best such one is its
    witness.

    ``pair_P`` (uint64, ascending): worse document in the upper 32 bits, then the better one in 31 bits, then the
    kind: 0 equal bytes, 1 verified here by exact Jaccard >= ``threshold``. Documents are visited in priority order,
    so whether a better one is kept is settled when it is asked.
    """
    witness_N = fates.witness_N
    for p in range(pair_P.shape[0]):
        worse = np.int64(pair_P[p] >> np.uint64(32))
        better = np.int64((pair_P[p] >> np.uint64(1)) & np.uint64(0x7FFFFFFF))
        if witness_N[worse] != NO_DOCUMENT or witness_N[better] != NO_DOCUMENT:
            continue
        kind = pair_P[p] & np.uint64(1)
        similarity = 1.0
        if kind == np.uint64(1):
            similarity = similarity_of(sets, worse, better, threshold)
            fates.state[0] += 1
        if similarity >= threshold:
            witness_N[worse] = better
            fates.similarity_N[worse] = similarity
            fates.kind_N[worse] = kind


@helper
def _root(parent_N: Any, d: Any) -> Any:
    while parent_N[d] != d:
        parent_N[d] = parent_N[parent_N[d]]
        d = parent_N[d]
    return d


@kernel
def link_pairs(pair_P: Any, sets: Sets, threshold: float, parent_N: Any) -> int:
    """Join the components (``parent_N`` int64; a root is the best document of its component) of pairs at or above
    ``threshold``; pairs as in ``walk_pairs``. Pairs inside one component are not compared. Similarities computed."""
    computed = 0
    for p in range(pair_P.shape[0]):
        a = _root(parent_N, np.int64(pair_P[p] >> np.uint64(32)))
        b = _root(parent_N, np.int64((pair_P[p] >> np.uint64(1)) & np.uint64(0x7FFFFFFF)))
        if a == b:
            continue
        if pair_P[p] & np.uint64(1) == np.uint64(1):
            worse = np.int64(pair_P[p] >> np.uint64(32))
            better = np.int64((pair_P[p] >> np.uint64(1)) & np.uint64(0x7FFFFFFF))
            computed += 1
            if similarity_of(sets, worse, better, threshold) < threshold:
                continue
        parent_N[max(a, b)] = min(a, b)
    return computed
