"""Words, shingles and Jaccard similarity in plain Python strings, by the rules as they are written down.

Uses the table's entries (which character counts as what) and nothing of the compiled code.
"""

from __future__ import annotations

from dataprep.normalize import (
    COMMON_MARK,
    IGNORED,
    SEPARATOR,
    SINGLE,
    SINGLE_N,
    TABLE_SIZE,
    TAIL_MARKS,
    WORD,
    WORD_N,
    load_table,
)

Token = tuple[bool, str]
"""(is it a single, its folded characters)"""


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, one after another."""
    table = load_table()
    tokens: list[Token] = []
    word = ""
    kind = SEPARATOR
    drops_marks = False
    for character in text + " ":
        entry = int(table[ord(character)]) if ord(character) < TABLE_SIZE else 0
        what = (entry >> 21) & 7
        if word and (what in (SEPARATOR, SINGLE) or (what == WORD and kind == SINGLE)):
            tokens.append((kind == SINGLE, word))
            word, kind = "", SEPARATOR
        if what in (SEPARATOR, IGNORED) or (what == COMMON_MARK and (drops_marks or not word)):
            continue
        word += chr(entry & 0x1FFFFF) + (chr(TAIL_MARKS[entry >> 25]) if entry >> 25 else "")
        if what in (WORD, SINGLE):
            kind, drops_marks = what, bool(entry & (1 << 24))
        elif kind == SEPARATOR:
            kind, drops_marks = WORD, False
    return tokens


def shingles_of(text: str) -> set[tuple[Token, ...]]:
    """The set of shingles of a text."""
    tokens = tokens_of(text)
    found = set()
    for start, (single, _) in enumerate(tokens):
        n = SINGLE_N if single else WORD_N
        if start + n <= len(tokens):
            found.add(tuple(tokens[start : start + n]))
    if not found and tokens:
        found.add(tuple(tokens))
    return found


def jaccard(first: set[tuple[Token, ...]], second: set[tuple[Token, ...]]) -> float:
    """Exact Jaccard similarity; 0 if either set is empty."""
    if not first or not second:
        return 0.0
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)
