"""What a serialised sentencepiece model says that the library cannot be asked: symbols that its maker declared and
wrote like control tokens (the library matches them in text), and whether it is a BPE that leaves text as it is.

Protocol buffer wire format (``sentencepiece_model.proto``): field 1 of the model is a piece, with its text (field 1),
score (field 2) and kind (field 3); field 2 is about the training, field 3 about normalisation.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Piece", "control_like_symbols", "plain_bpe_pieces"]

_SPACE = b"\xe2\x96\x81"  # U+2581, in which pieces write a space
_MARK = _SPACE.decode()
_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5
_BPE = 2


class Piece(NamedTuple):
    """A piece of a model: its text as written there, its score, its kind (1 = normal)."""

    text: str
    score: float
    kind: int


def plain_bpe_pieces(model: bytes) -> list[Piece]:
    """The pieces of a BPE model that merges by score alone, in text that nothing has changed but for a space in front.

    Raises:
        ValueError: it does something else as well, or two scores are the same.
    """
    fields = list(_fields(model))
    training, rules = (dict(_last(fields, number)) for number in (2, 3))
    pieces = [_piece(value) for number, value in fields if number == 1 and isinstance(value, bytes)]
    if training.get(3, 1) != _BPE or training.get(24, 0):
        raise ValueError("not a BPE with spaces in front of words")
    if rules.get(2) or rules.get(4, 1) or not rules.get(5, 1):
        raise ValueError("it changes text")
    declared = set(control_like_symbols(model))
    for piece in pieces:
        named = piece.kind == _USER_DEFINED and piece.text.encode().replace(_SPACE, b" ") not in declared
        if named or piece.kind == _UNUSED:
            raise ValueError(f"the piece {piece.text!r} is no ordinary one")
    _require_order([piece for piece in pieces if piece.kind == _NORMAL and len(piece.text) > 1])
    return pieces


def _require_order(pieces: Sequence[Piece]) -> None:
    """Of two merges of the same score the left one comes first, which no order of pieces can say. Models of Llama's and
    Mistral's kind give one lowest score to all runs of spaces, merged when all else is; what comes of those, whatever
    their order, hostile texts tell. ``pieces``: the normal ones of several characters."""
    counts = Counter(piece.score for piece in pieces)
    tied = [piece for piece in pieces if counts[piece.score] > 1]
    if not tied:
        return
    runs = [piece for piece in pieces if _MARK * 2 in piece.text]
    lowest = {piece.score for piece in tied} == {min(counts)}
    if not lowest or len(runs) < len(tied) or any(set(piece.text) != {_MARK} for piece in [*runs, *tied]):
        raise ValueError("two pieces have the same score")


def _last(fields: list[tuple[int, int | bytes]], number: int) -> Iterator[tuple[int, int | bytes]]:
    found = [value for n, value in fields if n == number and isinstance(value, bytes)]
    return _fields(found[-1] if found else b"")


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text, score, kind = fields.get(1), fields.get(2), fields.get(3, _NORMAL)
    number = struct.unpack("<f", score)[0] if isinstance(score, bytes) and len(score) == 4 else 0.0
    return Piece(text.decode() if isinstance(text, bytes) else "", number, kind if isinstance(kind, int) else _NORMAL)


def control_like_symbols(model: bytes) -> list[bytes]:
    """User-defined pieces of a serialised model that look like control tokens, longest first."""
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
