"""Kernels of packing: splitting, best fit decreasing by a two-level bitset over free-space classes, laying out,
gathering tokens.

Legend: D documents of a window, P pieces, B bins, N samples, T tokens of a sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import helper, kernel

__all__ = ["best_fit_bins", "gather_tokens", "lay_out", "shuffled", "split_documents"]


@kernel
def split_documents(
    num_tokens_D: NDArray[np.int64], seq_len: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Pieces of at most ``seq_len`` tokens, in document order: (document, first token in the document, tokens)."""
    count = 0
    for tokens in num_tokens_D:
        count += (tokens + seq_len - 1) // seq_len
    document_P = np.empty(count, np.int32)
    start_P = np.empty(count, np.int32)
    num_tokens_P = np.empty(count, np.int32)
    p = 0
    for d in range(num_tokens_D.size):
        start = 0
        while start < num_tokens_D[d]:
            document_P[p] = d
            start_P[p] = start
            num_tokens_P[p] = min(num_tokens_D[d] - start, seq_len)
            start += seq_len
            p += 1
    return document_P, start_P, num_tokens_P


@helper
def _lowest_bit(x: np.uint64) -> int:
    """Index of the lowest set bit of ``x`` != 0."""
    n = 0
    if (x & np.uint64(0xFFFFFFFF)) == 0:
        n += 32
        x >>= np.uint64(32)
    if (x & np.uint64(0xFFFF)) == 0:
        n += 16
        x >>= np.uint64(16)
    if (x & np.uint64(0xFF)) == 0:
        n += 8
        x >>= np.uint64(8)
    if (x & np.uint64(0xF)) == 0:
        n += 4
        x >>= np.uint64(4)
    if (x & np.uint64(3)) == 0:
        n += 2
        x >>= np.uint64(2)
    if (x & np.uint64(1)) == 0:
        n += 1
    return n


@helper
def _tightest(words: NDArray[np.uint64], groups: NDArray[np.uint64], tokens: int) -> int:
    """The smallest free-space class >= ``tokens`` that has an open bin; -1 if none has.

    Bit s of ``words`` says that some bin has s tokens free, bit w of ``groups`` that word w is not zero.
    """
    w = tokens >> 6
    rest = words[w] >> np.uint64(tokens & 63)
    if rest != 0:
        return tokens + _lowest_bit(rest)
    w += 1
    g = w >> 6
    rest = groups[g] >> np.uint64(w & 63)
    if rest != 0:
        w += _lowest_bit(rest)
        return (w << 6) + _lowest_bit(words[w])
    g += 1
    while g < groups.size and groups[g] == 0:
        g += 1
    if g == groups.size:
        return -1
    w = (g << 6) + _lowest_bit(groups[g])
    return (w << 6) + _lowest_bit(words[w])


@kernel
def best_fit_bins(num_tokens_P: NDArray[np.int32], seq_len: int) -> tuple[NDArray[np.int32], int]:
    """Best fit decreasing: pieces from the longest (ties in order) to the bin that they leave fullest; the last one
    so left
    if several are equal.

    Returns:
        The bin of each piece, bins numbered as they were opened, and the number of bins.
    """
    count_L = np.zeros(seq_len + 2, np.int64)
    for tokens in num_tokens_P:
        count_L[seq_len - tokens + 1] += 1
    for i in range(1, seq_len + 2):
        count_L[i] += count_L[i - 1]
    order_P = np.empty(num_tokens_P.size, np.int32)
    for p in range(num_tokens_P.size):
        free = seq_len - num_tokens_P[p]
        order_P[count_L[free]] = p
        count_L[free] += 1
    num_words = (seq_len >> 6) + 2
    words = np.zeros(num_words, np.uint64)
    groups = np.zeros((num_words >> 6) + 2, np.uint64)
    one = np.uint64(1)
    head_L = np.full(seq_len + 1, -1, np.int32)
    next_B = np.empty(num_tokens_P.size, np.int32)
    bin_P = np.empty(num_tokens_P.size, np.int32)
    num_bins = 0
    for p in order_P:
        tokens = num_tokens_P[p]
        space = _tightest(words, groups, tokens)
        if space >= 0:
            b = head_L[space]
            head_L[space] = next_B[b]
            if head_L[space] < 0:
                w = space >> 6
                words[w] &= ~(one << np.uint64(space & 63))
                if words[w] == 0:
                    groups[w >> 6] &= ~(one << np.uint64(w & 63))
        else:
            b = np.int32(num_bins)
            num_bins += 1
            space = seq_len
        bin_P[p] = b
        left = space - tokens
        if left > 0:
            if head_L[left] < 0:
                w = left >> 6
                words[w] |= one << np.uint64(left & 63)
                groups[w >> 6] |= one << np.uint64(w & 63)
            next_B[b] = head_L[left]
            head_L[left] = b
    return bin_P, num_bins


@kernel
def shuffled(count: int, key: np.uint64) -> NDArray[np.int32]:
    """A keyed permutation of 0 .. count (Fisher and Yates, drawing from splitmix64)."""
    out = np.arange(count).astype(np.int32)
    state = key
    for i in range(count - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = state
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        j = np.int64(z % np.uint64(i + 1))
        out[i], out[j] = out[j], out[i]
    return out


@kernel
def lay_out(
    pieces: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    bin_P: NDArray[np.int32],
    sample_of_bin: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Pieces in order of their samples, those of a sample in document order.

    Args:
        pieces: of ``split_documents``.
        bin_P: of ``best_fit_bins``.
        sample_of_bin: number that each bin's sample gets.

    Returns:
        A row a piece, so that each is written in one place: document, token start in the document, tokens, sample,
        token
        start in the sample.
    """
    document_P, start_P, num_tokens_P = pieces
    num_samples = sample_of_bin.size
    place_N = np.zeros(num_samples + 1, np.int32)
    for b in bin_P:
        place_N[sample_of_bin[b] + 1] += 1
    for n in range(num_samples):
        place_N[n + 1] += place_N[n]
    filled_N = np.zeros(num_samples, np.int32)
    out_P5 = np.empty((bin_P.size, 5), np.int32)
    for p in range(bin_P.size):
        n = sample_of_bin[bin_P[p]]
        q = place_N[n]
        place_N[n] += 1
        out_P5[q, 0] = document_P[p]
        out_P5[q, 1] = start_P[p]
        out_P5[q, 2] = num_tokens_P[p]
        out_P5[q, 3] = n
        out_P5[q, 4] = filled_N[n]
        filled_N[n] += num_tokens_P[p]
    return out_P5


@kernel
def gather_tokens(
    out_NT: NDArray[np.unsignedinteger[Any]],
    pieces_P5: NDArray[np.int64],
    tokens: NDArray[np.unsignedinteger[Any]],
    border_ids: NDArray[np.int64],
) -> None:
    """Fill samples with the tokens of their pieces; what no piece covers stays as it is.

    Args:
        out_NT: samples to fill.
        pieces_P5: sample, token start in it, tokens, place of the piece's first token in ``tokens`` (that of a
            document's own
            tokens; a BOS lies before its first, an EOS after its last), flags (1: begins with BOS, 2: ends with EOS).
        tokens: tokens of all documents, without BOS and EOS.
        border_ids: BOS and EOS id.
    """
    for p in range(pieces_P5.shape[0]):
        n, t, count, place, flags = pieces_P5[p]
        stop = t + count
        if flags & 1:
            out_NT[n, t] = border_ids[0]
            t += 1
        if flags & 2:
            stop -= 1
            out_NT[n, stop] = border_ids[1]
        for i in range(stop - t):
            out_NT[n, t + i] = tokens[place + i]
