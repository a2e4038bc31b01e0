"""Anchors and n-grams of whole batches of documents, and the passes over sorted n-grams: the compiled part of
``dataprep.spans``.

An anchor is a hash of ``g = n // 2`` tokens that is the least of a window of ``n - g + 1`` of them, the last of equal
ones (winnowing: Schleimer, Wilkerson, Aiken, SIGMOD 2003). The window of an n-gram lies wholly inside it, so which hash
is least, and where, depends on the n-gram's own tokens alone: equal n-grams have equal anchors at equal places. The
last of equal ones also makes periodic text cheap: the least hash is always recent, and no window is searched again.

The n-grams of one anchor, all of which hold it, are a stretch of at most ``n - g + 1``, about 13 for n = 50. Where all
stretches with equal anchors are equal from their first to their last token, an n-gram of one occurs in the others at
the same place and nowhere else; so one row stands for all n-grams of such a stretch. Only at the ends of repeated
passages do stretches differ.

Shapes: N documents of a batch, T tokens, A anchors (of all documents), P stretches, G rows, C covered ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .documents import Buffers
from .jit import helper, kernel
from .located import Tokens, split_located
from .words import mix64, split_words

__all__ = [
    "MIXED",
    "OFFSET_BITS",
    "REPEATED",
    "Anchors",
    "GramRule",
    "Grams",
    "Stretches",
    "cover",
    "distinct_anchors",
    "find_anchors",
    "first_occurrences",
    "list_grams",
    "mark_repeated",
    "settle",
    "token_room",
]

OFFSET_BITS = 29
"""A key is (number of a document << 29) | word offset: a text has at most 2^30 bytes, so fewer than 2^29 words."""

REPEATED, MIXED = 1, 2
"""What is known of an anchor, as bits: it occurs more than once; with different stretches."""

_BASE = np.uint64(0x9E3779B97F4A7C15)
_OFFSET_BITS = np.uint64(OFFSET_BITS)
_OFFSET_MASK = np.uint64((1 << OFFSET_BITS) - 1)
_THIRTY_TWO = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)


class GramRule(NamedTuple):
    """``n`` tokens of an n-gram; ``salt`` (uint64) parts texts that are not to be compared."""

    n: int
    salt: np.uint64


class Anchors(NamedTuple):
    """Anchors of N documents one after another: ``hash_A`` uint64; ``stretch_A`` uint64, hash of all tokens of its
    n-grams; ``first_A`` uint32, the first n-gram of the document whose anchor it is (it stays so until the next
    one's); ``count_N`` int64, how many each document has."""

    hash_A: NDArray[np.uint64]
    stretch_A: NDArray[np.uint64]
    first_A: NDArray[np.uint32]
    count_N: NDArray[np.int64]


class Stretches(NamedTuple):
    """N-grams wanted: of document ``d`` those from ``first_P`` to ``stop_P`` (uint32) of the stretches
    ``start_N[d] .. start_N[d + 1]`` (int64). ``whole_P`` (bool): one row with ``hash_P`` (uint64) stands for all of
    them. ``number_N`` uint64 numbers the documents within their file."""

    first_P: NDArray[np.uint32]
    stop_P: NDArray[np.uint32]
    hash_P: NDArray[np.uint64]
    whole_P: NDArray[np.bool_]
    start_N: NDArray[np.int64]
    number_N: NDArray[np.uint64]


class Grams(NamedTuple):
    """Rows of n-grams: ``hash_G``, ``key_G`` (see ``OFFSET_BITS``) and ``place_G`` (first byte << 32 | end of the last
    word's bytes) uint64; ``length_G`` uint16, how many n-grams one after another the row stands for."""

    hash_G: NDArray[np.uint64]
    key_G: NDArray[np.uint64]
    place_G: NDArray[np.uint64]
    length_G: NDArray[np.uint16]


def token_room(longest_bytes: int) -> int:
    """Elements that the tokens of a text may need: two tokens of one byte each have another between them."""
    return longest_bytes // 2 + 72


@helper
def _power(n: Any) -> Any:
    value = np.uint64(1)
    for _ in range(n):
        value *= _BASE
    return value


@helper
def _stretch_hash(hashes: Any, first: Any, last: Any, g: Any) -> Any:
    """Hash of the tokens of the g-grams ``first .. last``, by as few of their hashes as hold all of these tokens."""
    value = np.uint64(last - first)
    place = first
    while place < last:
        value = value * _BASE + hashes[place]
        place += g
    return mix64(value * _BASE + hashes[last])


@kernel
def find_anchors(texts: Buffers, table: Any, rule: GramRule, scratch: Any, anchors: Anchors) -> Any:
    """Anchors of N documents into ``anchors`` (room for one a token); their number. ``scratch``: (2, T) uint64."""
    hash_A, first_A, count_N = anchors.hash_A, anchors.first_A, anchors.count_N
    tokens, hashes = scratch[0], scratch[1]
    g: Any = np.int64(rule.n // 2)
    window = rule.n - g + 1
    power = _power(g)
    total = np.int64(0)
    for d in range(count_N.shape[0]):
        before = total
        num_tokens = np.int64(split_words(texts.data, (texts.offset_N[d], texts.offset_N[d + 1]), table, tokens))
        if num_tokens >= rule.n:
            value = np.uint64(0)
            for i in range(g):
                value = value * _BASE + tokens[i]
            least = np.uint64(0)
            place = -window
            last = np.int64(-1)
            for i in range(num_tokens - g + 1):
                hashed = mix64(value ^ rule.salt)
                hashes[i] = hashed
                if hashed <= least or i == 0:
                    least, place = hashed, i
                elif place <= i - window:
                    least, place = hashed, i
                    for j in range(i - 1, i - window, -1):
                        if hashes[j] < least:
                            least, place = hashes[j], j
                if i >= window - 1 and place != last:
                    if total > before:
                        anchors.stretch_A[total - 1] = _stretch_hash(hashes, np.int64(first_A[total - 1]), i - 1, g)
                    hash_A[total] = least
                    first_A[total] = np.uint32(i - window + 1)
                    total += 1
                    last = place
                if i + g < num_tokens:
                    value = value * _BASE + tokens[i + g] - tokens[i] * power
            anchors.stretch_A[total - 1] = _stretch_hash(hashes, np.int64(first_A[total - 1]), num_tokens - g, g)
        count_N[d] = total - before
    return total


@kernel
def distinct_anchors(anchor_2A: Any, order_A: Any, kind_A: Any, distinct_2S: Any, kind_S: Any) -> Any:
    """Each distinct anchor, ascending, with one of its stretches into ``distinct_2S`` (2, S) uint64, and what is known
    of it into ``kind_S`` (uint8: ``REPEATED``, ``MIXED``); their number. ``order_A`` (uint32) sorts the columns of
    ``anchor_2A`` (2, A) and ``kind_A``, which say the same of parts; of length 0, ``kind_A`` says nothing yet."""
    count = np.int64(0)
    for i in range(order_A.shape[0]):
        a = order_A[i]
        hashed, stretch = anchor_2A[0, a], anchor_2A[1, a]
        kind = kind_A[a] if kind_A.shape[0] > 0 else np.uint8(0)
        if count > 0 and distinct_2S[0, count - 1] == hashed:
            kind |= kind_S[count - 1] | np.uint8(REPEATED)
            if distinct_2S[1, count - 1] != stretch:
                kind |= np.uint8(MIXED)
        else:
            distinct_2S[0, count] = hashed
            distinct_2S[1, count] = stretch
            count += 1
        kind_S[count - 1] = kind
    return count


@kernel
def mark_repeated(hash_A: Any, repeated: Any, start_B: Any, flag_A: Any) -> None:
    """For each of ``hash_A`` into ``flag_A`` (uint8): 0, or where it is among ``repeated[0]`` (uint64, sorted) what
    ``repeated[1]`` (uint8) says. ``start_B`` (int64) is scratch; its length less one, a power of two, is the number of
    parts by top bits: one look-up each."""
    repeated_S, value_S = repeated
    bits = 0
    while (1 << bits) < start_B.shape[0] - 1:
        bits += 1
    shift = np.uint64(64 - bits)
    place = 0
    for b in range(1 << bits):
        while place < repeated_S.shape[0] and np.int64(repeated_S[place] >> shift) < b:
            place += 1
        start_B[b] = place
    start_B[1 << bits] = repeated_S.shape[0]
    for a in range(hash_A.shape[0]):
        value = hash_A[a]
        part = np.int64(value >> shift)
        flag = np.uint8(0)
        for i in range(start_B[part], start_B[part + 1]):
            if repeated_S[i] == value:
                flag = value_S[i]
        flag_A[a] = flag


@helper
def _is_space(data: Any, start: Any, stop: Any) -> Any:
    """Whether nothing but white space (as ``str.isspace``) lies in the bytes."""
    i = start
    while i < stop:
        byte = np.int64(data[i])
        if byte < 0x80:
            if not (byte == 0x20 or 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x1F):
                return False
            i += 1
        elif byte == 0xC2:
            if data[i + 1] != 0x85 and data[i + 1] != 0xA0:
                return False
            i += 2
        elif 0xE1 <= byte <= 0xE3:
            code = ((byte & 0xF) << 12) | ((np.int64(data[i + 1]) & 0x3F) << 6) | (np.int64(data[i + 2]) & 0x3F)
            rare = code == 0x1680 or code == 0x202F or code == 0x205F or code == 0x3000
            if not (rare or 0x2000 <= code <= 0x200A or code == 0x2028 or code == 0x2029):
                return False
            i += 3
        else:
            return False
    return True


@helper
def _only_space_around(texts: Buffers, tokens: Tokens, num_tokens: Any, span: Any) -> Any:
    start, stop = span
    around = _is_space(texts.data, start, start + np.int64(tokens.start_T[0]))
    return around and _is_space(texts.data, start + np.int64(tokens.stop_T[num_tokens - 1]), stop)


@kernel
def list_grams(texts: Buffers, tables: Any, rule: GramRule, stretches: Stretches, state: Any, rows: Grams) -> Any:
    """Rows of the n-grams of ``stretches`` into ``rows`` until it is full; their number.

    ``state`` (int64): next document, stretch and n-gram; a later call goes on from there, and everything is done when
    the first reaches N. ``tables``: (the table of ``normalize``, scratch ``Tokens``, ``words_N`` int64: the number of
    words of each document, or -1 if something besides words and white space lies before the first or after the last).
    """
    table, tokens, words_N = tables
    power = _power(rule.n)
    count = np.int64(0)
    for d in range(state[0], words_N.shape[0]):
        span = (texts.offset_N[d], texts.offset_N[d + 1])
        num_tokens = np.int64(split_located(texts.data, span, table, tokens))
        words_N[d] = num_tokens
        if num_tokens > 0 and not _only_space_around(texts, tokens, num_tokens, span):
            words_N[d] = -1
        for p in range(max(state[1], stretches.start_N[d]), stretches.start_N[d + 1]):
            first = max(np.int64(stretches.first_P[p]), state[2])
            end = min(np.int64(stretches.stop_P[p]), num_tokens - rule.n + 1)
            state[2] = 0
            step = np.int64(1)
            value = np.uint64(0)
            if stretches.whole_P[p]:
                step = end - first
            elif first < end:
                for i in range(first, first + rule.n):
                    value = value * _BASE + tokens.hash_T[i]
            i = first
            while i < end:
                if count == rows.hash_G.shape[0]:
                    state[0], state[1], state[2] = d, p, i
                    return count
                whole = stretches.whole_P[p]
                rows.hash_G[count] = stretches.hash_P[p] if whole else mix64(value ^ rule.salt)
                rows.key_G[count] = (stretches.number_N[d] << _OFFSET_BITS) | np.uint64(i)
                last_byte = np.uint64(tokens.stop_T[i + step + rule.n - 2])
                rows.place_G[count] = (np.uint64(tokens.start_T[i]) << _THIRTY_TWO) | last_byte
                rows.length_G[count] = np.uint16(step)
                count += 1
                i += step
                if i < end:
                    value = value * _BASE + tokens.hash_T[i + rule.n - 1] - tokens.hash_T[i - 1] * power
    state[0], state[1] = words_N.shape[0], 0
    return count


@helper
def _ranked(key: Any, rank_D: Any) -> Any:
    """The key with the document's priority number in place of its number within the file."""
    return (np.uint64(rank_D[np.int64(key >> _OFFSET_BITS)]) << _OFFSET_BITS) | (key & _OFFSET_MASK)


@kernel
def first_occurrences(hash_G: Any, key_G: Any, rank_D: Any, firsts: Any) -> Any:
    """Each distinct hash of rows sorted by hash and its least key by priority (int64 ``rank_D`` by document of the
    file; of length 0: keys hold priorities already) into ``firsts`` (2, U) uint64; their number. ``firsts`` may be
    the very rows."""
    count = np.int64(0)
    for i in range(hash_G.shape[0]):
        hashed = hash_G[i]
        key = _ranked(key_G[i], rank_D) if rank_D.shape[0] > 0 else key_G[i]
        if count > 0 and firsts[0, count - 1] == hashed:
            firsts[1, count - 1] = min(firsts[1, count - 1], key)
        else:
            firsts[0, count] = hashed
            firsts[1, count] = key
            count += 1
    return count


@kernel
def settle(hash_G: Any, key_G: Any, rank_D: Any, firsts: Any, witness_G: Any) -> None:
    """Priority number of the document with the first occurrence of each row's n-gram into ``witness_G`` (int64), -1
    for the first occurrence itself. ``firsts`` (2, U): hashes, sorted, a superset of the rows', and least keys."""
    place = np.int64(0)
    for i in range(hash_G.shape[0]):
        while firsts[0, place] < hash_G[i]:
            place += 1
        first = firsts[1, place]
        witness_G[i] = -1
        if first != _ranked(key_G[i], rank_D):
            witness_G[i] = np.int64(first >> _OFFSET_BITS)


@kernel
def cover(rows: Any, witness_G: Any, scratch: Any, n: int, piece_6C: Any) -> Any:
    """Pieces of text that the n-grams with a witness cover into ``piece_6C`` (int64); their number.

    ``rows``: (``key_G``, ``order_G`` uint32, ``place_G``, ``length_G``): row ``i`` was the ``order_G[i]``-th to be
    listed; places and lengths are in the order of listing, by document and offset. ``scratch``: (uint64, int64) of G.
    A piece is (document of the file, first word, end of words, first byte, end of bytes, witness): covered n-grams of
    one witness one after another whose words overlap or touch. Where the next piece touches with its words, its bytes
    begin where these end, so that what lies between goes too.
    """
    key_G, order_G, place_G, length_G = rows
    key_L, witness_L = scratch
    for i in range(key_G.shape[0]):
        key_L[order_G[i]] = key_G[i]
        witness_L[order_G[i]] = witness_G[i]
    count = np.int64(0)
    for i in range(key_G.shape[0]):
        witness = witness_L[i]
        if witness < 0:
            continue
        document = np.int64(key_L[i] >> _OFFSET_BITS)
        word = np.int64(key_L[i] & _OFFSET_MASK)
        first_byte = np.int64(place_G[i] >> _THIRTY_TWO)
        touches = count > 0 and piece_6C[0, count - 1] == document and word <= piece_6C[2, count - 1]
        if not (touches and piece_6C[5, count - 1] == witness):
            if touches:
                first_byte = min(first_byte, piece_6C[4, count - 1])
            piece_6C[0, count] = document
            piece_6C[1, count] = word
            piece_6C[3, count] = first_byte
            piece_6C[5, count] = witness
            count += 1
        piece_6C[2, count - 1] = word + n - 1 + np.int64(length_G[i])
        piece_6C[4, count - 1] = np.int64(place_G[i] & _LOW_32)
    return count
