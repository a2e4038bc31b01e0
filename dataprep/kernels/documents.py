"""Whole batches of documents through the kernels: signatures on the first pass, shingle sets on the second.

Documents go through in parts of a few thousand tokens, so that what lies between the steps stays in the nearest cache
and a document of any size costs the same scratch memory. Shapes: N documents, K permutations, S shingles of all
documents together, T tokens of a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..normalize import load_table
from .jit import helper, kernel
from .minhash import EMPTY_ROW, lower_signature, mix32
from .shingles import HELD_TOKENS, make_shingles, start_shingles
from .simhash import NUM_PLANES, add_shingles, simhash_of
from .sorting import sort_hashes
from .words import TOKEN_SPARE, split_part

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Buffers", "DocumentHasher", "Prints", "sort_sets", "split_shingles", "take_prints", "text_buffers"]

_PADDING_BYTES = 64
_PART_TOKENS = 4096
_LEAST_BUCKETS = 1 << 16
_MOST_BUCKETS = 1 << 24


class Buffers(NamedTuple):
    """Text of N documents: ``data`` uint8 with 64 spare bytes, ``offset_N`` int64 with one entry more."""

    data: NDArray[np.uint8]
    offset_N: NDArray[np.int64]


def text_buffers(text: pa.LargeStringArray) -> Buffers:
    """The buffers of an Arrow array, copied only where the spare bytes after its last document are missing."""
    _, offsets, data = text.buffers()
    if data is None or len(text) == 0:
        return Buffers(np.zeros(_PADDING_BYTES, np.uint8), np.zeros(len(text) + 1, np.int64))
    offset_N = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    bytes_ = np.frombuffer(data, np.uint8)
    if len(bytes_) < offset_N[-1] + _PADDING_BYTES:
        bytes_ = np.concatenate((bytes_[: offset_N[-1]], np.zeros(_PADDING_BYTES, np.uint8)))
    return Buffers(bytes_, offset_N)


class Prints(NamedTuple):
    """What one pass takes of N documents: ``signature_NK`` uint32 (K = 0: not wanted; without shingles all bits are
    set), ``simhash_N`` uint64 (length 0: not wanted; without shingles 0), ``num_shingles_N`` int64 with repetitions."""

    signature_NK: NDArray[np.uint32]
    simhash_N: NDArray[np.uint64]
    num_shingles_N: NDArray[np.int64]


class _Scratch(NamedTuple):
    """Memory for one part of a document."""

    token_T: NDArray[np.uint64]
    shingle_T: NDArray[np.uint64]
    value_T: NDArray[np.uint32]
    plane_P: NDArray[np.uint64]


def _scratch() -> _Scratch:
    room = _PART_TOKENS + TOKEN_SPARE
    return _Scratch(
        np.empty(room, np.uint64),
        np.empty(room, np.uint64),
        np.empty(room, np.uint32),
        np.empty(NUM_PLANES, np.uint64),
    )


@helper
def _next_part(texts: Buffers, table: Any, token_T: Any, state: Any, shingle_T: Any) -> Any:
    """Shingles of the next part of a document into ``shingle_T``: (their number, the state after them). ``state`` is
    (where to go on, end of the document, tokens held back at the front of ``token_T``, shingles so far); the document
    is done when the first reaches the second."""
    at, stop, held, total = state
    num_tokens, at = split_part(texts.data, (at, stop), table, token_T, (held, _PART_TOKENS))
    if at >= stop:
        if total == 0:
            count = make_shingles(token_T, num_tokens, shingle_T)
        else:
            count = start_shingles(token_T, 0, num_tokens, num_tokens, shingle_T)
        return count, (stop, stop, 0, total + count)
    first = num_tokens - HELD_TOKENS
    count = start_shingles(token_T, 0, first, num_tokens, shingle_T)
    for i in range(HELD_TOKENS):
        token_T[i] = token_T[first + i]
    return count, (at, stop, HELD_TOKENS, total + count)


@kernel
def split_shingles(texts: Buffers, table: Any, token_T: Any, shingle_S: Any, stop_N: Any) -> None:
    """Shingle hashes (uint64, with repetitions) of N documents one after another in ``shingle_S`` (room for one a
    byte), the end of each in ``stop_N`` (int64); ``token_T`` is scratch."""
    end = 0
    for d in range(stop_N.shape[0]):
        state = (texts.offset_N[d], texts.offset_N[d + 1], 0, 0)
        going = True
        while going:
            count, state = _next_part(texts, table, token_T, state, shingle_S[end:])
            end += count
            going = state[0] < state[1]
        stop_N[d] = end


@kernel
def take_prints(texts: Buffers, table: Any, scratch: _Scratch, permutations: Any, prints: Prints) -> None:
    """Signatures and fingerprints of N documents; their shingles are made once for both."""
    signature_NK, simhash_N, num_shingles_N = prints.signature_NK, prints.simhash_N, prints.num_shingles_N
    shingle_T, value_T, plane_P = scratch.shingle_T, scratch.value_T, scratch.plane_P
    for d in range(num_shingles_N.shape[0]):
        for k in range(signature_NK.shape[1]):
            signature_NK[d, k] = EMPTY_ROW
        for p in range(plane_P.shape[0]):
            plane_P[p] = 0
        state = (texts.offset_N[d], texts.offset_N[d + 1], 0, 0)
        going = True
        while going:
            count, state = _next_part(texts, table, scratch.token_T, state, shingle_T)
            if signature_NK.shape[1] > 0:
                for i in range(count):
                    value_T[i] = mix32(np.uint32(shingle_T[i]))
                lower_signature(value_T, count, permutations, signature_NK[d])
            if simhash_N.shape[0] > 0:
                add_shingles(shingle_T, count, plane_P)
            going = state[0] < state[1]
        num_shingles_N[d] = state[3]
        if simhash_N.shape[0] > 0:
            simhash_N[d] = simhash_of(plane_P, state[3])


@kernel
def sort_sets(shingle_S: Any, stop_N: Any) -> int:
    """Turn the shingles of each of N documents into a sorted set, in place and closed up: ``stop_N`` becomes the
    ends of the sets; returns the last one."""
    longest = _longest(stop_N)
    ordered = np.empty(longest, np.uint64)
    num_buckets = _LEAST_BUCKETS
    while num_buckets < _MOST_BUCKETS and num_buckets * 4 < longest:
        num_buckets *= 2  # few elements a bucket, however long the document
    buckets = np.empty(num_buckets, np.int64)
    start = 0
    end = 0
    for d in range(stop_N.shape[0]):
        count = stop_N[d] - start
        sort_hashes(shingle_S[start:], count, ordered, buckets)
        for i in range(count):
            if i == 0 or ordered[i] != ordered[i - 1]:
                shingle_S[end] = ordered[i]
                end += 1
        start = stop_N[d]
        stop_N[d] = end
    return end


@helper
def _longest(stop_N: Any) -> int:
    """Most elements of one of the runs that end at ``stop_N``."""
    longest = 0
    start = 0
    for d in range(stop_N.shape[0]):
        longest = max(longest, stop_N[d] - start)
        start = stop_N[d]
    return longest


class DocumentHasher:
    """Signatures, fingerprints and shingle sets of Arrow texts, with scratch memory that is reused from batch to batch.

    Taking prints needs a few hundred KB whatever the texts; ``sets`` up to 8 bytes of scratch a byte of one batch's
    text, of which pages are touched only as far as there are shingles.
    """

    def __init__(self) -> None:
        self._table = load_table()
        self._part = _scratch()
        self._shingle_S = np.empty(0, np.uint64)

    def prints(
        self,
        text: pa.LargeStringArray,
        permutations: tuple[NDArray[np.uint32], NDArray[np.uint32]] | None,
        *,
        simhash: bool,
    ) -> Prints:
        """Signatures by ``permutations`` (see ``affine_permutations``; None: none) and SimHash fingerprints."""
        count = len(text)
        nothing = np.zeros(0, np.uint32)
        factors, summands = permutations if permutations is not None else (nothing, nothing)
        prints = Prints(
            np.empty((count, len(factors)), np.uint32),
            np.empty(count if simhash else 0, np.uint64),
            np.empty(count, np.int64),
        )
        take_prints(text_buffers(text), self._table, self._part, (factors, summands), prints)
        return prints

    def sign(
        self, text: pa.LargeStringArray, permutations: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Signatures (N, K) and numbers of shingles with repetitions (N) of the texts."""
        prints = self.prints(text, permutations, simhash=False)
        return prints.signature_NK, prints.num_shingles_N.astype(np.int32)

    def sets(self, text: pa.LargeStringArray) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Sorted distinct shingle hashes of all texts one after another (a copy), and the number of each text's."""
        texts = text_buffers(text)
        room = int(texts.offset_N[-1] - texts.offset_N[0])
        if len(self._shingle_S) < room:
            self._shingle_S = np.empty(room, np.uint64)
        stop_N = np.empty(len(text), np.int64)
        split_shingles(texts, self._table, self._part.token_T, self._shingle_S, stop_N)
        total = sort_sets(self._shingle_S, stop_N)
        return self._shingle_S[:total].copy(), np.diff(stop_N, prepend=0)
