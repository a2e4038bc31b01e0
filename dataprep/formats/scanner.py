"""A strict JSON parser for JSONL, compiled: lines in, Arrow text out, no Python object per record.

Grammar: RFC 8259 over strict UTF-8. Ours beyond it: NaN, Infinity and -Infinity pass outside the text; a lone surrogate
escape anywhere rejects the record; nesting up to ``MAX_DEPTH``; of duplicate text keys the last wins. Values other than
the text are checked and never converted, so numbers of any size pass.

Every function reads ``data`` from an index and relies on the newline that ends the line: a newline is illegal inside
any token, so no loop runs past it. ``data`` needs 64 readable bytes after its last newline. A negative result is a
reason.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..documents import RejectReason
from ..kernels.jit import helper, kernel
from ..kernels.vectors import count_trailing_zeros, masks_line
from .json_values import (
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MAX_DEPTH,
    OPEN_OBJECT,
    QUOTE,
    decode_string,
    is_utf8,
    skip_space,
    skip_string,
    skip_value,
)

__all__ = ["MAX_DEPTH", "PADDING_BYTES", "STATE", "ScanInput", "ScanOutput", "scan_lines", "scratch_size"]

PADDING_BYTES = 64
"""Readable bytes needed after the last newline."""
_UTF8 = int(RejectReason.UTF8)
_SYNTAX = int(RejectReason.SYNTAX)
_NOT_OBJECT = int(RejectReason.NOT_OBJECT)
_TEXT_MISSING = int(RejectReason.TEXT_MISSING)
_TEXT_TYPE = int(RejectReason.TEXT_TYPE)
_TOO_LONG = int(RejectReason.TOO_LONG)
_EMPTY = int(RejectReason.EMPTY)
_AHEAD_BYTES = 1 << 16
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


class ScanInput(NamedTuple):
    """``data`` uint8 block of whole lines; ``key`` uint8 UTF-8 of the text field; ``extra_key`` the same of a field
    whose value is wanted as it stands, empty = none; ``keep_R`` uint8 by record number, empty = all: records with 0
    are passed over unread; lines of more than ``line_limit_bytes`` are rejected."""

    data: NDArray[np.uint8]
    key: NDArray[np.uint8]
    extra_key: NDArray[np.uint8]
    keep_R: NDArray[np.uint8]
    line_limit_bytes: int


class ScanOutput(NamedTuple):
    """Where ``scan_lines`` writes, for up to L lines a call: ``text`` uint8 (at least as long as the block plus 128),
    ``offset_N`` int64 (L + 1), ``start_N`` and ``record_N`` int64 (L) per document, ``reject_L3`` int64 rows
    (record, start, reason), ``stop_L`` int64 and ``high_L`` uint8: ends of the lines and whether they hold bytes
    above 127, ``state`` int64 by ``STATE``, ``scratch`` uint8 for nesting and keys (see ``scratch_size``);
    ``extra_N2`` int64 (L, 2), needed only with an extra key: where in ``data`` the extra value of each document begins
    and ends, (0, 0) without one."""

    text: NDArray[np.uint8]
    offset_N: NDArray[np.int64]
    start_N: NDArray[np.int64]
    record_N: NDArray[np.int64]
    reject_L3: NDArray[np.int64]
    stop_L: NDArray[np.int64]
    high_L: NDArray[np.uint8]
    state: NDArray[np.int64]
    scratch: NDArray[np.uint8]
    extra_N2: NDArray[np.int64]


class STATE:
    """Indices of ``ScanOutput.state``: next record number (in and out); documents, rejects, blank lines of this
    call, and how far it came (an index of ``data``)."""

    RECORD, DOCUMENTS, REJECTS, BLANK, CONSUMED = range(5)
    LENGTH = 5


_RECORD, _DOCUMENTS, _REJECTS, _BLANK, _CONSUMED = range(5)
_KEY_AT = MAX_DEPTH + 2  # scratch: the nesting stack, then room to decode one escaped key


def scratch_size(longest_key: int) -> int:
    """Bytes of ``ScanOutput.scratch`` for keys of at most ``longest_key`` bytes."""
    return _KEY_AT + 6 * longest_key + 2 * PADDING_BYTES


@helper
def _is_key(data: Any, start: Any, stop: Any, key: Any) -> bool:
    if stop - start != key.shape[0]:
        return False
    for j in range(key.shape[0]):
        if data[start + j] != key[j]:
            return False
    return True


@kernel
def _read_key(data: Any, keys: Any, i: Any, scratch: Any) -> tuple[Any, bool, bool]:
    """A key of the record's own object at ``i``: (index where its value begins or -reason, is it the text field, is
    it the extra field)."""
    key, extra_key = keys
    if data[i] != QUOTE:
        return np.int64(-_SYNTAX), False, False
    start = i + 1
    i, escaped = skip_string(data, start)
    if i < 0:
        return i, False, False
    stop = i - 1
    is_text = is_extra = False
    if not escaped:
        is_text = _is_key(data, start, stop, key)
        is_extra = extra_key.shape[0] > 0 and _is_key(data, start, stop, extra_key)
    elif stop - start <= 6 * max(key.shape[0], extra_key.shape[0]):  # an escape takes at most six bytes for each byte
        _, end = decode_string(data, start, scratch, np.int64(_KEY_AT))
        is_text = _is_key(scratch, np.int64(_KEY_AT), end, key)
        is_extra = extra_key.shape[0] > 0 and _is_key(scratch, np.int64(_KEY_AT), end, extra_key)
    i = skip_space(data, i)
    if data[i] != COLON:
        return np.int64(-_SYNTAX), False, False
    return skip_space(data, i + 1), is_text, is_extra


@helper
def _only_space(text: Any, start: Any, stop: Any) -> bool:
    for j in range(start, stop):
        if text[j] != 32 and (text[j] < 9 or text[j] > 13):
            return False
    return True


@kernel
def _parse_record(data: Any, keys: Any, span: Any, text: Any, o: Any, scratch: Any) -> tuple[Any, Any, Any]:
    """One line ``span`` with its newline at ``span[1]``: (0, end of its text written at ``text[o:]``, span of the extra
    value) or (reason, o, nothing)."""
    nothing = (np.int64(0), np.int64(0))
    extra = nothing
    i = skip_space(data, span[0])
    if data[i] != OPEN_OBJECT:
        i = skip_value(data, i, np.int64(0), scratch)
        if i < 0:
            return -i, o, nothing
        return np.int64(_NOT_OBJECT if skip_space(data, i) == span[1] else _SYNTAX), o, nothing
    end = o
    reason = np.int64(_TEXT_MISSING)
    i = skip_space(data, i + 1)
    more = data[i] != CLOSE_OBJECT
    while more:
        i, is_text, is_extra = _read_key(data, keys, i, scratch)
        if i < 0:
            return -i, o, nothing
        first = i
        if is_text and data[i] == QUOTE:
            i, end = decode_string(data, i + 1, text, o)
            reason = np.int64(0)
        else:
            i = skip_value(data, i, np.int64(1), scratch)
            reason = np.int64(_TEXT_TYPE) if is_text else reason
        if i < 0:
            return -i, o, nothing
        if is_extra:
            extra = (first, i)
        i = skip_space(data, i)
        more = data[i] == COMMA
        if more:
            i = skip_space(data, i + 1)
    if data[i] != CLOSE_OBJECT or skip_space(data, i + 1) != span[1]:
        return np.int64(_SYNTAX), o, nothing
    if reason == 0 and _only_space(text, o, end):
        return np.int64(_EMPTY), o, nothing
    return reason, end if reason == 0 else o, extra


@kernel
def _find_lines(data: Any, span: Any, found_L: Any, room: Any, high: Any) -> tuple[Any, Any]:
    """Up to ``room`` newlines in ``span`` of ``data``: their indices and whether their lines hold bytes above 127 into
    the two arrays of ``found_L``. ``high``: whether what lies in front of the span holds such bytes; returns (number
    of newlines, the same of what lies behind the last one)."""
    stop_L, high_L = found_L
    count = np.int64(0)
    for at in range(span[0], span[1], 64):
        newlines, highs = masks_line(data, at)
        if span[1] - at < 64:
            inside = (_ONE << np.uint64(span[1] - at)) - _ONE
            newlines, highs = newlines & inside, highs & inside
        while newlines != _ZERO:
            upto = newlines ^ (newlines - _ONE)  # the bits up to and with the lowest newline
            if count == room:
                return count, high
            stop_L[count] = at + count_trailing_zeros(newlines)
            high_L[count] = high or (highs & upto) != _ZERO
            count += 1
            high = False
            highs &= ~upto
            newlines &= newlines - _ONE
        high = high or highs != _ZERO
    return count, high


@kernel
def scan_lines(source: ScanInput, first: int, size: int, sink: ScanOutput) -> None:
    """Scan ``source.data[first:size]``, whole lines, until done or ``sink`` is full; ``state[CONSUMED]`` says how far.
    Documents and rejects restart at 0; the record number goes on.

    Lines are looked for a stretch ahead of the parser, so that it finds them in the nearest caches.
    """
    data, keys, keep_R, limit = source.data, (source.key, source.extra_key), source.keep_R, source.line_limit_bytes
    text, offset_N, start_N, record_N = sink.text, sink.offset_N, sink.start_N, sink.record_N
    stop_L, high_L, scratch = sink.stop_L, sink.high_L, sink.scratch
    record, documents, rejects, blank = sink.state[_RECORD], np.int64(0), np.int64(0), np.int64(0)
    at, start, end = np.int64(first), np.int64(first), np.int64(0)
    high = first < 0  # False; a literal would be a type of its own, for which _find_lines would be compiled twice
    line, found, room = np.int64(0), np.int64(0), np.int64(stop_L.shape[0])
    offset_N[0] = 0
    extra = (np.int64(0), np.int64(0))
    has_extra = source.extra_key.shape[0] > 0
    while line < found or (at < size and room > 0):
        if line == found:
            ahead = min(at + _AHEAD_BYTES, np.int64(size))
            found, high = _find_lines(data, (at, ahead), (stop_L, high_L), room, high)
            at, line, room = ahead, np.int64(0), room - found
            continue
        stop = stop_L[line]
        wanted = keep_R.shape[0] == 0 or (record < keep_R.shape[0] and keep_R[record] != 0)
        if wanted and skip_space(data, start) == stop:
            blank += 1
        elif wanted:
            reason = np.int64(_UTF8)
            if stop - start > limit:
                reason = np.int64(_TOO_LONG)
            elif high_L[line] == 0 or is_utf8(data, start, stop):
                reason, end, extra = _parse_record(data, keys, (start, stop), text, end, scratch)
            if reason == 0:
                start_N[documents], record_N[documents] = start, record
                if has_extra:
                    sink.extra_N2[documents, 0], sink.extra_N2[documents, 1] = extra
                documents += 1
                offset_N[documents] = end
            else:
                row = sink.reject_L3[rejects]
                row[0], row[1], row[2] = record, start, reason
                rejects += 1
        record += 1
        start = stop + 1
        line += 1
    state = sink.state
    state[_RECORD], state[_DOCUMENTS], state[_REJECTS], state[_BLANK] = record, documents, rejects, blank
    state[_CONSUMED] = start
