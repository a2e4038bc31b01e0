"""Whole batches of documents through the kernels: signatures on the first pass, shingle sets on the second.

Shapes: N documents, K permutations, S shingles of all documents together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..normalize import load_table
from .jit import helper, kernel
from .minhash import VALUE_PADDING, minhash_values, mix32
from .shingles import make_shingles
from .sorting import sort_hashes
from .words import split_words

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Buffers", "DocumentHasher", "sign_shingles", "sort_sets", "split_shingles", "text_buffers"]

_PADDING_BYTES = 64


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


@kernel
def split_shingles(texts: Buffers, table: Any, shingle_S: Any, stop_N: Any) -> None:
    """Shingle hashes (uint64, with repetitions) of N documents one after another in ``shingle_S`` (room for one a
    byte), the end of each in ``stop_N`` (int64)."""
    offset_N = texts.offset_N
    longest = 0
    for d in range(stop_N.shape[0]):
        longest = max(longest, offset_N[d + 1] - offset_N[d])
    tokens = np.empty(longest, np.uint64)
    end = 0
    for d in range(stop_N.shape[0]):
        num_tokens = split_words(texts.data, (offset_N[d], offset_N[d + 1]), table, tokens)
        end += make_shingles(tokens, num_tokens, shingle_S[end:])
        stop_N[d] = end


@kernel
def sign_shingles(shingle_S: Any, stop_N: Any, permutations: Any, signature_NK: Any) -> None:
    """MinHash signatures (uint32) of N documents from their shingles; without shingles all bits are set."""
    values = np.empty(_longest(stop_N) + VALUE_PADDING, np.uint32)
    start = 0
    for d in range(stop_N.shape[0]):
        count = stop_N[d] - start
        for i in range(count):
            values[i] = mix32(np.uint32(shingle_S[start + i]))
        minhash_values(values, count, permutations, signature_NK[d])
        start = stop_N[d]


@kernel
def sort_sets(shingle_S: Any, stop_N: Any) -> int:
    """Turn the shingles of each of N documents into a sorted set, in place and closed up: ``stop_N`` becomes the
    ends of the sets; returns the last one."""
    ordered = np.empty(_longest(stop_N), np.uint64)
    buckets = np.empty(1 << 16, np.int64)
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
    """Shingles, signatures and shingle sets of Arrow texts, with scratch memory that is reused from batch to batch."""

    def __init__(self) -> None:
        self._table = load_table()
        self._scratch = np.empty(0, np.uint64)

    def _shingles(self, text: pa.LargeStringArray) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        texts = text_buffers(text)
        room = int(texts.offset_N[-1] - texts.offset_N[0])
        if len(self._scratch) < room:
            self._scratch = np.empty(room, np.uint64)
        stop_N = np.empty(len(text), np.int64)
        split_shingles(texts, self._table, self._scratch, stop_N)
        return self._scratch, stop_N

    def sign(
        self, text: pa.LargeStringArray, permutations: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Signatures (N, K) and numbers of shingles with repetitions (N) of the texts."""
        shingle_S, stop_N = self._shingles(text)
        signature_NK = np.empty((len(text), len(permutations[0])), np.uint32)
        sign_shingles(shingle_S, stop_N, permutations, signature_NK)
        return signature_NK, np.diff(stop_N, prepend=0).astype(np.int32)

    def sets(self, text: pa.LargeStringArray) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Sorted distinct shingle hashes of all texts one after another (a copy), and the number of each text's."""
        shingle_S, stop_N = self._shingles(text)
        total = sort_sets(shingle_S, stop_N)
        return shingle_S[:total].copy(), np.diff(stop_N, prepend=0)
