"""Compiled checks of JSON values and of UTF-8, for the scanner: every function reads bytes from an index and returns
where it stopped, or a negative reason.

They rely on the newline that ends the line: it is illegal inside any token, so no loop runs past it; ``data`` needs 64
readable bytes after its last newline.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..documents import RejectReason
from ..kernels.jit import helper, kernel
from ..kernels.vectors import (
    COMPRESSES,
    count_ones,
    count_trailing_zeros,
    load32,
    load64,
    mask_high,
    masks_copy,
    masks_special,
    masks_utf8,
    unescape_block,
)

__all__ = [
    "COLON",
    "COMMA",
    "MAX_DEPTH",
    "QUOTE",
    "decode_by_blocks",
    "decode_by_segments",
    "decode_string",
    "is_utf8",
    "skip_space",
    "skip_string",
    "skip_value",
]

MAX_DEPTH = 512
"""Deepest nesting of a record, its own object counted."""
QUOTE, COMMA, COLON = 0x22, 0x2C, 0x3A
OPEN_OBJECT, CLOSE_OBJECT = 0x7B, 0x7D
_OPEN_LIST, _CLOSE_LIST, _BACKSLASH, _MINUS = 0x5B, 0x5D, 0x5C, 0x2D
_SURROGATE = int(RejectReason.SURROGATE)
_SYNTAX = int(RejectReason.SYNTAX)
_DEPTH = int(RejectReason.DEPTH)
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


@helper
def skip_space(data: Any, i: Any) -> Any:
    """Index of the first byte from ``i`` on that is no JSON white space; a newline is none here."""
    while data[i] == 32 or data[i] == 9 or data[i] == 13:
        i += 1
    return i


@helper
def _hex4(data: Any, i: Any) -> Any:
    """Value of four hex digits, or -1."""
    a, b, c, d = _HEX[data[i]], _HEX[data[i + 1]], _HEX[data[i + 2]], _HEX[data[i + 3]]
    if (a | b | c | d) > 15:
        return np.int64(-1)
    return (np.int64(a) << 12) | (np.int64(b) << 8) | (np.int64(c) << 4) | np.int64(d)


@kernel
def _read_unicode_escape(data: Any, i: Any) -> tuple[Any, Any]:
    r"""``data[i:]`` is ``\u`` and what follows: (index after it, code point), pairs joined; or (-reason, 0)."""
    value = _hex4(data, i + 2)
    if value < 0:
        return np.int64(-_SYNTAX), np.int64(0)
    if value < 0xD800 or value > 0xDFFF:
        return i + 6, value
    if value >= 0xDC00 or data[i + 6] != _BACKSLASH or data[i + 7] != 0x75:
        return np.int64(-_SURROGATE), np.int64(0)
    low = _hex4(data, i + 8)
    if low < 0:
        return np.int64(-_SYNTAX), np.int64(0)
    if low < 0xDC00 or low > 0xDFFF:
        return np.int64(-_SURROGATE), np.int64(0)
    return i + 12, 0x10000 + ((value & 0x3FF) << 10) + (low & 0x3FF)


@helper
def _put_code_point(out: Any, o: Any, value: Any) -> Any:
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
def decode_by_segments(data: Any, i: Any, out: Any, o: Any) -> tuple[Any, Any]:
    """``decode_string`` for any processor: the mask of 64 bytes is made once, then each stretch between two escapes is
    copied; nothing of an escape is waited for by the next one but its place in ``out``."""
    while True:
        special = masks_copy(data, i, out, o)
        done = np.int64(0)  # bytes of the block that are decoded
        while special != _ZERO:
            at = count_trailing_zeros(special)
            o += at - done
            if data[i + at] == QUOTE:
                return i + at + 1, o
            if data[i + at] != _BACKSLASH:
                return np.int64(-_SYNTAX), np.int64(0)
            value = _ESCAPES[data[i + at + 1]]
            if value == 0:
                if data[i + at + 1] != 0x75:
                    return np.int64(-_SYNTAX), np.int64(0)
                i, code_point = _read_unicode_escape(data, i + at)
                if i < 0:
                    return i, np.int64(0)
                o = _put_code_point(out, o, code_point)
                done = np.int64(64)
                break
            out[o] = value
            o += 1
            done = at + 2
            special &= np.uint64(0xFFFFFFFFFFFFFFFC) << np.uint64(at)
            masks_copy(data, i + done, out, o)
        else:
            o += max(64 - done, 0)
            i += max(done, 64)


@kernel
def decode_by_blocks(data: Any, i: Any, out: Any, o: Any) -> tuple[Any, Any]:
    """``decode_string`` where ``COMPRESSES``: no branch for an escape of two characters."""
    carry = _ZERO
    while True:
        begins, events = unescape_block(data, (i, o), out, carry)
        if events == _ZERO:
            o += np.int64(count_ones(~begins))
            i += 64
            carry = begins >> np.uint64(63)
            continue
        at = count_trailing_zeros(events)
        o += np.int64(count_ones(~begins & ((events & (_ZERO - events)) - _ONE)))
        i += at
        if data[i] == QUOTE:
            return i + 1, o
        if data[i] != 0x75:
            return np.int64(-_SYNTAX), np.int64(0)
        i, code_point = _read_unicode_escape(data, i - 1)
        if i < 0:
            return i, np.int64(0)
        o = _put_code_point(out, o, code_point)
        carry = _ZERO


decode_string = decode_by_blocks if COMPRESSES else decode_by_segments
"""``i`` after the opening quote: decodes into ``out[o:]``, of which 64 bytes more than needed may be written; (index
after the closing quote, end in out) or (-reason, 0)."""


@kernel
def skip_string(data: Any, i: Any) -> tuple[Any, bool]:
    """``i`` after the opening quote: (index after the closing quote or -reason, whether it held an escape)."""
    escaped = False
    while True:
        special = masks_special(data, i)
        if special == _ZERO:
            i += 64
            continue
        i += count_trailing_zeros(special)
        if data[i] == QUOTE:
            return i + 1, escaped
        if data[i] != _BACKSLASH:
            return np.int64(-_SYNTAX), escaped
        escaped = True
        if _ESCAPES[data[i + 1]] != 0:
            i += 2
        elif data[i + 1] == 0x75:
            i, _ = _read_unicode_escape(data, i)
            if i < 0:
                return i, escaped
        else:
            return np.int64(-_SYNTAX), escaped


@helper
def _skip_digits(data: Any, i: Any) -> Any:
    """Index after one or more digits, or -reason."""
    if data[i] < 48 or data[i] > 57:
        return np.int64(-_SYNTAX)
    while data[i] >= 48 and data[i] <= 57:
        i += 1
    return i


@kernel
def _skip_number(data: Any, i: Any) -> Any:
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
def _skip_literal(data: Any, i: Any) -> Any:
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
    return np.int64(-_SYNTAX)


@kernel
def _skip_key(data: Any, i: Any) -> Any:
    """``i`` where a key must begin: index where its value must begin, or -reason."""
    if data[i] != QUOTE:
        return np.int64(-_SYNTAX)
    i, _ = skip_string(data, i + 1)
    if i < 0:
        return i
    i = skip_space(data, i)
    if data[i] != COLON:
        return np.int64(-_SYNTAX)
    return skip_space(data, i + 1)


@kernel
def skip_value(data: Any, i: Any, base: Any, stack: Any) -> Any:
    """Index after the value at ``i``, which lies at nesting ``base``; or -reason. ``stack[d]`` = 1 where level d is an
    object: no recursion, so depth costs no stack of the machine."""
    depth = base
    while True:
        byte = data[i]
        if byte == QUOTE:
            i, _ = skip_string(data, i + 1)
        elif byte == OPEN_OBJECT or byte == _OPEN_LIST:
            depth += 1
            if depth > MAX_DEPTH:
                return np.int64(-_DEPTH)
            stack[depth] = byte == OPEN_OBJECT
            i = skip_space(data, i + 1)
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
            i = skip_space(data, i)
            if data[i] == COMMA:
                i = skip_space(data, i + 1)
                if stack[depth] != 0:
                    i = _skip_key(data, i)
                    if i < 0:
                        return i
                more = True
            elif data[i] == (CLOSE_OBJECT if stack[depth] != 0 else _CLOSE_LIST):
                depth -= 1
                i += 1
            else:
                return np.int64(-_SYNTAX)
        if not more:
            return i


@kernel
def is_utf8(data: Any, start: Any, stop: Any) -> bool:
    """Strict UTF-8 (no overlong forms, surrogates, or code points above U+10FFFF), 64 bytes at a time."""
    second, third, fourth = _ZERO, _ZERO, _ZERO  # bits carried over: a continuation must come here
    after_e0, after_ed, after_f0, after_f4 = _ZERO, _ZERO, _ZERO, _ZERO
    for at in range(start, stop, 64):
        if (mask_high(data, at) | second | third | fourth) == _ZERO:
            after_e0, after_ed, after_f0, after_f4 = _ZERO, _ZERO, _ZERO, _ZERO
            continue
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
    return bool((second | third | fourth) == _ZERO)
