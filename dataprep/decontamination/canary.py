"""The canary: items planted in documents made in memory, in the ways that leaks are disguised, must all be found.

It uses the index as written and the search that the documents of the job go through, so an index that finds nothing
cannot pass for a clean corpus.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import xxhash

from loader.errors import JobError

from ..keys import purpose_key
from ..normalize import TABLE_SIZE, load_table
from .index import ItemIndex
from .items import MATCHABLE, text_array
from .search import ItemFinder

__all__ = ["DISGUISES", "check_canary", "sample_items"]

_EVERY = 10
_FEW = 100
_FILLER_WORDS = 5000
_ITEMS_A_DOCUMENT = 16
_DOCUMENTS_A_BATCH = 16
_CHARACTER = (1 << 21) - 1
_PUNCTUATION = {ord(before): after for before, after in zip(".,;:!?'\"()-", ";:,.?!\"'[]\u2013", strict=True)}
_HANGUL = range(0xAC00, 0xD7A4)


def _rewrap(text: str) -> str:
    """Lines of eight words."""
    words = text.split()
    return "\n".join(" ".join(words[start : start + 8]) for start in range(0, len(words), 8))


def _upper(text: str) -> str:
    """Capitals, where a capital is one character of the same fold (not for sharp s)."""
    table = load_table()

    def fold(character: str) -> int:
        return int(table[ord(character)]) & _CHARACTER if ord(character) < TABLE_SIZE else -1

    def capital(character: str) -> str:
        upper = character.upper()
        return upper if len(upper) == 1 and fold(upper) == fold(character) else character

    return "".join(map(capital, text))


def _punctuate(text: str) -> str:
    """Other marks, and more of them between words."""
    return " \u2026 ".join(text.translate(_PUNCTUATION).split(" "))


def _decompose(text: str) -> str:
    """NFD; Hangul stays composed, as the text rules do not compare its parts."""
    return "".join(c if ord(c) in _HANGUL else unicodedata.normalize("NFD", c) for c in text)


DISGUISES: tuple[Callable[[str], str], ...] = (
    str,
    _rewrap,
    _upper,
    _punctuate,
    _decompose,
    lambda text: _decompose(_upper(_rewrap(_punctuate(text)))),
)
"""Ways to write a text otherwise that leave its words the same."""


def sample_items(index: ItemIndex, salt: int) -> list[int]:
    """Every tenth matchable item of each benchmark by a keyed hash, at least 100 or all; ascending."""
    by_benchmark: dict[str, list[tuple[int, int]]] = {}
    key = purpose_key(salt, "canary")
    for number, (item, status) in enumerate(zip(index.items, index.status_I, strict=True)):
        if status == MATCHABLE:
            name = f"{item.benchmark}\0{item.split}\0{item.id}".encode("utf-8", "replace")
            by_benchmark.setdefault(item.benchmark, []).append((xxhash.xxh3_64_intdigest(name, key), number))
    chosen = []
    for keyed in by_benchmark.values():
        count = max(-(-len(keyed) // _EVERY), _FEW)
        chosen += [number for _, number in sorted(keyed)[:count]]
    return sorted(chosen)


def _filler() -> list[str]:
    """Pieces of made-up words, one for behind each item of a document and one for the front."""
    each = -(-_FILLER_WORDS // (_ITEMS_A_DOCUMENT + 1))
    words = [f"qz{xxhash.xxh3_64_intdigest(b'%d' % number) % 9973:x}vx" for number in range(_FILLER_WORDS)]
    return [" ".join(words[start : start + each]) for start in range(0, _FILLER_WORDS, each)]


def _documents(index: ItemIndex, planted: Sequence[int]) -> Iterator[tuple[list[int], str]]:
    """(items, text) of documents of 5,000 words of filler with up to 16 items each."""
    filler = _filler()
    for start in range(0, len(planted), _ITEMS_A_DOCUMENT):
        mine = list(planted[start : start + _ITEMS_A_DOCUMENT])
        pieces = [filler[0]]
        for place, item in enumerate(mine):
            pieces += [DISGUISES[(start + place) % len(DISGUISES)](index.form_F[item]), filler[place + 1]]
        yield mine, "\n".join([*pieces, *filler[len(mine) + 1 :]])


def check_canary(index: ItemIndex, threshold: float, salt: int) -> dict[str, int]:
    """Plant a sample of the items and look for it; the figures for the report.

    Raises:
        JobError: an item that was planted is not found; it is named.
    """
    finder = ItemFinder(index, threshold)
    documents = list(_documents(index, sample_items(index, salt)))
    planted = 0
    for start in range(0, len(documents), _DOCUMENTS_A_BATCH):
        batch = documents[start : start + _DOCUMENTS_A_BATCH]
        hits = finder.find(text_array([text for _, text in batch]), np.arange(len(batch))).hits
        found = set(zip(hits["record"].tolist(), hits["item"].tolist(), strict=True))
        for document, (items, _) in enumerate(batch):
            planted += len(items)
            missed = [item for item in items if (document, item) not in found]
            if missed:
                item = index.items[missed[0]]
                raise JobError(
                    "TR-DECONTAMINATE-CANARY",
                    f"{len(missed)} planted items were not found, first {item.benchmark} {item.split} {item.id}",
                    f"item {index.form_F[missed[0]][:200]!r}",
                    "every planted item is found",
                    "report this with the item: decontamination cannot be trusted for it",
                )
    return {"planted": planted, "found": planted}
