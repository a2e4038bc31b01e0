"""Shingles: hashes of runs of tokens, the elements of the sets whose Jaccard similarity dedup is about.

A shingle begins at every token that has enough tokens after it: 5 for words, 8 for singles (ideographs and the like). A
document in which none begins is one shingle of all its tokens; a document without tokens has none. Shapes: T tokens,
S shingles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..normalize import SINGLE_N, WORD_N
from .jit import helper, kernel
from .words import mix64

__all__ = ["make_shingles"]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_WORD_N, _SINGLE_N = WORD_N, SINGLE_N


@helper
def _shingle(token_T: Any, start: int, n: int) -> Any:
    value = np.uint64(n)
    for j in range(n):
        value = value * _BASE + token_T[start + j]
    return mix64(value)


@kernel
def make_shingles(token_T: Any, num_tokens: int, shingle_S: Any) -> int:
    """Shingle hashes (uint64, with repetitions) into ``shingle_S`` (room for ``num_tokens``); their number."""
    count = 0
    for i in range(num_tokens - _WORD_N + 1):
        if (token_T[i] & np.uint64(1)) == np.uint64(0):
            value = np.uint64(_WORD_N)
            for j in range(_WORD_N):
                value = value * _BASE + token_T[i + j]
            shingle_S[count] = mix64(value)
            count += 1
        elif i + _SINGLE_N <= num_tokens:
            shingle_S[count] = _shingle(token_T, i, _SINGLE_N)
            count += 1
    if count == 0 and num_tokens > 0:
        shingle_S[0] = _shingle(token_T, 0, num_tokens)
        count = 1
    return count
