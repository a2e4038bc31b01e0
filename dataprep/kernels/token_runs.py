"""Kernels over runs of tokens: copying them together, and counting the bytes that they stand for.

Legend: T tokens, R runs, V vocabulary, M marks (one every ``MARK_TOKENS`` tokens), Q places asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

__all__ = ["MARK_TOKENS", "byte_marks", "bytes_before", "copy_runs"]

MARK_TOKENS = 64


@kernel
def copy_runs(
    out_T: NDArray[Any],
    out_start_R: NDArray[np.int64],
    tokens: NDArray[Any],
    place_R: NDArray[np.int64],
    num_tokens_R: NDArray[np.int64],
) -> None:
    """Copy runs ``tokens[place : place + num_tokens]`` to ``out_T`` from ``out_start`` on; the caller has checked that
    all lie inside."""
    for r in range(place_R.size):
        start, place, count = out_start_R[r], place_R[r], num_tokens_R[r]
        out_T[start : start + count] = tokens[place : place + count]


@kernel
def byte_marks(ids_T: NDArray[np.unsignedinteger[Any]], lengths_V: NDArray[np.int32]) -> NDArray[np.int64]:
    """Bytes before every ``MARK_TOKENS``-th token, and of all tokens last; every id must be inside the vocabulary."""
    count = (ids_T.size + MARK_TOKENS - 1) // MARK_TOKENS
    marks_M = np.zeros(count + 1, np.int64)
    total = 0
    for m in range(count):
        marks_M[m] = total
        for t in range(m * MARK_TOKENS, min((m + 1) * MARK_TOKENS, ids_T.size)):
            total += lengths_V[np.uint64(ids_T[np.uint64(t)])]
    marks_M[count] = total
    return marks_M


@kernel
def bytes_before(
    ids_T: NDArray[np.unsignedinteger[Any]],
    lengths_V: NDArray[np.int32],
    marks_M: NDArray[np.int64],
    place_Q: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Bytes of the tokens before each place in 0 .. T."""
    out_Q = np.empty(place_Q.size, np.int64)
    for q in range(place_Q.size):
        mark = place_Q[q] // MARK_TOKENS
        total = marks_M[mark]
        for t in range(mark * MARK_TOKENS, place_Q[q]):
            total += lengths_V[np.uint64(ids_T[np.uint64(t)])]
        out_Q[q] = total
    return out_Q
