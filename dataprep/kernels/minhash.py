"""MinHash over 32-bit values: the scheme ``affine32`` of datasketch 2, bit for bit.

Each value is mixed once by MurmurHash3's 32-bit finaliser; permutation k maps it to ``a_k * h + b_k`` modulo 2^32
with odd ``a_k``; the signature holds the smallest. Permutations stand in the outer loop, eight at a time, so that
their minima stay in registers while the values stream from the cache. Shapes: S values, K permutations (a multiple
of 8).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import helper, kernel

__all__ = [
    "EMPTY_ROW",
    "PERMUTATION_STEP",
    "VALUE_PADDING",
    "affine_permutations",
    "lower_signature",
    "minhash_values",
    "mix32",
]

PERMUTATION_STEP = 8
"""The number of permutations must be a multiple of it."""
VALUE_PADDING = 64
"""Spare elements that the values' array needs at its end."""
_CHUNK = 4096
EMPTY_ROW = np.uint32(0xFFFFFFFF)
"""Rows of the signature of a document without shingles."""


def affine_permutations(num_permutations: int, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Factors and summands (uint32 of K) as datasketch draws them for ``seed``."""
    generator = np.random.RandomState(seed)
    half = generator.randint(0, 1 << 31, num_permutations, dtype=np.uint32)
    summands = generator.randint(0, 1 << 32, num_permutations, dtype=np.uint32)
    return half * np.uint32(2) + np.uint32(1), summands


@helper
def mix32(value: Any) -> Any:
    """MurmurHash3's finaliser on uint32."""
    value = np.uint32(value ^ (value >> np.uint32(16)))
    value = np.uint32(value * np.uint32(0x85EBCA6B))
    value = np.uint32(value ^ (value >> np.uint32(13)))
    value = np.uint32(value * np.uint32(0xC2B2AE35))
    return np.uint32(value ^ (value >> np.uint32(16)))


@helper
def _least(low: Any, factor: Any, value: Any, summand: Any) -> Any:
    return min(low, np.uint32(np.uint32(factor * value) + summand))


@helper
def _eight(value_S: Any, a: Any, b: Any, out: Any) -> None:
    """Lower ``out[:8]`` by the eight permutations over ``value_S``."""
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    m0, m1, m2, m3, m4, m5, m6, m7 = out[0], out[1], out[2], out[3], out[4], out[5], out[6], out[7]
    for i in range(value_S.shape[0]):
        value = value_S[i]
        m0 = _least(m0, a0, value, b0)
        m1 = _least(m1, a1, value, b1)
        m2 = _least(m2, a2, value, b2)
        m3 = _least(m3, a3, value, b3)
        m4 = _least(m4, a4, value, b4)
        m5 = _least(m5, a5, value, b5)
        m6 = _least(m6, a6, value, b6)
        m7 = _least(m7, a7, value, b7)
    out[0], out[1], out[2], out[3], out[4], out[5], out[6], out[7] = m0, m1, m2, m3, m4, m5, m6, m7


@kernel
def lower_signature(value_S: Any, count: int, permutations: Any, out_K: Any) -> None:
    """Lower ``out_K`` (uint32) by the first ``count`` mixed values (uint32, ``VALUE_PADDING`` spare elements).

    The values are padded with copies of the last one to whole vectors: a minimum does not mind repetitions.
    """
    a_K, b_K = permutations
    if count == 0:
        return
    padded = (count + 63) & ~63
    for i in range(count, padded):
        value_S[i] = value_S[count - 1]
    for first in range(0, padded, _CHUNK):
        chunk = value_S[first : min(padded, first + _CHUNK)]
        for k in range(0, out_K.shape[0], PERMUTATION_STEP):
            _eight(chunk, a_K[k : k + 8], b_K[k : k + 8], out_K[k : k + 8])


@kernel
def minhash_values(value_S: Any, count: int, permutations: Any, out_K: Any) -> None:
    """Signature of the first ``count`` mixed values (uint32, ``VALUE_PADDING`` spare elements) into ``out_K`` (uint32);
    without values all bits are set."""
    for k in range(out_K.shape[0]):
        out_K[k] = EMPTY_ROW
    lower_signature(value_S, count, permutations, out_K)
