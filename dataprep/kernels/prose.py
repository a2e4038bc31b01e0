"""Counts that tell prose from lists, tables and menus: words, letters, bullets, ellipses, stop words of each document.

Shapes: N documents, T tokens, S slots of the table of stop words, C counts (``COUNTS``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import helper, kernel
from .located import Tokens, split_located
from .vectors import count_trailing_zeros, masks_line

__all__ = ["COUNTS", "count_prose"]

COUNTS = (
    "tokens",
    "words",
    "word_characters",
    "letter_tokens",
    "stop_words",
    "marks",
    "hashes",
    "ellipses",
    "lines",
    "bullet_lines",
    "ellipsis_lines",
)
"""Columns of ``count_prose``: tokens; those that are no singles, and their characters; tokens with a letter (an ASCII
one, or any character above 127); different stop words; marks (runs of other characters
beside white space or at an end of the text); ``#``; ``...`` and U+2026; lines, those that begin with ``-``
or U+2022, and those that end with an ellipsis, ASCII white space aside."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_SPARE = 64


@helper
def _is_space(byte: Any) -> Any:
    return byte == 32 or (9 <= byte <= 13) or (28 <= byte <= 31)


@helper
def _is_mark(data: Any, at: int, last_byte: int) -> Any:
    """Whether U+2000 + x, of which ``last_byte`` is the last byte in UTF-8 (E2 80 xx), is at ``at``."""
    return data[at] == 0xE2 and data[at + 1] == 0x80 and data[at + 2] == last_byte


@helper
def _count_line(data: Any, start: Any, stop: Any, count_C: Any) -> None:
    while start < stop and _is_space(data[start]):
        start += 1
    while start < stop and _is_space(data[stop - 1]):
        stop -= 1
    count_C[8] += 1
    if start < stop:
        count_C[9] += np.int64(data[start] == 45 or _is_mark(data, start, 0xA2))
        if stop - start >= 3:
            dots = data[stop - 1] == 46 and data[stop - 2] == 46 and data[stop - 3] == 46
            count_C[10] += np.int64(dots or _is_mark(data, stop - 3, 0xA6))


@kernel
def _count_lines(data: Any, span: Any, count_C: Any) -> None:
    block, stop = np.int64(span[0]), np.int64(span[1])
    start = block
    while block < stop:
        newlines, _ = masks_line(data, block)
        if stop - block < 64:
            newlines &= (_ONE << np.uint64(stop - block)) - _ONE
        while newlines != _ZERO:
            at = block + count_trailing_zeros(newlines)
            newlines &= newlines - _ONE
            _count_line(data, start, at, count_C)
            start = at + 1
        block += 64
    if start < stop:
        _count_line(data, start, stop, count_C)


@kernel
def _count_symbols(data: Any, span: Any, count_C: Any) -> None:
    hashes, ellipses, dots = np.int64(0), np.int64(0), np.int64(0)
    for at in range(span[0], span[1]):
        byte = data[at]
        if byte == 46:
            dots += 1
            continue
        ellipses += dots // 3
        dots = np.int64(0)
        hashes += np.int64(byte == 35)
        if byte == 0xE2:
            ellipses += np.int64(_is_mark(data, at, 0xA6))
    count_C[6] += hashes
    count_C[7] += ellipses + dots // 3


@helper
def _count_marks(data: Any, start: Any, stop: Any, at_end: Any) -> Any:
    """Runs of what is no white space in the gap between two tokens; one that touches both is part of a word."""
    runs, in_run, has_space = np.int64(0), False, at_end
    for at in range(start, stop):
        is_space = _is_space(data[at])
        runs += np.int64(not is_space and not in_run)
        in_run = not is_space
        has_space = has_space or is_space
    return runs if has_space else np.int64(0)


@kernel
def _count_tokens(data: Any, tokens: Any, sizes: Any, stop_words: Any, count_C: Any) -> None:
    """``sizes``: start and end of the text, number of tokens; ``stop_words``: hash and whether seen, by slot."""
    origin, end, num_tokens = sizes
    hash_S, seen_S = stop_words
    mask = np.uint64(hash_S.shape[0] - 1)
    seen_S[:] = 0
    words, characters, letters, stops = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    marks, before = np.int64(0), np.int64(origin)
    for token in range(num_tokens):
        value = tokens.hash_T[token]
        start, stop = origin + np.int64(tokens.start_T[token]), origin + np.int64(tokens.stop_T[token])
        marks += _count_marks(data, before, start, token == 0)
        before = stop
        if (value & _ONE) == _ZERO:
            words += 1
            size = stop - start
            for at in range(start, stop):
                size -= np.int64((data[at] & 0xC0) == 0x80)
            characters += size
        at = start
        while at < stop and (data[at] < 65 or data[at] == 95):
            at += 1
        letters += np.int64(at < stop)
        slot = np.int64((value >> np.uint64(32)) & mask)
        while hash_S[slot] != _ZERO:
            if hash_S[slot] == value:
                stops += np.int64(seen_S[slot] == 0)
                seen_S[slot] = 1
                break
            slot = np.int64(np.uint64(slot + 1) & mask)
    count_C[0] += num_tokens
    count_C[1] += words
    count_C[2] += characters
    count_C[3] += letters
    count_C[4] += stops
    count_C[5] += marks + _count_marks(data, before, end, True)


@kernel
def count_prose(texts: Any, table: Any, hash_S: Any, count_NC: Any) -> None:
    """Add the counts of N documents to ``count_NC`` (int64). ``hash_S``: token hashes (uint64) of stop words, each in
    the first free slot from its bits 32 and up on, a power of two of slots, at least one of them free (0)."""
    longest = 0
    for d in range(count_NC.shape[0]):
        longest = max(longest, texts.offset_N[d + 1] - texts.offset_N[d])
    room = longest // 2 + _SPARE
    tokens = Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))
    seen_S = np.zeros(hash_S.shape[0], np.uint8)
    for d in range(count_NC.shape[0]):
        span = (texts.offset_N[d], texts.offset_N[d + 1])
        num_tokens = split_located(texts.data, span, table, tokens)
        _count_tokens(texts.data, tokens, (span[0], span[1], num_tokens), (hash_S, seen_S), count_NC[d])
        _count_symbols(texts.data, span, count_NC[d])
        _count_lines(texts.data, span, count_NC[d])
