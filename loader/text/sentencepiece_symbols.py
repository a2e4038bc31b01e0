"""Symbols that a sentencepiece model's maker declared and wrote like control tokens, read from the serialised model.

The library matches them in text and cannot be asked which they are, so the model's protocol buffer is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["control_like_symbols"]

_SPACE = b"\xe2\x96\x81"  # U+2581, in which pieces write a space
_USER_DEFINED = 4


def control_like_symbols(model: bytes) -> list[bytes]:
    """User-defined pieces of a serialised model that look like control tokens, longest first.

    Protocol buffer wire format: field 1 of the model is a piece, with its text (field 1) and kind (field 3; 4 =
    user-defined).
    """
    symbols = []
    for number, value in _fields(model):
        if number != 1 or not isinstance(value, bytes):
            continue
        piece = dict(_fields(value))
        text = piece.get(1)
        if piece.get(3) == _USER_DEFINED and isinstance(text, bytes) and re.fullmatch(rb"<.+>|\[.+\]", text, re.DOTALL):
            symbols.append(text.replace(_SPACE, b" "))
    return sorted(symbols, key=lambda symbol: (-len(symbol), symbol))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protocol buffer message; it ends silently where the bytes make no sense."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            return
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, place
