"""Whether tokens spell their text: the check of every tokenised document, at a few nanoseconds a token.

Words of eight bytes are compared (little-endian, as everywhere in these kernels); both buffers have eight bytes more
than are used.

Legend: P parts of texts, T tokens, V vocabulary, B bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loader.text.encoded import SLACK_BYTES, EncodedParts, Spelling

from .jit import kernel
from .vectors import load64

__all__ = ["find_inexact"]


@kernel
def _find(
    ids_T: NDArray[np.int32],
    start_P: NDArray[np.int64],
    bytes_B: NDArray[np.uint8],
    start_V: NDArray[np.int64],
    expected_B: NDArray[np.uint8],
    stop_P: NDArray[np.int64],
) -> NDArray[np.bool_]:
    bad_P = np.zeros(stop_P.size, np.bool_)
    place = np.int64(0)
    for p in range(stop_P.size):
        stop = stop_P[p]
        same = True
        for t in range(start_P[p], start_P[p + 1]):
            v = np.int64(ids_T[t])
            first = start_V[v]
            length = start_V[v + 1] - first
            if length == 0 or place + length > stop:
                same = False
                break
            left = length
            while left > 8 and load64(bytes_B, first) == load64(expected_B, place):
                first, place, left = first + 8, place + 8, left - 8
            different = np.uint64(load64(bytes_B, first)) ^ np.uint64(load64(expected_B, place))
            if left > 8 or (different << np.uint64(64 - 8 * left)) != 0:
                same = False
                break
            place += left
        bad_P[p] = not same or place != stop
        place = stop
    return bad_P


def find_inexact(
    parts: EncodedParts, spelling: Spelling, expected: bytes, stop_P: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """``loader.text.encoded.find_inexact`` without a copy of the text."""
    expected_B = np.frombuffer(expected + bytes(SLACK_BYTES), np.uint8)
    found: NDArray[np.bool_] = _find(
        parts.ids_T, parts.start_P, spelling.bytes_B, spelling.start_V, expected_B, stop_P.astype(np.int64)
    )
    return found
