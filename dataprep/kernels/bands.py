"""From band keys to buckets. Shapes: N documents, K signature rows, S records (a key of a document), M members of
buckets, G buckets, L documents of a group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import helper, kernel
from .words import mix64

__all__ = [
    "BAND_BITS",
    "band_keys",
    "find_buckets",
    "finish_keys",
    "flatten_roots",
    "gather_runs",
    "index_buckets",
    "join_members",
]

BAND_BITS = 13
"""Low bits of a finished key that name its band; the other 51 are the hash."""

_BASE = np.uint64(0xA0761D6478BD642F)
_BAND_MASK = (1 << BAND_BITS) - 1


@kernel
def band_keys(signature_NK: Any, first: int, rows: int, key_N: Any) -> None:
    """Hash of signature rows ``first .. first + rows`` of each document, chained to what ``key_N`` (uint64) holds."""
    for d in range(signature_NK.shape[0]):
        value = key_N[d]
        for k in range(first, first + rows):
            value = value * _BASE + np.uint64(signature_NK[d, k])
        key_N[d] = mix64(value)


@kernel
def finish_keys(key_N: Any, band: int) -> None:
    """Make keys (uint64) of one band uniform in their upper bits and put the band into the lower ones, so that the
    keys of all bands share one space."""
    salt = np.uint64(band) * _BASE
    mask = np.uint64(_BAND_MASK)
    for d in range(key_N.shape[0]):
        key_N[d] = (mix64(key_N[d] + salt) & ~mask) | np.uint64(band)


@kernel
def find_buckets(key_S: Any, head_S: Any, member_M: Any, size_G: Any, band_G: Any) -> Any:
    """Buckets of at least two members from records sorted by key: their members (``member_M``, room for S) in the
    order of the records, sizes and bands (room for S / 2 each). Returns (members, buckets)."""
    count = key_S.shape[0]
    members = 0
    buckets = 0
    start = 0
    while start < count:
        key = key_S[start]
        stop = start + 1
        while stop < count and key_S[stop] == key:
            stop += 1
        if stop - start > 1:
            for i in range(start, stop):
                member_M[members] = head_S[i]
                members += 1
            size_G[buckets] = stop - start
            band_G[buckets] = key & np.uint64(_BAND_MASK)
            buckets += 1
        start = stop
    return members, buckets


@helper
def _root(parent_H: Any, d: Any) -> Any:
    while parent_H[d] != d:
        parent_H[d] = parent_H[parent_H[d]]
        d = np.int64(parent_H[d])
    return d


@kernel
def join_members(member_M: Any, size_G: Any, parent_H: Any, count_H: Any) -> None:
    """Join the members of each bucket in ``parent_H`` (int32; a root is the smallest of its component) and count in
    ``count_H`` (int32) how many buckets a document is in."""
    start = 0
    for bucket in range(size_G.shape[0]):
        first = _root(parent_H, np.int64(member_M[start]))
        count_H[member_M[start]] += 1
        for i in range(start + 1, start + size_G[bucket]):
            other = _root(parent_H, np.int64(member_M[i]))
            count_H[member_M[i]] += 1
            if other < first:
                parent_H[first] = other
                first = other
            elif first < other:
                parent_H[other] = first
        start += size_G[bucket]


@kernel
def flatten_roots(parent_H: Any) -> None:
    """Point every document at its root; works because a root is smaller than what hangs below it."""
    for d in range(parent_H.shape[0]):
        parent_H[d] = parent_H[parent_H[d]]


@kernel
def gather_runs(source_M: Any, first_G: Any, start_G: Any, ordered_M: Any) -> None:
    """Copy runs of ``source_M`` that begin at ``first_G`` one after another to ``ordered_M``: run g takes the places
    ``start_G[g] .. start_G[g + 1]``."""
    for g in range(first_G.shape[0]):
        shift = first_G[g] - start_G[g]
        for i in range(start_G[g], start_G[g + 1]):
            ordered_M[i] = source_M[i + shift]


@kernel
def index_buckets(member_M: Any, start_G: Any, first_L: Any, entry_E: Any) -> None:
    """For each of L documents the buckets it is in, in the order of the buckets: ``entry_E[first_L[d]:first_L[d + 1]]``
    (``first_L`` int64, L + 1, zeros on entry; ``entry_E`` int32, room for M)."""
    for i in range(member_M.shape[0]):
        first_L[member_M[i] + 1] += 1
    for d in range(first_L.shape[0] - 1):
        first_L[d + 1] += first_L[d]
    for bucket in range(start_G.shape[0] - 1):
        for i in range(start_G[bucket], start_G[bucket + 1]):
            d = member_M[i]
            entry_E[first_L[d]] = bucket
            first_L[d] += 1
    for d in range(first_L.shape[0] - 1, 0, -1):
        first_L[d] = first_L[d - 1]
    first_L[0] = 0
