"""SimHash: 64 bits of a document, of which each is the majority of that bit over its shingle hashes.

Charikar, "Similarity estimation techniques from rounding algorithms" (2002); as fingerprints of documents: Manku, Jain,
Das Sarma, "Detecting near-duplicates for web crawling" (2007). Every shingle counts as often as it occurs; a tie gives
0. So a document with one shingle has that shingle's hash as its fingerprint, and one without shingles has 0 and takes
no part.

The 64 counters are kept bit-sliced: plane p (uint64) holds bit p of all of them, so that a full adder on whole words
adds 64 bits at once; sixteen shingles go through a tree of carry-save adders (Harley and Seal) before anything reaches
the higher planes. About 1 ns a shingle. Shapes: S shingles, P planes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import helper, kernel

__all__ = ["NUM_PLANES", "SimHashSums", "add_shingles", "simhash_of"]

SimHashSums = Any
"""uint64 of ``NUM_PLANES``: bit-sliced counters, zeros before the first shingle."""
NUM_PLANES = 44
"""Planes: counters hold up to 2^44 shingles."""
_BLOCK = 16
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@helper
def _add(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Full adder of three bits in each of 64 places: (sum, carry)."""
    either = a ^ b
    return either ^ c, (a & b) | (either & c)


@helper
def _four(ones: Any, twos: Any, s0: Any, s1: Any, s2: Any, s3: Any) -> tuple[Any, Any, Any]:
    ones, first = _add(ones, s0, s1)
    ones, second = _add(ones, s2, s3)
    twos, fours = _add(twos, first, second)
    return ones, twos, fours


@helper
def _ripple(plane_P: SimHashSums, plane: int, carry: Any) -> None:
    """Add ``carry`` to the counters at ``plane``."""
    p = plane
    while carry != _ZERO:
        kept = plane_P[p]
        plane_P[p] = kept ^ carry
        carry = kept & carry
        p += 1


@kernel
def add_shingles(shingle_S: Any, count: int, plane_P: SimHashSums) -> None:
    """Count the bits of the first ``count`` shingle hashes (uint64) in the counters ``plane_P``."""
    ones, twos, fours, eights = plane_P[0], plane_P[1], plane_P[2], plane_P[3]
    whole = count // _BLOCK * _BLOCK
    for start in range(0, whole, _BLOCK):
        s = shingle_S[start : start + _BLOCK]
        ones, twos, f0 = _four(ones, twos, s[0], s[1], s[2], s[3])
        ones, twos, f1 = _four(ones, twos, s[4], s[5], s[6], s[7])
        fours, e0 = _add(fours, f0, f1)
        ones, twos, f0 = _four(ones, twos, s[8], s[9], s[10], s[11])
        ones, twos, f1 = _four(ones, twos, s[12], s[13], s[14], s[15])
        fours, e1 = _add(fours, f0, f1)
        eights, carry = _add(eights, e0, e1)
        _ripple(plane_P, 4, carry)
    plane_P[0], plane_P[1], plane_P[2], plane_P[3] = ones, twos, fours, eights
    for i in range(whole, count):
        _ripple(plane_P, 0, shingle_S[i])


@kernel
def simhash_of(plane_P: SimHashSums, count: int) -> Any:
    """The fingerprint (uint64) of ``count`` counted shingles: bit b is set where more than half of them have it."""
    half = np.uint64(count) >> np.uint64(1)
    above, equal = _ZERO, _ALL
    for p in range(plane_P.shape[0] - 1, -1, -1):
        plane = plane_P[p]
        if (half >> np.uint64(p)) & np.uint64(1) != _ZERO:
            equal &= plane
        else:
            above |= equal & plane
            equal &= ~plane
    return above
