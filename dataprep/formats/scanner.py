"""A strict JSON parser for JSONL, compiled: lines in, Arrow text out, no Python object per record.

Grammar: RFC 8259 over strict UTF-8. Ours beyond it: NaN, Infinity and -Infinity pass outside the text; a lone surrogate
escape anywhere rejects the record; nesting up to ``MAX_DEPTH``; of duplicate text keys the last wins. Values other than
the text are checked and never converted, so numbers of any size pass.

Every function reads ``data`` from an index and relies on the newline that ends the line: a newline is illegal inside any
token, so no loop runs past it. ``data`` needs 64 readable bytes after its last newline. A negative result is a reason.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..documents import RejectReason
from ..kernels.jit import helper, kernel
from ..kernels.vectors import (
    count_trailing_zeros,
    load32,
    load64,
    masks_copy,
    masks_line,
    masks_special,
    masks_utf8,
)

__all__ = ["MAX_DEPTH", "PADDING_BYTES", "STATE", "ScanInput", "ScanOutput", "scan_lines", "scratch_size"]

MAX_DEPTH = 512
PADDING_BYTES = 64
_UTF8 = int(RejectReason.UTF8)
_SURROGATE = int(RejectReason.SURROGATE)
_SYNTAX = int(RejectReason.SYNTAX)
_DEPTH = int(RejectReason.DEPTH)
_NOT_OBJECT = int(RejectReason.NOT_OBJECT)
_TEXT_MISSING = int(RejectReason.TEXT_MISSING)
_TEXT_TYPE = int(RejectReason.TEXT_TYPE)
_TOO_LONG = int(RejectReason.TOO_LONG)
_EMPTY = int(RejectReason.EMPTY)
_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _NEWLINE = 0x22, 0x5C, 0x2C, 0x3A, 0x2D, 0x0A
_OPEN_OBJECT, _OPEN_LIST, _CLOSE_OBJECT, _CLOSE_LIST = 0x7B, 0x5B, 0x7D, 0x5D
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


def _escape_table() -> NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for escape, value in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
        table[escape] = value
    return table


def _hex_table() -> NDArray[np.uint8]:
    table = np.full(256, 255, np.uint8)
    for value, digit in enumerate(b"0123456789abcdef"):
        table[digit] = value
        table[ord(chr(digit).upper())] = value
    return table


_ESCAPES = _escape_table()
_HEX = _hex_table()
_TRUE = np.uint32(int.from_bytes(b"true", "little"))
_ALSE = np.uint32(int.from_bytes(b"alse", "little"))
_NULL = np.uint32(int.from_bytes(b"null", "little"))
_INFINITY = np.uint64(int.from_bytes(b"Infinity", "little"))


class ScanInput(NamedTuple):
    """``data`` uint8 block of whole lines; ``key`` uint8 UTF-8 of the text field; ``keep_R`` uint8 by record number, empty =
    all: records with 0 are passed over unread; lines of more than ``line_limit_bytes`` are rejected."""

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
    """Indices of ``ScanOutput.state``: next record number (in and out); documents, rejects, blank lines and bytes consumed
    by this call."""

    RECORD, DOCUMENTS, REJECTS, BLANK, CONSUMED = range(5)
    LENGTH = 5


_RECORD, _DOCUMENTS, _REJECTS, _BLANK, _CONSUMED = range(5)
_KEY_AT = MAX_DEPTH + 2  # scratch: the nesting stack, then room to decode one escaped key


def scratch_size(key: bytes) -> int:
    """Bytes of ``ScanOutput.scratch`` for a text field."""
    return _KEY_AT + 6 * len(key) + 2 * PADDING_BYTES


@helper
def _skip_space(data: Any, i: int) -> int:
    """Index of the first byte from ``i`` on that is no JSON white space; a newline is none here."""
    while data[i] == 32 or data[i] == 9 or data[i] == 13:
        i += 1
    return i


@helper
def _hex4(data: Any, i: int) -> int:
    """Value of four hex digits, or -1."""
    a, b, c, d = _HEX[data[i]], _HEX[data[i + 1]], _HEX[data[i + 2]], _HEX[data[i + 3]]
    if (a | b | c | d) > 15:
        return -1
    return (np.int64(a) << 12) | (np.int64(b) << 8) | (np.int64(c) << 4) | np.int64(d)


@kernel
def _read_unicode_escape(data: Any, i: int) -> tuple[int, int]:
    r"""``data[i:]`` is ``\u`` and what follows: (index after it, code point), pairs joined; or (-reason, 0)."""
    value = _hex4(data, i + 2)
    if value < 0:
        return -_SYNTAX, 0
    if value < 0xD800 or value > 0xDFFF:
        return i + 6, value
    if value >= 0xDC00 or data[i + 6] != _BACKSLASH or data[i + 7] != 0x75:
        return -_SURROGATE, 0
    low = _hex4(data, i + 8)
    if low < 0:
        return -_SYNTAX, 0
    if low < 0xDC00 or low > 0xDFFF:
        return -_SURROGATE, 0
    return i + 12, 0x10000 + ((value & 0x3FF) << 10) + (low & 0x3FF)


@helper
def _put_code_point(out: Any, o: int, value: int) -> int:
    """Write ``value`` as UTF-8; returns the index after it."""
    if value < 0x80:
        out[o] = value
        return o + 1
    if value < 0x800:
        out[o] = 0xC0 | (value >> 6)
        out[o + 1] = 0x80 | (value & 63)
        return o + 2
    if value < 0x10000:
        out[o] = 0xE0 | (value >> 12)
        out[o + 1] = 0x80 | ((value >> 6) & 63)
        out[o + 2] = 0x80 | (value & 63)
        return o + 3
    out[o] = 0xF0 | (value >> 18)
    out[o + 1] = 0x80 | ((value >> 12) & 63)
    out[o + 2] = 0x80 | ((value >> 6) & 63)
    out[o + 3] = 0x80 | (value & 63)
    return o + 4


@kernel
def _decode_string(data: Any, i: int, out: Any, o: int) -> tuple[int, int]:
    """``i`` after the opening quote: decodes into ``out[o:]``; (index after the closing quote, end in out) or (-reason, 0)."""
    while True:
        special = masks_copy(data, i, out, o)
        if special == _ZERO:
            i += 64
            o += 64
            continue
        plain = count_trailing_zeros(special)
        i += plain
        o += plain
        if data[i] == _QUOTE:
            return i + 1, o
        if data[i] != _BACKSLASH:
            return -_SYNTAX, 0
        value = _ESCAPES[data[i + 1]]
        if value != 0:
            out[o] = value
            i += 2
            o += 1
        elif data[i + 1] == 0x75:
            i, code_point = _read_unicode_escape(data, i)
            if i < 0:
                return i, 0
            o = _put_code_point(out, o, code_point)
        else:
            return -_SYNTAX, 0


@kernel
def _skip_string(data: Any, i: int) -> tuple[int, bool]:
    """``i`` after the opening quote: (index after the closing quote or -reason, whether it held an escape)."""
    escaped = False
    while True:
        special = masks_special(data, i)
        if special == _ZERO:
            i += 64
            continue
        i += count_trailing_zeros(special)
        if data[i] == _QUOTE:
            return i + 1, escaped
        if data[i] != _BACKSLASH:
            return -_SYNTAX, escaped
        escaped = True
        if _ESCAPES[data[i + 1]] != 0:
            i += 2
        elif data[i + 1] == 0x75:
            i, _ = _read_unicode_escape(data, i)
            if i < 0:
                return i, escaped
        else:
            return -_SYNTAX, escaped


@helper
def _skip_digits(data: Any, i: int) -> int:
    """Index after one or more digits, or -reason."""
    if data[i] < 48 or data[i] > 57:
        return -_SYNTAX
    while data[i] >= 48 and data[i] <= 57:
        i += 1
    return i


@kernel
def _skip_number(data: Any, i: int) -> int:
    """Index after a number (or -Infinity) at ``i``, or -reason."""
    if data[i] == _MINUS:
        i += 1
        if load64(data, i) == _INFINITY:
            return i + 8
    if data[i] == 48:
        i += 1
    else:
        i = _skip_digits(data, i)
    if i > 0 and data[i] == 0x2E:
        i = _skip_digits(data, i + 1)
    if i > 0 and (data[i] == 0x65 or data[i] == 0x45):
        i += 1
        if data[i] == 0x2B or data[i] == _MINUS:
            i += 1
        i = _skip_digits(data, i)
    return i


@kernel
def _skip_literal(data: Any, i: int) -> int:
    """Index after true, false, null, NaN or Infinity at ``i``, or -reason."""
    word = load32(data, i)
    if word == _TRUE or word == _NULL:
        return i + 4
    if data[i] == 0x66 and load32(data, i + 1) == _ALSE:
        return i + 5
    if data[i] == 0x4E and data[i + 1] == 0x61 and data[i + 2] == 0x4E:
        return i + 3
    if load64(data, i) == _INFINITY:
        return i + 8
    return -_SYNTAX


@kernel
def _skip_key(data: Any, i: int) -> int:
    """``i`` where a key must begin: index where its value must begin, or -reason."""
    if data[i] != _QUOTE:
        return -_SYNTAX
    i, _ = _skip_string(data, i + 1)
    if i < 0:
        return i
    i = _skip_space(data, i)
    if data[i] != _COLON:
        return -_SYNTAX
    return _skip_space(data, i + 1)


@kernel
def _skip_value(data: Any, i: int, base: int, stack: Any) -> int:
    """Index after the value at ``i``, which lies at nesting ``base``; or -reason. ``stack[d]`` = 1 where level d is an
    object: no recursion, so depth costs no stack of the machine."""
    depth = base
    while True:
        byte = data[i]
        if byte == _QUOTE:
            i, _ = _skip_string(data, i + 1)
        elif byte == _OPEN_OBJECT or byte == _OPEN_LIST:
            depth += 1
            if depth > MAX_DEPTH:
                return -_DEPTH
            stack[depth] = byte == _OPEN_OBJECT
            i = _skip_space(data, i + 1)
            if data[i] == byte + 2:  # both closing brackets lie two after the opening ones
                depth -= 1
                i += 1
            else:
                if stack[depth] != 0:
                    i = _skip_key(data, i)
                    if i < 0:
                        return i
                continue
        elif byte == _MINUS or (byte >= 48 and byte <= 57):
            i = _skip_number(data, i)
        else:
            i = _skip_literal(data, i)
        if i < 0:
            return i
        more = False
        while depth > base and not more:
            i = _skip_space(data, i)
            if data[i] == _COMMA:
                i = _skip_space(data, i + 1)
                if stack[depth] != 0:
                    i = _skip_key(data, i)
                    if i < 0:
                        return i
                more = True
            elif data[i] == (_CLOSE_OBJECT if stack[depth] != 0 else _CLOSE_LIST):
                depth -= 1
                i += 1
            else:
                return -_SYNTAX
        if not more:
            return i


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
    """A key of the record's own object at ``i``: (index where its value must begin or -reason, is it the text field)."""
    data, key = source.data, source.key
    if data[i] != _QUOTE:
        return -_SYNTAX, False
    start = i + 1
    i, escaped = _skip_string(data, start)
    if i < 0:
        return i, False
    stop = i - 1
    if not escaped:
        is_text = _is_key(data, start, stop, key)
    elif stop - start <= 6 * key.shape[0]:  # an escape takes six bytes at most for each byte of the key
        _, end = _decode_string(data, start, scratch, _KEY_AT)
        is_text = _is_key(scratch, _KEY_AT, end, key)
    else:
        is_text = False
    i = _skip_space(data, i)
    if data[i] != _COLON:
        return -_SYNTAX, False
    return _skip_space(data, i + 1), is_text


@helper
def _only_space(text: Any, start: int, stop: int) -> bool:
    for j in range(start, stop):
        if text[j] != 32 and (text[j] < 9 or text[j] > 13):
            return False
    return True


@kernel
def _parse_record(source: ScanInput, span: tuple[int, int], sink: ScanOutput, o: int) -> tuple[int, int]:
    """One line ``span``, its newline at ``span[1]``: (0, end of the text written at ``sink.text[o:]``) or (reason, o)."""
    data = source.data
    i = _skip_space(data, span[0])
    if data[i] != _OPEN_OBJECT:
        i = _skip_value(data, i, 0, sink.scratch)
        if i < 0:
            return -i, o
        return (_NOT_OBJECT if _skip_space(data, i) == span[1] else _SYNTAX), o
    end = o
    reason = _TEXT_MISSING
    i = _skip_space(data, i + 1)
    more = data[i] != _CLOSE_OBJECT
    while more:
        i, is_text = _read_key(source, i, sink.scratch)
        if i < 0:
            return -i, o
        if is_text and data[i] == _QUOTE:
            i, end = _decode_string(data, i + 1, sink.text, o)
            reason = 0
        else:
            i = _skip_value(data, i, 1, sink.scratch)
            reason = _TEXT_TYPE if is_text else reason
        if i < 0:
            return -i, o
        i = _skip_space(data, i)
        more = data[i] == _COMMA
        if more:
            i = _skip_space(data, i + 1)
    if data[i] != _CLOSE_OBJECT or _skip_space(data, i + 1) != span[1]:
        return _SYNTAX, o
    if reason == 0 and _only_space(sink.text, o, end):
        return _EMPTY, o
    return reason, end if reason == 0 else o


@kernel
def _is_utf8(data: Any, start: int, stop: int) -> bool:
    """Strict UTF-8 (no overlong forms, surrogates, or code points above U+10FFFF), 64 bytes at a time."""
    second, third, fourth = _ZERO, _ZERO, _ZERO  # bits carried over: a continuation must come here
    after_e0, after_ed, after_f0, after_f4 = _ZERO, _ZERO, _ZERO, _ZERO
    for at in range(start, stop, 64):
        c, two, three, four, bad, e0, ed, f0, f4, below_a0, below_90 = masks_utf8(data, at)
        if stop - at < 64:
            inside = (_ONE << np.uint64(stop - at)) - _ONE
            c, two, three, four, bad = c & inside, two & inside, three & inside, four & inside, bad & inside
            e0, ed, f0, f4 = e0 & inside, ed & inside, f0 & inside, f4 & inside
        expected = (two << _ONE) | second | (three << np.uint64(2)) | third | (four << np.uint64(3)) | fourth
        wrong = (expected ^ c) | bad
        wrong |= ((e0 << _ONE) | after_e0) & below_a0
        wrong |= ((ed << _ONE) | after_ed) & c & ~below_a0
        wrong |= ((f0 << _ONE) | after_f0) & below_90
        wrong |= ((f4 << _ONE) | after_f4) & c & ~below_90
        if wrong != _ZERO:
            return False
        second, third, fourth = two >> np.uint64(63), three >> np.uint64(62), four >> np.uint64(61)
        after_e0, after_ed = e0 >> np.uint64(63), ed >> np.uint64(63)
        after_f0, after_f4 = f0 >> np.uint64(63), f4 >> np.uint64(63)
    return (second | third | fourth) == _ZERO


@helper
def _scan_line(source: ScanInput, span: tuple[int, int], high: bool, sink: ScanOutput) -> None:
    """Judge one line and write its document or reject."""
    state = sink.state
    record = state[_RECORD]
    state[_RECORD] = record + 1
    keep_R = source.keep_R
    if keep_R.shape[0] > 0 and (record >= keep_R.shape[0] or keep_R[record] == 0):
        return
    if _skip_space(source.data, span[0]) == span[1]:
        state[_BLANK] += 1
        return
    count = state[_DOCUMENTS]
    begin = sink.offset_N[count]
    reason, end = _UTF8, begin
    if span[1] - span[0] > source.line_limit_bytes:
        reason = _TOO_LONG
    elif not high or _is_utf8(source.data, span[0], span[1]):
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
