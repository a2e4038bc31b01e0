"""Word splitting that also says where each token lies: for rules that count the bytes of words.

The tokens and their hashes are those of ``words.split_words``. A token's bytes go from its first character to the next
one that separates or begins another token, so marks that are dropped and format characters after a word belong to it.

Input must be valid UTF-8 with 64 readable bytes after it. Shapes: T tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..normalize import COMMON_MARK, IGNORED, SEPARATOR, SINGLE, TAIL_MARKS, WORD
from .jit import helper, kernel
from .vectors import count_trailing_zeros, masks_word
from .words import _absorb, _finish, _hash_ascii, _push

__all__ = ["Tokens", "split_located"]

_SEPARATOR, _WORD, _SINGLE = np.uint32(SEPARATOR), np.uint32(WORD), np.uint32(SINGLE)
_COMMON_MARK, _IGNORED = np.uint32(COMMON_MARK), np.uint32(IGNORED)
_TAILS = np.array(TAIL_MARKS, np.uint64)
_SEED = np.uint64(0x243F6A8885A308D3)
_LOW_BIT = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO = np.uint64(0)


class Tokens(NamedTuple):
    """Tokens of one text: hashes (uint64) and their bytes ``[start, stop)`` (int32) from the start of the text."""

    hash_T: NDArray[np.uint64]
    start_T: NDArray[np.int32]
    stop_T: NDArray[np.int32]


@helper
def _character(data: Any, i: int) -> tuple[Any, int]:
    """The code point at ``i`` (uint32) and the index after it."""
    first = np.uint32(data[i])
    low = np.uint32(0x3F)
    if first < np.uint32(0x80):
        return first, i + 1
    second = np.uint32(data[i + 1]) & low
    if first < np.uint32(0xE0):
        return ((first & np.uint32(0x1F)) << np.uint32(6)) | second, i + 2
    third = np.uint32(data[i + 2]) & low
    if first < np.uint32(0xF0):
        return ((first & np.uint32(0xF)) << np.uint32(12)) | (second << np.uint32(6)) | third, i + 3
    high = ((first & np.uint32(7)) << np.uint32(18)) | (second << np.uint32(12))
    return high | (third << np.uint32(6)) | (np.uint32(data[i + 3]) & low), i + 4


@kernel
def _walk_located(data: Any, span: Any, table: Any, tokens: Any, progress: Any) -> tuple[Any, Any]:
    """Tokens from ``span[0]`` to the first ASCII byte that is no word byte, or ``span[1]``: (tokens so far, where).
    ``progress``: (tokens so far, start of the text)."""
    i = span[0]
    count, origin = progress
    state, pending, length = _SEED, _ZERO, _ZERO
    open_kind = _SEPARATOR
    drops_marks = False
    while True:
        at = i
        entry = np.uint32(0)
        if i < span[1]:
            code_point, i = _character(data, i)
            if code_point < np.uint32(table.shape[0]):
                entry = table[code_point]
        kind = (entry >> np.uint32(21)) & np.uint32(7)
        starts = kind == _SINGLE or (kind == _WORD and open_kind == _SINGLE)
        if (kind == _SEPARATOR or starts) and open_kind != _SEPARATOR:
            if (length & np.uint64(7)) != _ZERO:
                state = _absorb(state, pending)
            tokens.hash_T[count] = _finish(state, length, np.uint64(open_kind == _SINGLE))
            tokens.stop_T[count] = at - origin
            count += 1
            state, pending, length = _SEED, _ZERO, _ZERO
            open_kind = _SEPARATOR
        if kind == _SEPARATOR:
            if at >= span[1] or data[at] < 128:
                return count, at
            continue
        if kind == _IGNORED or (kind == _COMMON_MARK and (drops_marks or open_kind == _SEPARATOR)):
            continue
        if open_kind == _SEPARATOR:
            tokens.start_T[count] = at - origin
        state, pending, length = _push(state, pending, length, np.uint64(entry & np.uint32(0x1FFFFF)))
        if (entry >> np.uint32(25)) != np.uint32(0):
            state, pending, length = _push(state, pending, length, _TAILS[entry >> np.uint32(25)])
        if kind == _WORD or kind == _SINGLE:
            drops_marks = (entry & np.uint32(1 << 24)) != np.uint32(0)
            open_kind = kind
        elif open_kind == _SEPARATOR:
            drops_marks = False
            open_kind = _WORD


@kernel
def split_located(data: Any, span: Any, table: Any, tokens: Any) -> Any:
    """Tokens of ``data[span[0]:span[1]]`` into ``tokens`` (room for one in two bytes, and 64 more); their number."""
    count = np.int64(0)
    block = np.int64(span[0])
    stop = np.int64(span[1])
    origin = block
    while block < stop:
        words, high = masks_word(data, block)
        if stop - block < 64:
            inside = (_LOW_BIT << np.uint64(stop - block)) - _LOW_BIT
            words &= inside
            high &= inside
        runs = words | high
        following = block + 64
        while runs != _ZERO:
            bit = count_trailing_zeros(runs)
            length = min(count_trailing_zeros(~(runs >> np.uint64(bit))), 64 - bit)
            start = block + bit
            if bit + length == 64 and bit > 0 and following < stop:
                following = start  # the run may go on: look at it from its own start
                break
            run = (_ALL >> np.uint64(64 - length)) << np.uint64(bit)
            if length == 64:
                count, following = _walk_located(data, (start, stop), table, tokens, (count, origin))
            elif (high & run) != _ZERO:
                count, _ = _walk_located(data, (start, start + length), table, tokens, (count, origin))
            else:
                tokens.hash_T[count] = _hash_ascii(data, start, length)
                tokens.start_T[count] = start - origin
                tokens.stop_T[count] = start - origin + length
                count += 1
            runs &= ~run
        block = following
    return count
