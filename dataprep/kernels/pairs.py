"""Locality-sensitive hashing: signatures to band keys, equal keys to candidate pairs.

Shapes: N documents in priority order, K permutations, B bands, P pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jit import helper, kernel
from .words import mix64

__all__ = ["Bands", "PairSink", "band_keys", "emit_pairs"]

_BASE = np.uint64(0xA0761D6478BD642F)


class Bands(NamedTuple):
    """Keys of N documents in B bands (uint64) and their signatures (uint32)."""

    key_BN: NDArray[np.uint64]
    signature_NK: NDArray[np.uint32]


class PairSink(NamedTuple):
    """Where ``emit_pairs`` writes: ``pair_P`` uint64, worse document in the high half, better one in the low half;
    ``state`` int64: start of the bucket and member to go on with, pairs
    written by this call, pairs passed over."""

    pair_P: NDArray[np.uint64]
    state: NDArray[np.int64]


@kernel
def band_keys(signature_NK: Any, first: int, rows: int, key_N: Any) -> None:
    """Hash of signature rows ``first .. first + rows`` of each document, chained to what ``key_N`` (uint64) holds."""
    for d in range(signature_NK.shape[0]):
        value = key_N[d]
        for k in range(first, first + rows):
            value = value * _BASE + np.uint64(signature_NK[d, k])
        key_N[d] = mix64(value)


@helper
def _agree(signature_NK: Any, a: int, b: int) -> Any:
    count = np.int64(0)
    for k in range(signature_NK.shape[1]):
        count += np.int64(signature_NK[a, k] == signature_NK[b, k])
    return count


@helper
def _met_before(key_BN: Any, band: int, a: int, b: int) -> bool:
    for earlier in range(band):
        if key_BN[earlier, a] == key_BN[earlier, b]:
            return True
    return False


@kernel
def emit_pairs(bands: Bands, band: int, member_N: Any, limits: tuple[int, int], sink: PairSink) -> bool:
    """Pairs of documents with equal keys in ``band`` and in no earlier band, from ``sink.state[0]`` on.

    ``member_N`` (int64): documents sorted by key, within a key by priority. ``limits``: (least number of equal
    signature rows, members at the front of a bucket that are paired with all others). False if the sink is full:
    call again.
    """
    key_N = bands.key_BN[band]
    start, first = sink.state[0], sink.state[1]
    count = np.int64(0)
    done = True
    while start < member_N.shape[0] and done:
        stop = start
        while stop < member_N.shape[0] and key_N[member_N[stop]] == key_N[member_N[start]]:
            stop += 1
        first = max(first, start)
        while first < stop - 1 and done:
            if first - start >= limits[1]:
                left = stop - first
                sink.state[3] += left * (left - 1) // 2
                first = stop
            elif count + stop - first > sink.pair_P.shape[0]:
                done = False
            else:
                count = _pair_with_rest(bands, band, member_N[first:stop], limits[0], (sink, count))
                first += 1
        start = stop if done else start
    sink.state[0], sink.state[1], sink.state[2] = start, first, count
    return done


@helper
def _pair_with_rest(bands: Bands, band: int, member_M: Any, floor: int, target: tuple[PairSink, Any]) -> Any:
    """Pair the first member with all others; the number of pairs written so far."""
    sink, count = target
    a = member_M[0]
    for j in range(1, member_M.shape[0]):
        b = member_M[j]
        if _agree(bands.signature_NK, a, b) >= floor and not _met_before(bands.key_BN, band, a, b):
            sink.pair_P[count] = (np.uint64(b) << np.uint64(32)) | np.uint64(a)
            count += 1
    return count
