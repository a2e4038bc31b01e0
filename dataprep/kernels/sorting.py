"""Sorting of uniformly distributed 64-bit hashes: one counting pass by their top bits, then insertion within places.

Shapes: S hashes, B places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import kernel

__all__ = ["sort_hashes", "sort_records"]


@kernel
def sort_hashes(value_S: Any, count: int, sorted_S: Any, bucket_B: Any) -> None:
    """Sort the first ``count`` of ``value_S`` (uint64) into ``sorted_S``; ``bucket_B`` (int64) is scratch whose
    length, a power of two, bounds the number of buckets. Linear for hashes, quadratic only inside a bucket of
    distinct values.

    Up to two buckets an element and a pass without branches leave little to insert: what two neighbours in a bucket
    do cannot be foreseen, and each guess that fails costs as much as the rest of an element.
    """
    bits = 0
    while (1 << (bits + 1)) <= min(2 * count, bucket_B.shape[0]):
        bits += 1
    if bits == 0:
        for i in range(count):  # a loop: slice assignment compiles seconds of shape checks
            sorted_S[i] = value_S[i]
    else:
        shift = np.uint64(64 - bits)
        num_buckets = 1 << bits
        for b in range(num_buckets):
            bucket_B[b] = 0
        for i in range(count):
            bucket_B[np.int64(value_S[i] >> shift)] += 1
        total = 0
        for b in range(num_buckets):
            size = bucket_B[b]
            bucket_B[b] = total
            total += size
        for i in range(count):
            place = np.int64(value_S[i] >> shift)
            sorted_S[bucket_B[place]] = value_S[i]
            bucket_B[place] += 1
    if count > 0:
        largest = sorted_S[0]
        for i in range(1, count):
            value = sorted_S[i]
            sorted_S[i - 1] = min(largest, value)
            largest = max(largest, value)
        sorted_S[count - 1] = largest
    for i in range(1, count):
        value = sorted_S[i]
        j = i - 1
        while j >= 0 and sorted_S[j] > value:
            sorted_S[j + 1] = sorted_S[j]
            j -= 1
        sorted_S[j + 1] = value


@kernel
def sort_records(key_S: Any, head_S: Any, sorted_S: Any, carried_S: Any, place_B: Any) -> None:
    """Sort records by key (uint64) into ``sorted_S``, their documents (uint32) into ``carried_S``; equal keys keep
    their order.

    ``place_B`` (int64, zeros; its length a power of two) is scratch for the counting pass over the span of the keys.
    Linear for hashes, however often one key occurs; quadratic only where two frequent keys share a place.
    """
    count = key_S.shape[0]
    low = key_S[0]
    high = key_S[0]
    for i in range(count):
        low = min(low, key_S[i])
        high = max(high, key_S[i])
    shift = np.uint64(0)
    while ((high - low) >> shift) >= np.uint64(place_B.shape[0]):
        shift += np.uint64(1)
    for i in range(count):
        place_B[np.int64((key_S[i] - low) >> shift)] += 1
    total = 0
    for b in range(place_B.shape[0]):
        size = place_B[b]
        place_B[b] = total
        total += size
    for i in range(count):
        place = np.int64((key_S[i] - low) >> shift)
        sorted_S[place_B[place]] = key_S[i]
        carried_S[place_B[place]] = head_S[i]
        place_B[place] += 1
    for i in range(1, count):
        key = sorted_S[i]
        head = carried_S[i]
        j = i - 1
        while j >= 0 and sorted_S[j] > key:
            sorted_S[j + 1] = sorted_S[j]
            carried_S[j + 1] = carried_S[j]
            j -= 1
        sorted_S[j + 1] = key
        carried_S[j + 1] = head
