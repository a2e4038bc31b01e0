"""Word splitting on UTF-8 bytes: text to one 64-bit hash per token, by the table of ``dataprep.normalize``.

Bytes are looked at 64 at a time. A stretch of ASCII word bytes is hashed eight bytes a step; a stretch that holds
anything above 127 is walked code point by code point. Both give the same hash for the same folded characters: a
character below 128 counts as one byte, any other as three, of which the last has its top bit set (so no two
sequences share their bytes).

The lowest bit of a token hash says how many tokens a shingle that begins here has (see ``shingles``): 0 word, 1 single.

Input needs 64 readable bytes after it. What is no UTF-8 gives some tokens or none, but the same ones whatever lies
around it, and no byte further away is looked at. Shapes: T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..normalize import COMMON_MARK, IGNORED, SCRIPT_MARK, SEPARATOR, SINGLE, TAIL_MARKS, WORD
from .jit import helper, kernel
from .vectors import count_leading_zeros, count_ones, count_trailing_zeros, load64, load_byte, masks_word

__all__ = ["TOKEN_SPARE", "mix64", "split_part", "split_words"]

TOKEN_SPARE = 64
"""Elements that ``split_part`` may write past its limit."""

_SEPARATOR, _WORD, _SINGLE = np.uint32(SEPARATOR), np.uint32(WORD), np.uint32(SINGLE)
_COMMON_MARK, _SCRIPT_MARK, _IGNORED = np.uint32(COMMON_MARK), np.uint32(SCRIPT_MARK), np.uint32(IGNORED)
_TAILS = np.array(TAIL_MARKS, np.uint64)
_SEED = np.uint64(0x243F6A8885A308D3)
_STEP = np.uint64(0x9FB21C651E98DF25)
_END = np.uint64(0xD6E8FEB86659FD93)
_FOLD = np.uint64(0x2020202020202020)
_WIDE = np.uint64(0x800000)
_LOW_BIT = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_PLAIN_BITS = np.uint32(0xFEE00000)
_PLAIN = np.uint32(WORD << 21)  # a word character without a tail
_MANY = np.uint64(7)  # high bytes of a block from which on its ASCII words are walked too: two quotation marks have 6
_NO_LIMIT = 1 << 62
_NO_CHARACTER = np.uint32(0x1FFFFF)
_ZERO = np.uint64(0)


@helper
def mix64(value: Any) -> Any:
    """A bijection of uint64 whose every output bit depends on every input bit (MurmurHash3's finaliser)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    value ^= value >> np.uint64(33)
    return value


@helper
def _absorb(state: Any, eight: Any) -> Any:
    state = (state ^ eight) * _STEP
    return state ^ (state >> np.uint64(32))


@helper
def _finish(state: Any, length: Any, kind: Any) -> Any:
    value = (state * _END) ^ np.uint64(length)
    value ^= value >> np.uint64(29)
    return (value & ~_LOW_BIT) | kind


@helper
def _hash_ascii(data: Any, start: int, length: int) -> Any:
    """Hash of ``length`` ASCII word bytes; setting bit 5 folds letters and leaves digits (and ``_``) distinct.

    Up to 16 bytes go without a branch, which most tokens of a text would take in no order that can be foreseen.
    """
    state = _SEED
    left = length
    while left > 16:
        state = _absorb(state, load64(data, start) | _FOLD)
        start += 8
        left -= 8
    first = load64(data, start) | _FOLD
    second = load64(data, start + 8) | _FOLD
    one = _absorb(state, first & (_ALL >> np.uint64(64 - 8 * min(left, 8))))
    two = _absorb(one, second & (_ALL >> np.uint64(64 - 8 * max(left - 8, 1))))
    state = two if left > 8 else one
    return _finish(state, np.uint64(length), _ZERO)


@helper
def _decode(data: Any, i: int, stop: int) -> tuple[Any, int]:
    """The code point at ``i`` (uint32) and the index after it; of a sequence that ``stop`` cuts, byte by byte, what
    separates."""
    first = load_byte(data, i)
    low = np.uint32(0x3F)
    if first < np.uint32(0x80):
        return first, i + 1
    following = 1 + np.int64(first >= np.uint32(0xE0)) + np.int64(first >= np.uint32(0xF0))
    if i + following >= stop:
        return _NO_CHARACTER, i + 1
    second = load_byte(data, i + 1) & low
    if first < np.uint32(0xE0):
        return ((first & np.uint32(0x1F)) << np.uint32(6)) | second, i + 2
    third = load_byte(data, i + 2) & low
    if first < np.uint32(0xF0):
        return ((first & np.uint32(0xF)) << np.uint32(12)) | (second << np.uint32(6)) | third, i + 3
    fourth = load_byte(data, i + 3) & low
    high = ((first & np.uint32(7)) << np.uint32(18)) | (second << np.uint32(12))
    return high | (third << np.uint32(6)) | fourth, i + 4


@helper
def _push(state: Any, pending: Any, length: Any, code_point: Any) -> tuple[Any, Any, Any]:
    """Add a folded character to an open token: (state, bytes not absorbed yet, bytes so far)."""
    used = (length & np.uint64(7)) << np.uint64(3)
    if code_point < np.uint64(128):
        pending |= code_point << used
        if used == np.uint64(56):
            return _absorb(state, pending), _ZERO, length + np.uint64(1)
        return state, pending, length + np.uint64(1)
    wide = code_point | _WIDE
    pending |= wide << used
    if used >= np.uint64(40):
        state = _absorb(state, pending)
        pending = wide >> (np.uint64(64) - used) if used > np.uint64(40) else _ZERO
    return state, pending, length + np.uint64(3)


@kernel
def _walk(data: Any, span: Any, table: Any, token_T: Any, progress: Any) -> tuple[Any, Any]:
    """Tokens from ``span[0]`` to the first ASCII byte from ``span[1]`` on that is no word byte, or ``span[2]``, or the
    border of a token at which there are ``progress[1]`` of them: (tokens so far, where); ``progress[0]`` tokens are
    there already."""
    count, limit = progress
    i, until, stop = span
    state, pending, length = _SEED, _ZERO, _ZERO
    open_kind = _SEPARATOR
    drops_marks = False
    while True:
        at = i
        entry = np.uint32(0)
        if i < stop:
            first = load_byte(data, i)
            if first < np.uint32(0x80):
                i += 1
                entry = table[first]
            else:
                code_point, i = _decode(data, i, stop)
                if code_point < np.uint32(table.shape[0]):
                    entry = table[code_point]
            if (entry & _PLAIN_BITS) == _PLAIN and open_kind != _SINGLE:
                state, pending, length = _push(state, pending, length, np.uint64(entry & np.uint32(0x1FFFFF)))
                drops_marks = (entry & np.uint32(1 << 24)) != np.uint32(0)
                open_kind = _WORD
                continue
        kind = (entry >> np.uint32(21)) & np.uint32(7)
        starts = kind == _SINGLE or (kind == _WORD and open_kind == _SINGLE)
        if (kind == _SEPARATOR or starts) and open_kind != _SEPARATOR:
            if (length & np.uint64(7)) != _ZERO:
                state = _absorb(state, pending)
            token_T[count] = _finish(state, length, np.uint64(open_kind == _SINGLE))
            count += 1
            state, pending, length = _SEED, _ZERO, _ZERO
            open_kind = _SEPARATOR
            if count >= limit:
                return count, at  # between two tokens nothing is remembered: a later call goes on from here
        if kind == _SEPARATOR:
            if at >= stop or (at >= until and data[at] < 128):
                return count, at
            continue
        if kind == _IGNORED or (kind == _COMMON_MARK and (drops_marks or open_kind == _SEPARATOR)):
            continue
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
def split_part(data: Any, span: Any, table: Any, token_T: Any, progress: Any) -> tuple[Any, Any]:
    """Token hashes (uint64) of ``data[span[0]:span[1]]`` into ``token_T`` behind the ``progress[0]`` that are there,
    until there are ``progress[1]`` of them (``TOKEN_SPARE`` more may be written): (tokens so far, where to go on)."""
    count, limit = np.int64(progress[0]), np.int64(progress[1])
    block, stop = np.int64(span[0]), np.int64(span[1])
    while block < stop and count < limit:
        words, high = masks_word(data, block)
        if stop - block < 64:
            inside = (_LOW_BIT << np.uint64(stop - block)) - _LOW_BIT
            words &= inside
            high &= inside
        following = block + 64
        tail = count_leading_zeros(~words) if following < stop else 0
        if high == _ZERO and tail < 64:
            # The next block begins with the word that this one cuts, known before any word is looked at; beginnings
            # and ends of words are two chains that do not wait for each other.
            words &= _ALL >> np.uint64(tail)
            begins, ends = words & ~(words << _LOW_BIT), ~words & (words << _LOW_BIT)
            while begins != _ZERO:
                bit = count_trailing_zeros(begins)
                token_T[count] = _hash_ascii(data, block + bit, count_trailing_zeros(ends) - bit)
                count += 1
                begins &= begins - _LOW_BIT
                ends &= ends - _LOW_BIT
            block = following - tail
            continue
        runs = words | high
        many = count_ones(high) >= _MANY
        while runs != _ZERO:
            bit = count_trailing_zeros(runs)
            carried = runs + (_LOW_BIT << np.uint64(bit))  # the lowest run is cleared, the bit above it set
            end = count_trailing_zeros(carried)
            start = block + bit
            if (high & runs & ~carried) != _ZERO or (bit == 0 and end == 64 and following < stop):
                until = block + 63 if many else start
                count, start = _walk(data, (start, until, stop), table, token_T, (count, limit))
                if start >= following or count >= limit:
                    following = start
                    break
                carried = _ALL << np.uint64(start - block)
            elif end == 64 and following < stop:
                following = start  # the run may go on: look at it from its own start
                break
            else:
                token_T[count] = _hash_ascii(data, start, end - bit)
                count += 1
            runs &= carried
        block = following
    return count, block


@kernel
def split_words(data: Any, span: Any, table: Any, token_T: Any) -> Any:
    """Token hashes (uint64) of ``data[span[0]:span[1]]`` into ``token_T`` (room for one a byte); their number."""
    return split_part(data, span, table, token_T, (0, _NO_LIMIT))[0]
