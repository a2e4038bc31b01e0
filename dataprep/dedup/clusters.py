"""``decision: union_find`` inside a group of documents: whatever ``minhash`` chains together goes but for one.

Shapes: L documents of a group, M of them clustered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.walk import NO_DOCUMENT, Fates, Rules
from .config import MinHashConfig
from .union_find import cluster_roots

__all__ = ["remove_clusters"]

_ROWS = 1 << 14


def remove_clusters(
    rules: Rules,
    takes_part_L: NDArray[np.bool_],
    place_L2: NDArray[np.int64],
    config: MinHashConfig,
    fates: Fates,
) -> None:
    """Remove all documents but the root of each cluster, on top of what ``fates`` says already.

    Documents that another method removed are in no cluster; one whose witness goes now gets the root of its witness
    instead. Similarities are the signatures' agreement.

    Args:
        rules: signatures, and the groups in which documents may remove each other.
        takes_part_L: the documents that may be clustered.
        place_L2: datatrove's file and document numbers: the file's place by (source, path), and the record.
        config: bands and rows.
        fates: changed in place.
    """
    root_L = np.arange(len(takes_part_L))
    free_L = takes_part_L & (fates.witness_L == NO_DOCUMENT)
    for group in np.unique(rules.group_L[free_L]).tolist():
        member_M = np.flatnonzero(free_L & (rules.group_L == group))
        place_M2 = place_L2[member_M]
        root_L[member_M] = member_M[cluster_roots(rules.signature_LK[member_M], place_M2[:, 0], place_M2[:, 1], config)]
    gone = np.flatnonzero(root_L != np.arange(len(root_L)))
    fates.witness_L[gone] = root_L[gone]
    before = np.flatnonzero((fates.witness_L != NO_DOCUMENT) & (root_L == np.arange(len(root_L))))
    moved = before[root_L[fates.witness_L[before]] != fates.witness_L[before]]
    fates.witness_L[moved] = root_L[fates.witness_L[moved]]
    changed = np.concatenate((gone, moved))
    for start in range(0, len(changed), _ROWS):
        rows = changed[start : start + _ROWS]
        equal = rules.signature_LK[rows] == rules.signature_LK[fates.witness_L[rows]]
        fates.similarity_L[rows] = equal.mean(axis=1)
