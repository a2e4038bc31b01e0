"""Keyed hashes of document ids: what decides buckets, samples and cuts, the same on every machine and for every task
count.

Ids are hashes already; mixing them with a key of their own per purpose makes the purposes independent of each other.
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

__all__ = ["document_keys", "mix64", "purpose_key"]


def purpose_key(seed: int, purpose: str) -> int:
    """64-bit key of one purpose under the job's seed."""
    return int(xxhash.xxh3_64_intdigest(f"tokenreel {purpose}".encode(), seed))


def mix64(values_N: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """A keyed bijection of 64-bit numbers: finaliser of splitmix64 (Steele, Lea, Flood 2014) after adding and mixing
    the key.
    """
    z = values_N.astype(np.uint64) + np.uint64(key & 0xFFFFFFFFFFFFFFFF)
    for _ in range(2):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        z = z ^ np.uint64(((key * 0x9E3779B97F4A7C15) >> 7) & 0xFFFFFFFFFFFFFFFF)
    return z


def document_keys(ids_D: NDArray[np.uint64], seed: int, purpose: str) -> NDArray[np.uint64]:
    """Keys of documents for one purpose; distinct ids have distinct keys."""
    return mix64(ids_D, purpose_key(seed, purpose))
