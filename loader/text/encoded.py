"""What tokenizers hand around: batches of ids, the bytes that ids stand for, and texts cut into parts.

Legend: N texts, P parts, T tokens of all parts or texts, V vocabulary.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SLACK_BYTES",
    "Compare",
    "EncodedBatch",
    "EncodedParts",
    "RawEncoder",
    "Spelling",
    "avoid_pattern",
    "code_point_border",
    "cut_parts",
    "find_inexact",
    "joined_parts",
    "looks_like_control",
    "parts_of_lists",
]

SLACK_BYTES = 8
_CHUNK_BYTES = 1 << 18
_TREE_DEPTH = 16
_CONTROL_FORM = re.compile(r"<.+>|\[.+\]|<\|.+|.+\|>", re.DOTALL)


@dataclass(frozen=True)
class Spelling:
    """Bytes that each id stands for: id v is ``bytes_B[start_V[v] : start_V[v + 1]]`` (uint8, with
    ``SLACK_BYTES`` more at its end, so that whole words may be read; int64 of V + 1)."""

    bytes_B: NDArray[np.uint8]
    start_V: NDArray[np.int64]


@dataclass(frozen=True)
class EncodedParts:
    """Ids of a batch: int32 of T, part p has ``ids_T[start_P[p] : start_P[p + 1]]`` (int64 of P + 1)."""

    ids_T: NDArray[np.int32]
    start_P: NDArray[np.int64]


@dataclass(frozen=True)
class EncodedBatch:
    """Ids of N texts, text after text.

    Attributes:
        ids_T: int32.
        start_N: int64 of N + 1; text n has the tokens ``start_N[n] : start_N[n + 1]``.
        lengths_V: int32; bytes that each id stands for.
        sizes_T: int32; bytes of its text that each token stands for, where ``lengths_V`` does not say so.
        num_repaired: parts whose first encoding did not spell them. None of an honest backend on text that a lossless
            model keeps; a backend's errors are mended in silence otherwise.
    """

    ids_T: NDArray[np.int32]
    start_N: NDArray[np.int64]
    lengths_V: NDArray[np.int32]
    sizes_T: NDArray[np.int32] | None = None
    num_repaired: int = 0

    @property
    def num_bytes_T(self) -> NDArray[np.int32]:
        """Bytes of its text that each token stands for, int32; made anew at each call."""
        return self.sizes_T if self.sizes_T is not None else self.lengths_V[self.ids_T]


RawEncoder = Callable[[Sequence[str]], EncodedParts]
"""A library's own encoding of a batch of parts."""
Compare = Callable[[EncodedParts, Spelling, bytes, NDArray[np.int64]], NDArray[np.bool_]]
"""See ``find_inexact``, the one that needs nothing but Arrow; dataprep has a faster one."""


def find_inexact(
    parts: EncodedParts, spelling: Spelling, expected: bytes, stop_P: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which parts (P) their tokens do not spell, or that hold a token which spells nothing.

    Args:
        parts: the tokens.
        spelling: bytes of each id.
        expected: what all parts should be, joined.
        stop_P: int64; where each part ends in it.
    """
    import pyarrow as pa

    length_V = np.diff(spelling.start_V)
    length_T = length_V[parts.ids_T]
    before_T = np.concatenate([[0], np.cumsum(length_T)])
    size_P = np.diff(before_T[parts.start_P])
    mute_T = np.concatenate([[0], np.cumsum(length_T == 0)])
    bad_P: NDArray[np.bool_] = (size_P != np.diff(stop_P, prepend=0)) | (np.diff(mute_T[parts.start_P]) > 0)
    words = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(length_V), [None, pa.py_buffer(spelling.start_V), pa.py_buffer(spelling.bytes_B)]
    )
    taken = words.take(pa.array(parts.ids_T))
    joined = bytes(memoryview(taken.buffers()[2] or b"")[: int(before_T[-1])])
    if not bad_P.any() and joined == expected:
        return bad_P
    spelled_P = before_T[parts.start_P].tolist()
    ranges = zip(itertools.pairwise(spelled_P), itertools.pairwise([0, *stop_P.tolist()]), strict=True)
    return bad_P | np.array([joined[a:b] != expected[c:d] for (a, b), (c, d) in ranges], np.bool_)


def looks_like_control(text: str) -> bool:
    """Whether a symbol is written like a control token: ``<...>``, ``[...]``, ``<|...``, ``...|>``."""
    return len(text) > 1 and _CONTROL_FORM.fullmatch(text) is not None


def avoid_pattern(symbols: Sequence[str]) -> re.Pattern[bytes] | None:
    """Matches the first character of each symbol, wherever one begins; None without symbols.

    A symbol of one character cannot be cut and is left alone. Thousands of symbols (``<unused0>`` to
    ``<unused6241>``) share their beginnings in the pattern: trying one after another took 14 us at each ``<``.
    """
    rests: dict[str, set[bytes]] = {}
    for symbol in symbols:
        if len(symbol) > 1:
            rests.setdefault(symbol[0], set()).add(symbol[1:].encode())
    branches = [re.escape(first.encode()) + b"(?=" + _any_of(sorted(rests[first]), 0) + b")" for first in sorted(rests)]
    return re.compile(b"|".join(branches)) if branches else None


def _any_of(words: Sequence[bytes], depth: int) -> bytes:
    """A pattern that matches where one of the words (sorted) stands, or the beginning of one that is a word itself."""
    if depth == _TREE_DEPTH:
        return b"|".join(map(re.escape, words))
    branches = []
    for _, group in itertools.groupby(words, key=lambda word: word[:1]):
        same = list(group)
        pairs = enumerate(zip(same[0], same[-1], strict=False))
        shared = next((place for place, (a, b) in pairs if a != b), len(same[0]))  # of the first and last = of all
        rests = [word[shared:] for word in same]
        more = b"(?:" + _any_of(rests, depth + 1) + b")" if rests[0] else b""
        branches.append(re.escape(same[0][:shared]) + more)
    return b"|".join(branches)


def cut_parts(data: bytes, avoid: re.Pattern[bytes] | None) -> list[bytes]:
    """The parts of a text, none of them empty: cut behind the first character of each symbol to avoid, and in chunks
    of at most 256 KiB."""
    if len(data) <= _CHUNK_BYTES and (avoid is None or avoid.search(data) is None):
        return [data] if data else []
    cuts = [0, *(match.end() for match in avoid.finditer(data)), len(data)] if avoid is not None else [0, len(data)]
    return [chunk for start, stop in itertools.pairwise(cuts) for chunk in _chunks(data[start:stop]) if chunk]


def _chunks(data: bytes) -> list[bytes]:
    """``data`` in pieces of at most 256 KiB, cut before a space that follows a non-space where one is near, else
    between code points.

    Models trained to split at whitespace have no piece across such a place, so the ids are those of the whole.
    """
    chunks, start = [], 0
    while len(data) - start > _CHUNK_BYTES:
        cut = data.rfind(b" ", start + _CHUNK_BYTES // 2, start + _CHUNK_BYTES)
        while cut > start and data[cut - 1 : cut] == b" ":
            cut -= 1
        if cut < start + _CHUNK_BYTES // 4:
            cut = code_point_border(data, start + _CHUNK_BYTES)
        chunks.append(data[start:cut])
        start = cut
    return [*chunks, data[start:] if start else data]


def code_point_border(data: bytes, near: int) -> int:
    """The last code point start at or before ``near``; 0 if there is none after the first."""
    while near > 0 and data[near] & 0xC0 == 0x80:
        near -= 1
    return near


def joined_parts(ids: Sequence[NDArray[np.int32]]) -> EncodedParts:
    """Parts from the ids of each."""
    start_P = np.zeros(len(ids) + 1, np.int64)
    np.cumsum([len(ids_T) for ids_T in ids], out=start_P[1:])
    return EncodedParts(np.concatenate([np.zeros(0, np.int32), *ids]), start_P)


def parts_of_lists(ids: Sequence[Sequence[int]]) -> EncodedParts:
    """Parts from a Python list of ids for each."""
    start_P = np.zeros(len(ids) + 1, np.int64)
    np.cumsum([len(one) for one in ids], out=start_P[1:])
    flat = itertools.chain.from_iterable(ids)
    return EncodedParts(np.fromiter(flat, np.int32, count=int(start_P[-1])), start_P)
