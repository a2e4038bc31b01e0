"""From buckets to decisions: which documents are candidates, the greedy walk, and components of linked documents.

A bucket holds documents that agree on one key; every pair inside it is a candidate pair. Pairs are never listed, so
memory does not grow with them, and each bucket keeps its *kept* members at its front, so that a bucket of near copies
costs one comparison a document. Shapes: L documents of a group in priority order, G buckets, M members of all
buckets, E = M entries, K signature rows, T methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jaccard import Sets, similarity_of
from .jit import helper, kernel

__all__ = [
    "CHECK_BITS",
    "CHECK_CONTENT",
    "CHECK_ROWS",
    "EXHAUSTIVE",
    "NO_DOCUMENT",
    "Buckets",
    "Fates",
    "Rules",
    "find_candidates",
    "link_kept",
    "walk",
]

NO_DOCUMENT = -1
CHECK_CONTENT, CHECK_ROWS, CHECK_BITS = range(3)
"""What a pair of a method must pass before anything else: equal texts, enough equal signature rows, few different
fingerprint bits."""
EXHAUSTIVE = 1024
"""Members up to which all pairs of a bucket are looked at for candidates; of a larger one every text is read."""


class Buckets(NamedTuple):
    """``member_M`` int32: documents bucket by bucket, best first (after ``walk``: kept ones first); ``start_G`` int64
    (G + 1); ``fill_G`` int32: kept members at the front, zeros before ``walk``; ``method_G`` uint8; ``part_G`` uint8:
    1 for a bucket that is part of another one; ``first_L`` int64 (L + 1), ``entry_E`` int32: the buckets of each
    document, in the order of methods and bands."""

    member_M: NDArray[np.int32]
    start_G: NDArray[np.int64]
    fill_G: NDArray[np.int32]
    method_G: NDArray[np.uint8]
    part_G: NDArray[np.uint8]
    first_L: NDArray[np.int64]
    entry_E: NDArray[np.int32]


class Rules(NamedTuple):
    """What may remove what.

    ``signature_LK`` uint32; ``simhash_L`` uint64; ``text_L`` int32: equal for equal texts; ``check_T`` uint8: a
    ``CHECK_``; ``takes_part_TL`` bool; ``group_L`` int32: only documents of one group may remove each other;
    ``threshold``; ``floor``: equal signature rows below which a pair is not compared; ``max_distance``: different
    fingerprint bits above which it is not; ``max_members``: kept members of a bucket that later ones are compared
    with; ``num_fixed``: so many first documents are kept whatever they are like; ``estimate``: the signatures'
    agreement (without them, that of the fingerprints) is taken for the similarity.
    """

    signature_LK: NDArray[np.uint32]
    simhash_L: NDArray[np.uint64]
    text_L: NDArray[np.int32]
    check_T: NDArray[np.uint8]
    takes_part_TL: NDArray[np.bool_]
    group_L: NDArray[np.int32]
    threshold: float
    floor: int
    max_distance: int
    max_members: int
    num_fixed: int
    estimate: bool


class Fates(NamedTuple):
    """Result of the walk: ``witness_L`` int32 (``NO_DOCUMENT`` = kept), ``similarity_L`` float64, ``method_L``
    uint8, ``passed_L`` uint8 (1 = some pair of the document was passed over), and ``state`` int64: pairs checked,
    similarities computed, pairs passed over in buckets of too many."""

    witness_L: NDArray[np.int32]
    similarity_L: NDArray[np.float64]
    method_L: NDArray[np.uint8]
    passed_L: NDArray[np.uint8]
    state: NDArray[np.int64]


@helper
def _agree(signature_LK: Any, a: Any, b: Any) -> Any:
    """Number of equal signature rows."""
    count = np.int64(0)
    for k in range(signature_LK.shape[1]):
        count += np.int64(signature_LK[a, k] == signature_LK[b, k])
    return count


@helper
def _distance(simhash_L: Any, a: Any, b: Any) -> Any:
    """Number of different fingerprint bits (Warren, Hacker's Delight, 5-1)."""
    x = simhash_L[a] ^ simhash_L[b]
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@helper
def _passes(rules: Rules, check: Any, a: Any, b: Any) -> Any:
    """Whether the signed columns allow that the two are similar."""
    if check == CHECK_ROWS:
        return _agree(rules.signature_LK, a, b) >= rules.floor
    return _distance(rules.simhash_L, a, b) <= rules.max_distance


@helper
def _similarity(rules: Rules, sets: Sets, a: Any, b: Any) -> Any:
    """Similarity of two documents if it is at least the threshold, else 0."""
    if not rules.estimate:
        return similarity_of(sets, a, b, rules.threshold)
    rows = rules.signature_LK.shape[1]
    if rows > 0:
        similarity = _agree(rules.signature_LK, a, b) / rows
    else:
        similarity = 1.0 - _distance(rules.simhash_L, a, b) / 64.0
    return similarity if similarity >= rules.threshold else 0.0


@kernel
def find_candidates(buckets: Buckets, rules: Rules, candidate_L: Any, span: tuple[int, int]) -> None:
    """Set ``candidate_L`` (uint8) for documents with a mate in a bucket of ``span`` (first, last + 1) whose
    signed columns do not rule out similarity: their texts are needed.

    A pair of which both are candidates already is not looked at; in a bucket of more than ``EXHAUSTIVE`` members all
    are candidates, so that the work stays linear.
    """
    member_M, start_G = buckets.member_M, buckets.start_G
    for bucket in range(span[0], span[1]):
        check = rules.check_T[buckets.method_G[bucket]]
        start, stop = start_G[bucket], start_G[bucket + 1]
        if check == CHECK_CONTENT:
            continue
        if stop - start > EXHAUSTIVE:
            for place in range(start, stop):
                candidate_L[member_M[place]] = 1
            continue
        for place in range(start + 1, stop):
            d = member_M[place]
            for other in range(start, place):
                mate = member_M[other]
                both = candidate_L[d] != 0 and candidate_L[mate] != 0
                if not both and _passes(rules, check, d, mate):
                    candidate_L[d] = 1
                    candidate_L[mate] = 1


@kernel
def walk(buckets: Buckets, rules: Rules, sets: Sets, fates: Fates, seen_L: Any, span: tuple[int, int]) -> None:
    """The verified leader rule for the documents of ``span`` (first, last + 1): a document goes if a *kept* better
    one is its duplicate, the best such one is its witness.

    Documents are visited in priority order, so whether a better one is kept is settled when it is asked. ``seen_L``
    (int64, filled with -1 before the first call) notes which mates a document was compared with.
    """
    member_M, start_G, fill_G = buckets.member_M, buckets.start_G, buckets.fill_G
    takes_part_TL, group_L, state = rules.takes_part_TL, rules.group_L, fates.state
    num_marks = np.int64(rules.check_T.shape[0] + 1)
    for d in range(span[0], span[1]):
        best = np.int64(d)
        mark = np.int64(d) * num_marks
        fixed = d < rules.num_fixed
        for entry in range(buckets.first_L[d], buckets.first_L[d + 1]):
            bucket = buckets.entry_E[entry]
            method = np.int64(buckets.method_G[bucket])
            if fixed or not takes_part_TL[method, d]:
                continue
            check = rules.check_T[method]
            fill = np.int64(fill_G[bucket])
            look = fill if check == CHECK_CONTENT else min(fill, np.int64(rules.max_members))
            place = np.int64(0)
            while place < look:
                mate = np.int64(member_M[start_G[bucket] + place])
                if mate >= best:
                    break
                place += 1
                if group_L[mate] != group_L[d] or not takes_part_TL[method, mate]:
                    continue
                similarity = 0.0
                if check == CHECK_CONTENT:
                    similarity = 1.0 if rules.text_L[mate] == rules.text_L[d] else 0.0
                elif seen_L[mate] != mark + method and seen_L[mate] != mark + num_marks - 1:
                    seen_L[mate] = mark + method
                    state[0] += 1
                    if _passes(rules, check, d, mate):
                        seen_L[mate] = mark + num_marks - 1
                        state[1] += 1
                        similarity = _similarity(rules, sets, d, mate)
                if similarity > 0.0 and similarity >= rules.threshold:
                    best = mate
                    fates.similarity_L[d] = similarity
                    fates.method_L[d] = method
            if place == look and look < fill and buckets.part_G[bucket] == 0:
                state[2] += fill - look
                fates.passed_L[d] = 1
        if best < d:
            fates.witness_L[d] = best
        else:
            for entry in range(buckets.first_L[d], buckets.first_L[d + 1]):
                bucket = buckets.entry_E[entry]
                member_M[start_G[bucket] + fill_G[bucket]] = d
                fill_G[bucket] += 1


@helper
def _root(parent_L: Any, d: Any) -> Any:
    while parent_L[d] != d:
        parent_L[d] = parent_L[parent_L[d]]
        d = np.int64(parent_L[d])
    return d


@kernel
def link_kept(buckets: Buckets, rules: Rules, sets: Sets, fates: Fates, parent_L: Any, span: tuple[int, int]) -> None:
    """Join the components (``parent_L`` int32; a root is the best document of its component) of kept documents of
    ``span`` (first, last + 1) and better ones that share a bucket and are similar by ``rules.threshold``, whoever
    takes part.

    Pairs inside one component are not compared. Runs after ``walk`` over all documents.
    """
    member_M, start_G = buckets.member_M, buckets.start_G
    for d in range(span[0], span[1]):
        if fates.witness_L[d] != NO_DOCUMENT:
            continue
        for entry in range(buckets.first_L[d], buckets.first_L[d + 1]):
            bucket = buckets.entry_E[entry]
            check = rules.check_T[buckets.method_G[bucket]]
            if check == CHECK_CONTENT:
                continue
            for place in range(min(np.int64(buckets.fill_G[bucket]), np.int64(rules.max_members))):
                mate = np.int64(member_M[start_G[bucket] + place])
                if mate >= d:
                    break
                if fates.witness_L[mate] != NO_DOCUMENT:
                    continue
                a, b = _root(parent_L, np.int64(d)), _root(parent_L, mate)
                if a != b and _passes(rules, check, d, mate):
                    fates.state[1] += 1
                    if _similarity(rules, sets, d, mate) > 0.0:
                        parent_L[max(a, b)] = min(a, b)
