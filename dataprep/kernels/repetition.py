"""Repetition inside a document: shares of repeated lines and paragraphs, of the most frequent n-gram and of repeated
n-grams (Rae et al. 2021, "Scaling language models", table A1), and periodic runs.

An n-gram can only occur twice if the (n-1)-gram at its start does, so one pass over all tokens for n = 2 leaves the
positions whose 2-gram occurs again, and each further n looks at what is left of them: on prose that is little, and
the whole costs about two passes instead of one per n. Any text costs at most one pass per n: the time is linear.

A periodic run of ``repeats`` periods of ``p`` holds an index divisible by ``(repeats - 1) * p`` at which an element
equals the one ``p`` before it: only these are looked at, and a run is followed from there.

Shapes: N documents, T tokens, L lines or paragraphs, P positions that are left, F shares of a document.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .jit import helper, kernel
from .located import Tokens, split_located
from .vectors import count_trailing_zeros, load64, masks_line
from .words import mix64

__all__ = ["FIRST_GRAM_SHARE", "count_words", "gram_length", "periodic_runs", "repetition_shares"]

FIRST_GRAM_SHARE = 4
"""Shares of a document: repeated paragraphs, their bytes, repeated lines, their bytes; then, for n = 0, 1, ..., the
most frequent n-gram (``FIRST_GRAM_SHARE + 2 n``) and all repeated n-grams (the column after it)."""

_BASE = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_SPARE = 64


class _Scratch(NamedTuple):
    """Memory for the longest document: a hash table (``key``, ``first``: the position that a key came from) and, by
    position, the first one with the same n-gram and (at firsts) how many have it."""

    key: Any
    first: Any
    group_T: Any
    count_T: Any
    place_P: Any


@helper
def _longest(offset_N: Any) -> int:
    longest = 0
    for d in range(offset_N.shape[0] - 1):
        longest = max(longest, offset_N[d + 1] - offset_N[d])
    return longest


@helper
def _room_for_tokens(size_bytes: int) -> Any:
    room = size_bytes // 2 + _SPARE
    return Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))


@helper
def gram_length(n: int, in_singles: Any) -> int:
    """Tokens of what counts as an n-gram: n words, or 1.6 n singles (a word of Chinese has 1.6 characters)."""
    return (8 * n + 2) // 5 if in_singles else n


@helper
def _hash_bytes(data: Any, start: int, stop: int) -> Any:
    value = np.uint64(stop - start) * _BASE
    while stop - start >= 8:
        value = (value ^ load64(data, start)) * _BASE
        value ^= value >> np.uint64(29)
        start += 8
    if stop > start:
        value = (value ^ (load64(data, start) & (_ALL >> np.uint64(64 - 8 * (stop - start))))) * _BASE
    return mix64(value) | _ONE


@helper
def _clear(key: Any, count: int) -> tuple[Any, Any]:
    """Make the table ready for ``count`` keys: (mask of slots, shift from hash to slot)."""
    bits = 4
    while (1 << bits) < 2 * count:
        bits += 1
    for slot in range(1 << bits):
        key[slot] = _ZERO
    return (1 << bits) - 1, np.uint64(64 - bits)


@helper
def _is_space(byte: Any) -> Any:
    return byte == 32 or (9 <= byte <= 13) or (28 <= byte <= 31)


@kernel
def _split_parts(data: Any, span: Any, min_run: int, parts: Any) -> Any:
    """Parts of ``data[span[0]:span[1]]`` between runs of at least ``min_run`` newlines, empty ones included, into
    ``parts`` (starts and stops from ``span[0]``, int32); their number."""
    block, stop, origin = np.int64(span[0]), np.int64(span[1]), np.int64(span[0])
    count = np.int64(0)
    parts[0][0] = 0
    run_start, run_stop = origin, origin - 1  # no run yet
    while block < stop:
        newlines, _ = masks_line(data, block)
        if stop - block < 64:
            newlines &= (_ONE << np.uint64(stop - block)) - _ONE
        while newlines != _ZERO:
            at = block + count_trailing_zeros(newlines)
            newlines &= newlines - _ONE
            if at != run_stop:
                if run_stop - run_start >= min_run:
                    parts[1][count] = run_start - origin
                    count += 1
                    parts[0][count] = run_stop - origin
                run_start = at
            run_stop = at + 1
        block += 64
    if run_stop - run_start >= min_run:
        parts[1][count] = run_start - origin
        count += 1
        parts[0][count] = run_stop - origin
    parts[1][count] = stop - origin
    return count + 1


@kernel
def _repeated_parts(data: Any, span: Any, min_run: int, work: Any) -> tuple[Any, Any, Any]:
    """(number of parts, how many equal an earlier one, bytes of these); ``work``: scratch and tokens."""
    scratch, tokens = work
    count = _split_parts(data, span, min_run, (tokens.start_T, tokens.stop_T))
    mask, shift = _clear(scratch.key, count)
    repeats, repeated_bytes = np.int64(0), np.int64(0)
    for part in range(count):
        start, stop = span[0] + np.int64(tokens.start_T[part]), span[0] + np.int64(tokens.stop_T[part])
        value = _hash_bytes(data, start, stop)
        slot = np.int64(value >> shift)
        while scratch.key[slot] != _ZERO and scratch.key[slot] != value:
            slot = (slot + 1) & mask
        if scratch.key[slot] == value:
            repeats += 1
            repeated_bytes += stop - start
        scratch.key[slot] = value
    return count, repeats, repeated_bytes


@kernel
def _group(tokens: Any, scratch: Any, num_places: int, n: int) -> tuple[Any, Any]:
    """Group the n-grams at the first ``num_places`` places, all of which had an equal (n-1)-gram elsewhere (n = 2: all
    positions): (occurrences of the most frequent one, where it occurs first), the earliest of equally frequent ones."""
    mask, shift = _clear(scratch.key, num_places)
    best, best_place = np.int64(0), np.int64(0)
    for z in range(num_places):
        place = np.int64(scratch.place_P[z])
        left = tokens.hash_T[place] if n == 2 else np.uint64(scratch.group_T[place]) * _BASE + np.uint64(n)
        value = mix64(left * _BASE + tokens.hash_T[place + n - 1]) | _ONE
        slot = np.int64(value >> shift)
        while scratch.key[slot] != _ZERO and scratch.key[slot] != value:
            slot = (slot + 1) & mask
        if scratch.key[slot] == _ZERO:
            scratch.key[slot] = value
            scratch.first[slot] = place
            first, occurrences = place, np.int64(1)
        else:
            first = np.int64(scratch.first[slot])
            occurrences = np.int64(scratch.count_T[first]) + 1
        scratch.group_T[place] = first
        scratch.count_T[first] = occurrences
        if occurrences > best or (occurrences == best and first < best_place):
            best, best_place = occurrences, first
    return best, best_place


@helper
def _keep_frequent(scratch: Any, num_places: int) -> Any:
    """Drop the places whose n-gram occurs once; how many are left."""
    left = np.int64(0)
    for z in range(num_places):
        place = scratch.place_P[z]
        scratch.place_P[left] = place
        left += np.int64(scratch.count_T[scratch.group_T[place]] >= 2)
    return left


@helper
def _within(scratch: Any, num_places: int, last_place: int) -> int:
    """How many of the ascending places are at most ``last_place``."""
    while num_places > 0 and scratch.place_P[num_places - 1] > last_place:
        num_places -= 1
    return num_places


@helper
def _gram_bytes(tokens: Any, place: Any, n: int) -> Any:
    """Bytes of the n words at ``place``, without what lies between them."""
    size = np.int64(0)
    for j in range(place, place + n):
        size += np.int64(tokens.stop_T[j]) - np.int64(tokens.start_T[j])
    return size


@kernel
def _repeated_grams(tokens: Any, scratch: Any, num_places: int, n: int) -> Any:
    """Bytes of the n-grams that occurred before, from left to right without overlap; a repeated n-gram is passed over
    whole, and what begins inside of it is not remembered. Uses up ``count_T``."""
    size = np.int64(0)
    following = np.int64(0)
    for z in range(num_places):
        place = np.int64(scratch.place_P[z])
        if place >= following:
            first = scratch.group_T[place]
            if scratch.count_T[first] < 0:
                size += _gram_bytes(tokens, place, n)
                following = place + n
            scratch.count_T[first] = -1
    return size


@kernel
def _gram_shares(tokens: Any, sizes: Any, scratch: Any, share_F: Any, limit_F: Any) -> Any:
    """Fill the shares of n-grams until one is over its limit: its column, or -1. ``sizes``: tokens and bytes of the
    text."""
    num_tokens, size = sizes
    singles = np.int64(0)
    for place in range(num_tokens):
        singles += np.int64(tokens.hash_T[place] & _ONE)
        scratch.place_P[place] = place
    in_singles = 2 * singles > num_tokens
    num_places, done = num_tokens, 1
    for n in range(2, (limit_F.shape[0] - FIRST_GRAM_SHARE) // 2):
        top, every = FIRST_GRAM_SHARE + 2 * n, FIRST_GRAM_SHARE + 2 * n + 1
        length = gram_length(n, in_singles)
        if length > num_tokens:
            return -1
        best, best_place = np.int64(0), np.int64(0)
        while done < length:
            done += 1
            num_places = _within(scratch, num_places, num_tokens - done)
            best, best_place = _group(tokens, scratch, num_places, done)
            num_places = _keep_frequent(scratch, num_places)
        if best < 2:
            best, best_place = np.int64(1), np.int64(0)
        if limit_F[top] < np.inf:
            share_F[top] = best * (_gram_bytes(tokens, best_place, length) + length - 1) / size
            if share_F[top] > limit_F[top]:
                return top
        if limit_F[every] < np.inf:
            share_F[every] = _repeated_grams(tokens, scratch, num_places, length) / size
            if share_F[every] > limit_F[every]:
                return every
    return -1


@kernel
def _part_shares(data: Any, span: Any, work: Any, share_F: Any, limit_F: Any) -> Any:
    """Fill the shares of paragraphs and lines until one is over its limit: its column, or -1."""
    start, stop = np.int64(span[0]), np.int64(span[1])
    size = max(stop - start, 1)
    while start < stop and _is_space(data[start]):
        start += 1
    while start < stop and _is_space(data[stop - 1]):
        stop -= 1
    for column in (0, 2):
        if limit_F[column] < np.inf or limit_F[column + 1] < np.inf:
            inside = (start, stop) if column == 0 else (np.int64(span[0]), np.int64(span[1]))
            count, repeats, repeated_bytes = _repeated_parts(data, inside, 2 - column // 2, work)
            share_F[column] = repeats / count
            if share_F[column] > limit_F[column]:
                return column
            share_F[column + 1] = repeated_bytes / size
            if share_F[column + 1] > limit_F[column + 1]:
                return column + 1
    return -1


@kernel
def repetition_shares(texts: Any, table: Any, limit_F: Any, share_NF: Any, column_N: Any) -> None:
    """Shares (float64) of N documents and, for each, the first column in which the share is over ``limit_F`` (int64; -1
    = none). What comes after that column, or is not asked for (limit inf), or has no n-gram, is not written.

    A document's n-grams are looked at by ascending n. Shares are of its bytes; of its parts for columns 0 and 2.
    """
    longest = _longest(texts.offset_N)
    tokens = _room_for_tokens(longest)
    room = longest // 2 + _SPARE
    slots = 16
    while slots < 2 * room:
        slots *= 2
    scratch = _Scratch(
        np.empty(slots, np.uint64),
        np.empty(slots, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )
    for d in range(column_N.shape[0]):
        span = (texts.offset_N[d], texts.offset_N[d + 1])
        column = _part_shares(texts.data, span, (scratch, tokens), share_NF[d], limit_F)
        if column < 0:
            sizes = (split_located(texts.data, span, table, tokens), max(span[1] - span[0], 1))
            column = _gram_shares(tokens, sizes, scratch, share_NF[d], limit_F)
        column_N[d] = column


@kernel
def count_words(texts: Any, table: Any, count_N: Any) -> None:
    """Tokens of each of N documents (int64)."""
    tokens = _room_for_tokens(_longest(texts.offset_N))
    for d in range(count_N.shape[0]):
        count_N[d] = split_located(texts.data, (texts.offset_N[d], texts.offset_N[d + 1]), table, tokens)


@kernel
def _runs(element: Any, span: Any, rule: Any, place: Any) -> tuple[Any, Any]:
    """Periodic runs of ``element[span[0]:span[1]]`` at lag ``rule[0]`` with at least ``rule[1]`` periods: (bytes of
    all, bytes of the longest). ``place``: start and stop bytes of elements, empty where elements are bytes."""
    base, count = np.int64(span[0]), np.int64(span[1] - span[0])
    lag, reach = rule[0], (rule[1] - 1) * rule[0]
    total, longest, covered = np.int64(0), np.int64(0), np.int64(0)
    lowest = lag  # no run begins below: what lies there is settled
    at = reach
    while at < count:
        if element[base + at] != element[base + at - lag]:
            at += reach
            continue
        low, high = at, at + 1
        while low > lowest and element[base + low - 1] == element[base + low - 1 - lag]:
            low -= 1
        while high < count and element[base + high] == element[base + high - lag]:
            high += 1
        if high - low >= reach:
            first, last = low - lag, high - 1
            start = np.int64(place[0][first]) if place[0].shape[0] > 0 else first
            stop = np.int64(place[1][last]) if place[0].shape[0] > 0 else last + 1
            longest = max(longest, stop - start)
            total += stop - max(start, covered)
            covered = stop
        lowest = high
        at = (high // reach + 1) * reach
    return total, longest


@kernel
def periodic_runs(texts: Any, table: Any, rule: Any, run_N4: Any) -> None:
    """What repeats periodically in N documents, by ``rule`` = (largest period, least number of periods): bytes (int64)
    of periodic words at the lag that covers most, of the longest run of words, and both again for bytes."""
    tokens = _room_for_tokens(_longest(texts.offset_N))
    nowhere = np.empty(0, np.int32)
    for d in range(run_N4.shape[0]):
        span = (texts.offset_N[d], texts.offset_N[d + 1])
        num_tokens = split_located(texts.data, span, table, tokens)
        for lag in range(1, rule[0] + 1):
            places = (tokens.start_T, tokens.stop_T)
            total, longest = _runs(tokens.hash_T, (0, num_tokens), (lag, rule[1]), places)
            run_N4[d, 0] = max(run_N4[d, 0], total)
            run_N4[d, 1] = max(run_N4[d, 1], longest)
            total, longest = _runs(texts.data, span, (lag, rule[1]), (nowhere, nowhere))
            run_N4[d, 2] = max(run_N4[d, 2], total)
            run_N4[d, 3] = max(run_N4[d, 3], longest)
