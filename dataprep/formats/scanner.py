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
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


class ScanInput(NamedTuple):
    """``data`` uint8 block of whole lines; ``key`` uint8 UTF-8 of the text field; ``keep_R`` uint8 by record number,
    empty = all: records with 0 are passed over unread; lines of more than ``line_limit_bytes`` are rejected."""

    data: NDArray[np.uint8]
    key: NDArray[np.uint8]
    keep_R: NDArray[np.uint8]
    line_limit_bytes: int


class ScanOutput(NamedTuple):
    """Where ``scan_lines`` writes: ``text`` uint8 (at least as long as the block plus 128), ``offset_N`` int64 with one
    entry more than documents, ``start_N`` and ``record_N`` int64 per document, ``rejects`` int64 rows (record, start,
    reason), ``state`` int64 by ``STATE``, ``scratch`` uint8 for nesting and keys (see ``scratch_size``)."""

    text: NDArray[np.uint8]
    offset_N: NDArray[np.int64]
    start_N: NDArray[np.int64]
    record_N: NDArray[np.int64]
    rejects: NDArray[np.int64]
    state: NDArray[np.int64]
    scratch: NDArray[np.uint8]


class STATE:
    """Indices of ``ScanOutput.state``: next record number (in and out); documents, rejects, blank lines and bytes
    consumed by this call."""

    RECORD, DOCUMENTS, REJECTS, BLANK, CONSUMED = range(5)
    LENGTH = 5


_RECORD, _DOCUMENTS, _REJECTS, _BLANK, _CONSUMED = range(5)
_KEY_AT = MAX_DEPTH + 2  # scratch: the nesting stack, then room to decode one escaped key


def scratch_size(key: bytes) -> int:
    """Bytes of ``ScanOutput.scratch`` for a text field."""
    return _KEY_AT + 6 * len(key) + 2 * PADDING_BYTES


@helper
def _is_key(data: Any, start: int, stop: int, key: Any) -> bool:
    if stop - start != key.shape[0]:
        return False
    for j in range(key.shape[0]):
        if data[start + j] != key[j]:
            return False
    return True


@kernel
def _read_key(source: ScanInput, i: int, scratch: Any) -> tuple[int, bool]:
    """A key of the record's own object at ``i``: (index where its value must begin or -reason, is it the text
    field)."""
    data, key = source.data, source.key
    if data[i] != QUOTE:
        return -_SYNTAX, False
    start = i + 1
    i, escaped = skip_string(data, start)
    if i < 0:
        return i, False
    stop = i - 1
    if not escaped:
        is_text = _is_key(data, start, stop, key)
    elif stop - start <= 6 * key.shape[0]:  # an escape takes six bytes at most for each byte of the key
        _, end = decode_string(data, start, scratch, _KEY_AT)
        is_text = _is_key(scratch, _KEY_AT, end, key)
    else:
        is_text = False
    i = skip_space(data, i)
    if data[i] != COLON:
        return -_SYNTAX, False
    return skip_space(data, i + 1), is_text


@helper
def _only_space(text: Any, start: int, stop: int) -> bool:
    for j in range(start, stop):
        if text[j] != 32 and (text[j] < 9 or text[j] > 13):
            return False
    return True


@kernel
def _parse_record(source: ScanInput, span: tuple[int, int], sink: ScanOutput, o: int) -> tuple[int, int]:
    """One line ``span``, its newline at ``span[1]``: (0, end of the text written at ``sink.text[o:]``) or (reason,
    o)."""
    data = source.data
    i = skip_space(data, span[0])
    if data[i] != OPEN_OBJECT:
        i = skip_value(data, i, 0, sink.scratch)
        if i < 0:
            return -i, o
        return (_NOT_OBJECT if skip_space(data, i) == span[1] else _SYNTAX), o
    end = o
    reason = _TEXT_MISSING
    i = skip_space(data, i + 1)
    more = data[i] != CLOSE_OBJECT
    while more:
        i, is_text = _read_key(source, i, sink.scratch)
        if i < 0:
            return -i, o
        if is_text and data[i] == QUOTE:
            i, end = decode_string(data, i + 1, sink.text, o)
            reason = 0
        else:
            i = skip_value(data, i, 1, sink.scratch)
            reason = _TEXT_TYPE if is_text else reason
        if i < 0:
            return -i, o
        i = skip_space(data, i)
        more = data[i] == COMMA
        if more:
            i = skip_space(data, i + 1)
    if data[i] != CLOSE_OBJECT or skip_space(data, i + 1) != span[1]:
        return _SYNTAX, o
    if reason == 0 and _only_space(sink.text, o, end):
        return _EMPTY, o
    return reason, end if reason == 0 else o


@helper
def _scan_line(source: ScanInput, span: tuple[int, int], high: bool, sink: ScanOutput) -> None:
    """Judge one line and write its document or reject."""
    state = sink.state
    record = state[_RECORD]
    state[_RECORD] = record + 1
    keep_R = source.keep_R
    if keep_R.shape[0] > 0 and (record >= keep_R.shape[0] or keep_R[record] == 0):
        return
    if skip_space(source.data, span[0]) == span[1]:
        state[_BLANK] += 1
        return
    count = state[_DOCUMENTS]
    begin = sink.offset_N[count]
    reason, end = _UTF8, begin
    if span[1] - span[0] > source.line_limit_bytes:
        reason = _TOO_LONG
    elif not high or is_utf8(source.data, span[0], span[1]):
        reason, end = _parse_record(source, span, sink, begin)
    if reason == 0:
        sink.start_N[count] = span[0]
        sink.record_N[count] = record
        sink.offset_N[count + 1] = end
        state[_DOCUMENTS] = count + 1
        return
    row = sink.rejects[state[_REJECTS]]
    row[0], row[1], row[2] = record, span[0], reason
    state[_REJECTS] += 1


@kernel
def scan_lines(source: ScanInput, first: int, size: int, sink: ScanOutput) -> None:
    """Scan ``source.data[first:size]``, whole lines, until done or ``sink`` is full; ``state[CONSUMED]`` says how far
    (an index of ``data``). Documents and rejects restart at 0; the record number goes on."""
    state = sink.state
    state[_DOCUMENTS] = 0
    state[_REJECTS] = 0
    state[_BLANK] = 0
    sink.offset_N[0] = 0
    start = first
    high = False
    for at in range(first, size, 64):
        newlines, highs = masks_line(source.data, at)
        if size - at < 64:
            newlines &= (_ONE << np.uint64(size - at)) - _ONE
        while newlines != _ZERO:
            bit = count_trailing_zeros(newlines)
            upto = newlines ^ (newlines - _ONE)  # the bits up to and with the lowest newline
            high = high or (highs & upto) != _ZERO
            highs &= ~upto
            newlines &= newlines - _ONE
            if state[_DOCUMENTS] == sink.record_N.shape[0] or state[_REJECTS] == sink.rejects.shape[0]:
                state[_CONSUMED] = start
                return
            _scan_line(source, (start, at + bit), high, sink)
            high = False
            start = at + bit + 1
        high = high or highs != _ZERO
    state[_CONSUMED] = start
