"""From buckets to decisions: which documents are candidates, the greedy walk, and components of linked documents.

A bucket holds documents that agree on one key; every pair inside it is a candidate pair. Pairs are never listed, so
memory does not grow with them. Shapes: H documents ("heads") in priority order, B bands (one key of each document in
each), K signature rows, M methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jaccard import Sets, similarity_of
from .jit import helper, kernel

__all__ = ["NO_DOCUMENT", "Buckets", "Fates", "Rules", "find_candidates", "link_kept", "walk"]

NO_DOCUMENT = -1


class Buckets(NamedTuple):
    """``member_BH`` int32: documents of each band sorted by bucket, then priority; ``start_BH`` int32: where in it
    the bucket of a document begins; ``method_B`` uint8: the method a band belongs to."""

    member_BH: NDArray[np.int32]
    start_BH: NDArray[np.int32]
    method_B: NDArray[np.uint8]


class Rules(NamedTuple):
    """What may remove what.

    ``signature_HK`` uint32; ``verifies_M`` bool: pairs of the method need exact similarity (else they are equal by
    construction); ``takes_part_MH`` bool; ``group_H`` int32: only documents of one group may remove each other;
    ``threshold``; ``floor``: equal signature rows below which a pair is not compared; ``max_members``: members at
    the front of a bucket that later ones are compared with.
    """

    signature_HK: NDArray[np.uint32]
    verifies_M: NDArray[np.bool_]
    takes_part_MH: NDArray[np.bool_]
    group_H: NDArray[np.int32]
    threshold: float
    floor: int
    max_members: int


class Fates(NamedTuple):
    """Result of the walk: ``witness_H`` int64 (``NO_DOCUMENT`` = kept), ``similarity_H`` float64, ``method_H``
    uint8, and ``state`` int64: signatures compared, similarities computed."""

    witness_H: NDArray[np.int64]
    similarity_H: NDArray[np.float64]
    method_H: NDArray[np.uint8]
    state: NDArray[np.int64]


@helper
def _agree(signature_HK: Any, a: Any, b: Any) -> Any:
    """Number of equal signature rows."""
    count = np.int64(0)
    for k in range(signature_HK.shape[1]):
        count += np.int64(signature_HK[a, k] == signature_HK[b, k])
    return count


@kernel
def find_candidates(buckets: Buckets, rules: Rules, candidate_H: Any) -> None:
    """Set ``candidate_H`` (uint8) for documents with a bucket mate whose signature does not rule out similarity:
    their texts are needed. A pair of which both are candidates already is not looked at."""
    member_BH, start_BH = buckets.member_BH, buckets.start_BH
    signature_HK, floor, max_members = rules.signature_HK, rules.floor, rules.max_members
    for band in range(member_BH.shape[0]):
        if not rules.verifies_M[buckets.method_B[band]]:
            continue
        for place in range(member_BH.shape[1]):
            d = member_BH[band, place]
            start = start_BH[band, d]
            for other in range(start, min(place, start + max_members)):
                mate = member_BH[band, other]
                both = candidate_H[d] != 0 and candidate_H[mate] != 0
                if not both and _agree(signature_HK, d, mate) >= floor:
                    candidate_H[d] = 1
                    candidate_H[mate] = 1


@kernel
def walk(buckets: Buckets, rules: Rules, sets: Sets, fates: Fates) -> None:
    """The verified leader rule: a document goes if a *kept* better one is its duplicate, the best such one is its
    witness.

    Documents are visited in priority order, so whether a better one is kept is settled when it is asked.
    """
    member_BH, start_BH, method_B = buckets.member_BH, buckets.start_BH, buckets.method_B
    signature_HK, takes_part_MH, group_H = rules.signature_HK, rules.takes_part_MH, rules.group_H
    witness_H, state = fates.witness_H, fates.state
    threshold, floor, max_members = rules.threshold, rules.floor, rules.max_members
    seen_H = np.full(member_BH.shape[1], NO_DOCUMENT)
    for d in range(member_BH.shape[1]):
        best = np.int64(member_BH.shape[1])
        for band in range(member_BH.shape[0]):
            method = method_B[band]
            if not takes_part_MH[method, d]:
                continue
            verifies = rules.verifies_M[method]
            place = np.int64(start_BH[band, d])
            stop = place + max_members
            mate = np.int64(member_BH[band, place])
            while mate < d and mate < best and place < stop:
                may = witness_H[mate] == NO_DOCUMENT and group_H[mate] == group_H[d] and takes_part_MH[method, mate]
                similarity = 0.0
                if may and not verifies:
                    similarity = 1.0
                elif may and seen_H[mate] != d:
                    seen_H[mate] = d
                    state[0] += 1
                    if _agree(signature_HK, d, mate) >= floor:
                        state[1] += 1
                        similarity = similarity_of(sets, d, mate, threshold)
                if similarity >= threshold:
                    best = mate
                    fates.similarity_H[d] = similarity
                    fates.method_H[d] = method
                place += 1
                mate = np.int64(member_BH[band, place])
        if best < d:
            witness_H[d] = best


@helper
def _root(parent_H: Any, d: Any) -> Any:
    while parent_H[d] != d:
        parent_H[d] = parent_H[parent_H[d]]
        d = parent_H[d]
    return d


@kernel
def link_kept(buckets: Buckets, rules: Rules, sets: Sets, fates: Fates, parent_H: Any) -> None:
    """Join the components (``parent_H`` int64; a root is the best document of its component) of kept documents that
    share a bucket and are similar by ``rules.threshold``, whoever takes part. Pairs inside one component are not
    compared."""
    member_BH, start_BH = buckets.member_BH, buckets.start_BH
    witness_H, signature_HK = fates.witness_H, rules.signature_HK
    seen_H = np.full(member_BH.shape[1], NO_DOCUMENT)
    for d in range(member_BH.shape[1]):
        if witness_H[d] != NO_DOCUMENT:
            continue
        for band in range(member_BH.shape[0]):
            if not rules.verifies_M[buckets.method_B[band]]:
                continue
            place = np.int64(start_BH[band, d])
            stop = place + rules.max_members
            mate = np.int64(member_BH[band, place])
            while mate < d and place < stop:
                if witness_H[mate] == NO_DOCUMENT and seen_H[mate] != d:
                    seen_H[mate] = d
                    a, b = _root(parent_H, np.int64(d)), _root(parent_H, mate)
                    if a != b and _agree(signature_HK, d, mate) >= rules.floor:
                        fates.state[1] += 1
                        if similarity_of(sets, d, mate, rules.threshold) >= rules.threshold:
                            parent_H[max(a, b)] = min(a, b)
                place += 1
                mate = np.int64(member_BH[band, place])
