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

__all__ = ["HELD_TOKENS", "make_shingles", "start_shingles"]

HELD_TOKENS = max(WORD_N, SINGLE_N) - 1
"""Tokens at the end of a part whose shingles need tokens of the next part."""

_BASE = np.uint64(0x9E3779B97F4A7C15)
_WORD_N, _SINGLE_N = WORD_N, SINGLE_N


@helper
def _shingle(token_T: Any, start: int, n: int) -> Any:
    value = np.uint64(n)
    for j in range(n):
        value = value * _BASE + token_T[start + j]
    return mix64(value)


@helper
def _word_shingle(token_T: Any, start: int) -> Any:
    value = np.uint64(_WORD_N)
    for j in range(_WORD_N):
        value = value * _BASE + token_T[start + j]
    return mix64(value)


@helper
def _any_single(token_T: Any, count: int) -> bool:
    """Whether one of the first ``count`` tokens is a single."""
    bits = np.uint64(0)
    for i in range(count):
        bits |= token_T[i]
    return bool((bits & np.uint64(1)) != np.uint64(0))


@helper
def start_shingles(token_T: Any, first: int, stop: int, num_tokens: int, shingle_S: Any) -> int:
    """Shingles that begin at tokens ``first .. stop`` of ``num_tokens`` into ``shingle_S``; their number."""
    tokens = token_T[first:]
    starts = max(min(stop, num_tokens - _WORD_N + 1) - first, 0)
    if not _any_single(tokens, starts):
        for i in range(starts):  # without a branch: runs in vectors
            shingle_S[i] = _word_shingle(tokens, i)
        return starts
    count = 0
    for i in range(starts):
        if (tokens[i] & np.uint64(1)) == np.uint64(0):
            shingle_S[count] = _word_shingle(tokens, i)
            count += 1
        elif first + i + _SINGLE_N <= num_tokens:
            shingle_S[count] = _shingle(tokens, i, _SINGLE_N)
            count += 1
    return count


@kernel
def make_shingles(token_T: Any, num_tokens: int, shingle_S: Any) -> int:
    """Shingle hashes (uint64, with repetitions) into ``shingle_S`` (room for ``num_tokens``); their number."""
    count = start_shingles(token_T, 0, num_tokens, num_tokens, shingle_S)
    if count == 0 and num_tokens > 0:
        shingle_S[0] = _shingle(token_T, 0, num_tokens)
        count = 1
    return count
