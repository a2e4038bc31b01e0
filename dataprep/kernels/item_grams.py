"""Runs of words of benchmark items ("grams") and where documents hold them.

A gram of an item with at least n words is n words in a row; a shorter item is one gram of all its words. A document is
looked at word by word: a rolling hash of the ``lead`` words ahead (the fewest of any gram) asks a blocked Bloom filter
that fits the second-level cache; the few that pass ask a table of first words, which says how long the grams are that
begin so, and only those are hashed whole and looked up. So grams of all lengths cost one rolling hash.

A gram is known by 64 bits of hash, words by 64 each: a false hit needs a collision, one word in 2^64 / number of
grams. Shapes: N documents or items, T words of all together, G distinct grams, M matches, B filter words,
P slots by first words, Q slots by gram.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..normalize import COMMON_MARK, IGNORED, SEPARATOR, SINGLE, WORD
from .documents import Buffers
from .jit import helper, kernel
from .words import mix64, split_words

__all__ = ["GramTables", "bound_words", "fill_filter", "fill_slots", "find_grams", "hash_grams", "split_texts"]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_LENGTH_STEP = np.uint64(0xD6E8FEB86659FD93)
_ONE, _ZERO, _LOW_6 = np.uint64(1), np.uint64(0), np.uint64(63)
_SEPARATOR, _WORD, _SINGLE = np.uint32(SEPARATOR), np.uint32(WORD), np.uint32(SINGLE)
_COMMON_MARK, _IGNORED = np.uint32(COMMON_MARK), np.uint32(IGNORED)


class GramTables(NamedTuple):
    """What documents are searched for.

    ``filter_B`` uint64, a power of two long; ``lead_key_P`` uint64 (0 = free) with ``lead_lengths_P`` uint64: bit
    ``length - 1`` for each length of a gram that begins so; ``gram_key_Q`` uint64 with ``gram_Q`` int32, the gram's
    number; ``lead``: words of the rolling hash.
    """

    filter_B: NDArray[np.uint64]
    lead_key_P: NDArray[np.uint64]
    lead_lengths_P: NDArray[np.uint64]
    gram_key_Q: NDArray[np.uint64]
    gram_Q: NDArray[np.int32]
    lead: int


@helper
def _run(token_T: Any, start: Any, length: Any) -> Any:
    """Polynomial hash of a run of words; rolls."""
    value = _ZERO
    for j in range(length):
        value = value * _BASE + token_T[start + j]
    return value


@helper
def _key(token_T: Any, start: Any, length: Any) -> Any:
    """Key of a gram, never 0."""
    return mix64(_run(token_T, start, length) + np.uint64(length) * _LENGTH_STEP) | _ONE


@helper
def _filter_bits(value: Any) -> Any:
    """Three bits of a filter word, from bits of the rolling hash that do not choose the word."""
    bits = _ONE << ((value >> np.uint64(8)) & _LOW_6)
    bits |= _ONE << ((value >> np.uint64(14)) & _LOW_6)
    return bits | (_ONE << ((value >> np.uint64(20)) & _LOW_6))


@kernel
def split_texts(texts: Buffers, table: Any, token_T: Any, stop_N: Any) -> None:
    """Word hashes (uint64) of N texts one after another in ``token_T`` (room for one a byte), ends in ``stop_N``."""
    offset_N = texts.offset_N
    end = np.int64(0)
    for d in range(stop_N.shape[0]):
        end += split_words(texts.data, (offset_N[d], offset_N[d + 1]), table, token_T[end:])
        stop_N[d] = end


@kernel
def hash_grams(token_T: Any, place_R3: Any, lead: int, key_R2: Any) -> None:
    """``key_R2`` (uint64): hash of the first ``lead`` words, and key, of the grams at ``place_R3`` (int64: start in
    ``token_T``, length, unused)."""
    for row in range(place_R3.shape[0]):
        key_R2[row, 0] = _run(token_T, place_R3[row, 0], lead)
        key_R2[row, 1] = _key(token_T, place_R3[row, 0], place_R3[row, 1])


@kernel
def fill_filter(lead_K: Any, filter_B: Any) -> None:
    """Set the bits of K rolling hashes."""
    shift = np.uint64(64) - np.uint64(np.log2(filter_B.shape[0]))
    for k in range(lead_K.shape[0]):
        filter_B[np.int64(lead_K[k] >> shift)] |= _filter_bits(lead_K[k])


@kernel
def fill_slots(key_K: Any, slot_Q: Any, key_Q: Any) -> None:
    """Put K distinct keys other than 0 into ``key_Q`` (zeros, a power of two long, not full) and in ``slot_Q``
    (int64, K) where each went."""
    last = key_Q.shape[0] - 1
    for k in range(key_K.shape[0]):
        slot = np.int64(mix64(key_K[k]) & np.uint64(last))
        while key_Q[slot] != _ZERO:
            slot = (slot + 1) & last
        key_Q[slot] = key_K[k]
        slot_Q[k] = slot


@helper
def _slot(key: Any, key_Q: Any) -> Any:
    """Where ``key`` is, or the free slot that says it is nowhere."""
    last = key_Q.shape[0] - 1
    slot = np.int64(mix64(key) & np.uint64(last))
    while key_Q[slot] != _ZERO and key_Q[slot] != key:
        slot = (slot + 1) & last
    return slot


@kernel
def _look(token_T: Any, span: Any, value: Any, tables: Any, match_M3: Any) -> Any:
    """Write the grams that begin at word ``span[0]`` of document ``span[2]`` from row ``span[3]``; the rows so far."""
    i, num_tokens, document, count = span
    slot = _slot(value | _ONE, tables.lead_key_P)
    if tables.lead_key_P[slot] == _ZERO:
        return count
    lengths = tables.lead_lengths_P[slot]
    length = tables.lead
    while length <= 64 and i + length <= num_tokens:
        if (lengths >> np.uint64(length - 1)) & _ONE:
            key = _key(token_T, i, length)
            place = _slot(key, tables.gram_key_Q)
            if tables.gram_key_Q[place] != _ZERO:
                if count < match_M3.shape[0]:
                    match_M3[count, 0] = document
                    match_M3[count, 1] = i
                    match_M3[count, 2] = tables.gram_Q[place]
                count += 1
        length += 1
    return count


@kernel
def find_grams(texts: Buffers, table: Any, tables: GramTables, token_T: Any, match_M3: Any) -> Any:
    """All grams in N documents: rows (document, word, gram; int64) in order of the text, and their number, which may
    exceed the rows there is room for. ``token_T``: scratch of as many words as the longest document has bytes."""
    offset_N = texts.offset_N
    lead = tables.lead
    filter_B = tables.filter_B
    shift = np.uint64(64) - np.uint64(np.log2(filter_B.shape[0]))
    power = _ONE
    for _ in range(lead):
        power *= _BASE
    count = np.int64(0)
    for d in range(offset_N.shape[0] - 1):
        num_tokens = split_words(texts.data, (offset_N[d], offset_N[d + 1]), table, token_T)
        if num_tokens < lead:
            continue
        value = _run(token_T, 0, lead)
        behind = token_T[lead:num_tokens]
        for i in range(behind.shape[0] + 1):
            bits = _filter_bits(value)
            if (filter_B[np.int64(value >> shift)] & bits) == bits:
                count = _look(token_T, (np.int64(i), num_tokens, np.int64(d), count), value, tables, match_M3)
            if i < behind.shape[0]:
                value = value * _BASE + behind[i] - token_T[i] * power
    return count


@helper
def _next(data: Any, i: Any) -> tuple[Any, Any]:
    """The code point at ``i`` (uint32; valid UTF-8) and the index after it."""
    first = np.uint32(data[i])
    if first < np.uint32(0x80):
        return first, i + 1
    more = 1 + np.int64(first >= np.uint32(0xE0)) + np.int64(first >= np.uint32(0xF0))
    value = first & (np.uint32(0x3F) >> np.uint32(more))
    for j in range(more):
        value = (value << np.uint32(6)) | (np.uint32(data[i + 1 + j]) & np.uint32(0x3F))
    return value, i + 1 + more


@kernel
def bound_words(data: Any, span: Any, table: Any, bound_T2: Any) -> Any:
    """First byte and the byte behind (int64) of each word of ``data[span[0]:span[1]]``, with the marks on it; their
    number. The words are those of ``split_words``; this is slow and for documents that hold something."""
    i = np.int64(span[0])
    count = np.int64(0)
    open_kind = _SEPARATOR
    drops_marks = False
    while i < span[1]:
        at = i
        code_point, i = _next(data, i)
        entry = table[code_point] if code_point < np.uint32(table.shape[0]) else np.uint32(0)
        kind = (entry >> np.uint32(21)) & np.uint32(7)
        starts = kind == _SINGLE or (kind == _WORD and open_kind == _SINGLE)
        if (kind == _SEPARATOR or starts) and open_kind != _SEPARATOR:
            count += 1
            open_kind = _SEPARATOR
        if kind == _SEPARATOR or (kind == _IGNORED and open_kind == _SEPARATOR):
            continue
        if kind == _COMMON_MARK and open_kind == _SEPARATOR:
            continue
        if kind != _IGNORED and not (kind == _COMMON_MARK and drops_marks):
            if open_kind == _SEPARATOR:
                bound_T2[count, 0] = at
                open_kind = _WORD
                drops_marks = False
            if kind == _WORD or kind == _SINGLE:
                drops_marks = (entry & np.uint32(1 << 24)) != np.uint32(0)
                open_kind = kind
        bound_T2[count, 1] = i
    return count + np.int64(open_kind != _SEPARATOR)
