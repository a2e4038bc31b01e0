"""Text rules for comparing documents: what is a word, and when two words are the same. They never touch the text
itself.

One table entry (uint32) per code point::

    bits 0-20   the code point it counts as (folded), bits 21-23 its class, bit 24 set where combining marks are dropped
    bits 25-31  index into ``TAIL_MARKS``: the mark that a composed letter of another script is followed by

* Words are letters, numbers and ``_``; everything else separates. Numbers are kept; digits of all scripts count as
  ASCII.
* Case is folded by the simple mapping; compatibility forms (full width, ligature-free) by single-character NFKC.
* Combining marks are dropped after Latin, Greek and Cyrillic letters and kept everywhere else, so that Thai or Indic
  vowel signs and Arabic or Hebrew points still distinguish words; composed and decomposed forms compare equal either
  way.
* An ideograph or a kana is a token of its own; so is a base of Thai, Lao, Khmer and Myanmar with its marks.
* Format characters (soft hyphen, joiners, variation selectors) are passed over; U+200B separates.

The table is data of this package, made from one Unicode version, so that no interpreter update changes a result; both
versions are stamped where they shaped something. ``make_table`` is how it was made, and a test makes it again.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COMMON_MARK",
    "IGNORED",
    "RULES_VERSION",
    "SCRIPT_MARK",
    "SEPARATOR",
    "SINGLE",
    "SINGLE_N",
    "TABLE_SIZE",
    "TAIL_MARKS",
    "UNICODE_VERSION",
    "WORD",
    "WORD_N",
    "load_table",
    "make_table",
]

RULES_VERSION = 1
UNICODE_VERSION = "14.0.0"
WORD_N = 5
"""Tokens of a shingle that begins with a word."""
SINGLE_N = 8
"""Tokens of a shingle that begins with an ideograph, a kana or a base of an unspaced script."""

SEPARATOR, WORD, SINGLE, COMMON_MARK, SCRIPT_MARK, IGNORED = range(6)
TABLE_SIZE = 0x32400
"""Code points from here on separate."""
TAIL_MARKS = (
    0, 0x05B4, 0x05B7, 0x05B8, 0x05B9, 0x05BC, 0x05BF, 0x05C1, 0x05C2, 0x0653, 0x0654, 0x0655, 0x093C, 0x09BC, 0x09BE,
    0x09D7, 0x0A3C, 0x0B3C, 0x0B3E, 0x0B56, 0x0B57, 0x0BBE, 0x0BD7, 0x0C56, 0x0CC2, 0x0CD5, 0x0CD6, 0x0D3E, 0x0D57,
    0x0DCA, 0x0DCF, 0x0DDF, 0x0FB5, 0x0FB7, 0x102E, 0x1B35, 0x3099, 0x309A, 0x110BA, 0x11127, 0x1133E, 0x11357, 0x114B0,
    0x114BA, 0x114BD, 0x115AF, 0x11930, 0x0301, 0x0F71, 0x0F72, 0x0F74, 0x0F80,
)  # fmt: skip
"""Second halves of canonical decompositions outside Latin, Greek and Cyrillic; index 0 = none."""

_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x19E0, 0x19FF), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F))
_COMMON_MARKS = (
    (0x0300, 0x036F), (0x0483, 0x0489), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0x2DE0, 0x2DFF),
    (0xA66F, 0xA672), (0xA674, 0xA67D), (0xA69E, 0xA69F), (0xFE20, 0xFE2F),
)  # fmt: skip
_SINGLE_NAMES = (
    "CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HENTAIGANA", "IDEOGRAPHIC",
    "TANGUT", "NUSHU", "KHITAN", "VERTICAL KANA", "VERTICAL IDEOGRAPHIC",
)  # fmt: skip
_VARIATION_SELECTORS = ((0xFE00, 0xFE0F),)
_ZERO_WIDTH_SPACE = 0x200B


def _within(code_point: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def _name(character: str) -> str:
    return unicodedata.name(character, "")


def _drops_marks(character: str) -> bool:
    """Latin, Greek or Cyrillic (all their letters are called after the script)."""
    return any(script in _name(character) for script in ("LATIN", "GREEK", "CYRILLIC"))


def _fold(character: str) -> tuple[str, str]:
    """The character that ``character`` counts as, and the mark that must follow it ('' = none)."""
    tail = ""
    for _ in range(4):
        before = character
        compatible = unicodedata.normalize("NFKC", character)
        character = compatible if len(compatible) == 1 else character
        parts = unicodedata.normalize("NFD", character)
        marks = parts[1:]
        if marks and all(unicodedata.category(mark).startswith("M") for mark in marks):
            if _drops_marks(parts[0]):
                character = parts[0]
            elif len(marks) == 1 and not tail and ord(marks) in TAIL_MARKS:
                character, tail = parts[0], marks
        for folded in (character.casefold(), character.lower()):
            if len(folded) == 1:
                character = folded
                break
        if character == before:
            break
    if unicodedata.category(character) == "Nd":
        character = str(unicodedata.decimal(character))
    return character, tail


def _entry(code_point: int) -> int:
    character = chr(code_point)
    category = unicodedata.category(character)
    if code_point == _ZERO_WIDTH_SPACE or category == "Cs":
        return SEPARATOR << 21
    if category == "Cf" or _within(code_point, _VARIATION_SELECTORS):
        return IGNORED << 21
    if category[0] == "M" or code_point in (0xFF9E, 0xFF9F):
        parts = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", character))
        tail_index = TAIL_MARKS.index(ord(parts[1])) if len(parts) == 2 and ord(parts[1]) in TAIL_MARKS else 0
        first = ord(parts[0]) if len(parts) == 1 or tail_index else code_point
        kind = COMMON_MARK if _within(code_point, _COMMON_MARKS) else SCRIPT_MARK
        return (kind << 21) | first | (tail_index << 25)
    if character == "_":
        return (WORD << 21) | 0x7F  # what setting bit 5 of an ASCII underscore gives: word bytes fold by one OR
    if category[0] not in "LN":
        return SEPARATOR << 21
    folded, tail = _fold(character)
    single = _name(folded).startswith(_SINGLE_NAMES) or (_within(ord(folded), _UNSPACED) and category[0] == "L")
    entry = ((SINGLE if single else WORD) << 21) | ord(folded)
    entry |= int(_drops_marks(folded)) << 24
    return entry | (TAIL_MARKS.index(ord(tail)) << 25 if tail else 0)


def make_table() -> NDArray[np.uint32]:
    """The table (uint32 of ``TABLE_SIZE``) from this interpreter's Unicode data."""
    return np.fromiter((_entry(code_point) for code_point in range(TABLE_SIZE)), np.uint32, TABLE_SIZE)


@cache
def load_table() -> NDArray[np.uint32]:
    """The table as shipped: ``normalize_table.npz`` beside this file, one array stored as differences (it packs
    better)."""
    with np.load(Path(__file__).with_name("normalize_table.npz"), allow_pickle=False) as stored:
        differences: NDArray[np.uint32] = stored["differences"]
    return np.cumsum(differences, dtype=np.uint32)
