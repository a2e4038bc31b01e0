"""Kernels of packing: splitting, choosing bins (best fit decreasing by a two-level bitset over free-space classes,
first fit over a few open bins, one bin after the other), laying out, gathering tokens.

Indices are unsigned throughout, which spares numba's test for negative ones: 13 to 7 ns a piece in ``best_fit_bins``.

Legend: D documents of a window, P pieces, B bins, N samples, T tokens of a sample, L lengths or free spaces.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .jit import helper, kernel
from .vectors import count_trailing_zeros

__all__ = [
    "OPEN_BINS",
    "PieceColumns",
    "best_fit_bins",
    "concat_bins",
    "first_fit_bins",
    "gather_tokens",
    "lay_out",
    "shuffled",
    "split_documents",
    "split_stream",
]

PieceColumns: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
"""Pieces in document order: document, first token in the document, tokens."""

OPEN_BINS = 64
"""Bins that first fit keeps open (torchtitan and Grain have 64 and a batch's worth)."""

_ONE = np.uint64(1)
_SIX = np.uint64(6)
_HALF = np.uint64(32)
_WORD = np.uint64(63)
_LOW = np.uint64(0xFFFFFFFF)


@kernel
def split_documents(num_tokens_D: NDArray[np.int64], seq_len: int) -> PieceColumns:
    """Pieces of at most ``seq_len`` tokens, each document split at multiples of ``seq_len``."""
    count = num_tokens_D.size
    for tokens in num_tokens_D:
        if tokens > seq_len:  # a division costs more than all else here
            count += (tokens - 1) // seq_len
    document_P = np.empty(count, np.int32)
    start_P = np.empty(count, np.int32)
    num_tokens_P = np.empty(count, np.int32)
    p = np.uint64(0)
    for d in range(num_tokens_D.size):
        left = num_tokens_D[np.uint64(d)]
        start = 0
        while left > 0:
            document_P[p] = d
            start_P[p] = start
            num_tokens_P[p] = min(left, seq_len)
            start += seq_len
            left -= seq_len
            p += _ONE
    return document_P, start_P, num_tokens_P


@kernel
def split_stream(num_tokens_D: NDArray[np.int64], seq_len: int) -> PieceColumns:
    """Pieces of the documents laid end to end and chunked every ``seq_len`` tokens."""
    count = num_tokens_D.size
    stream = 0
    for tokens in num_tokens_D:
        first = stream // seq_len
        stream += tokens
        count += (stream - 1) // seq_len - first
    document_P = np.empty(count, np.int32)
    start_P = np.empty(count, np.int32)
    num_tokens_P = np.empty(count, np.int32)
    p = np.uint64(0)
    room = seq_len
    for d in range(num_tokens_D.size):
        left = num_tokens_D[np.uint64(d)]
        start = 0
        while left > 0:
            taken = min(left, room)
            document_P[p] = d
            start_P[p] = start
            num_tokens_P[p] = taken
            start += taken
            left -= taken
            room = room - taken if room > taken else seq_len
            p += _ONE
    return document_P, start_P, num_tokens_P


@kernel
def concat_bins(num_tokens_P: NDArray[np.int32], seq_len: int) -> tuple[NDArray[np.int32], int]:
    """One bin after the other: a piece opens the next one when the last is full."""
    bin_P = np.empty(num_tokens_P.size, np.int32)
    num_bins = 0
    free = 0
    for i in range(num_tokens_P.size):
        tokens = num_tokens_P[np.uint64(i)]
        if tokens > free:
            num_bins += 1
            free = seq_len
        bin_P[np.uint64(i)] = num_bins - 1
        free -= tokens
    return bin_P, num_bins


@kernel
def first_fit_bins(num_tokens_P: NDArray[np.int32], seq_len: int) -> tuple[NDArray[np.int32], int]:
    """First fit in stream order over at most ``OPEN_BINS`` open bins (grain's and torchtitan's way).

    A piece goes to the first open bin with room; without one, to a new bin in the first free slot, or in that of the
    fullest open bin (the first of several), which is closed. Full bins are closed at once.

    Returns:
        The bin of each piece, bins numbered as they were opened, and the number of bins.
    """
    free_B = np.zeros(OPEN_BINS, np.int64)
    number_B = np.zeros(OPEN_BINS, np.int32)
    bin_P = np.empty(num_tokens_P.size, np.int32)
    num_bins = 0
    for i in range(num_tokens_P.size):
        tokens = num_tokens_P[np.uint64(i)]
        chosen = np.uint64(0)
        found = False
        for j in range(OPEN_BINS):
            if free_B[np.uint64(j)] >= tokens:
                chosen, found = np.uint64(j), True
                break
        if not found:
            if tokens == seq_len:  # full at once: it needs no slot
                bin_P[np.uint64(i)] = num_bins
                num_bins += 1
                continue
            for j in range(1, OPEN_BINS):  # a closed slot has nothing free: it is the fullest of all
                if free_B[np.uint64(j)] < free_B[chosen]:
                    chosen = np.uint64(j)
            number_B[chosen] = num_bins
            free_B[chosen] = seq_len
            num_bins += 1
        bin_P[np.uint64(i)] = number_B[chosen]
        free_B[chosen] -= tokens
    return bin_P, num_bins


@helper
def _tightest(words: NDArray[np.uint64], groups: NDArray[np.uint64], tokens: np.uint64, none: np.uint64) -> np.uint64:
    """The smallest free-space class >= ``tokens`` that has an open bin; ``none`` if there is none.

    Bit s of ``words`` says that some bin has s tokens free, bit w of ``groups`` that word w is not zero.
    """
    w = tokens >> _SIX
    rest = words[w] >> (tokens & _WORD)
    if rest != 0:
        return tokens + np.uint64(count_trailing_zeros(rest))
    w += _ONE
    g = w >> _SIX
    rest = groups[g] >> (w & _WORD)
    if rest != 0:
        w += np.uint64(count_trailing_zeros(rest))
        return (w << _SIX) + np.uint64(count_trailing_zeros(words[w]))
    g += _ONE
    while g < np.uint64(groups.size) and groups[g] == 0:
        g += _ONE
    if g == np.uint64(groups.size):
        return none
    w = (g << _SIX) + np.uint64(count_trailing_zeros(groups[g]))
    return (w << _SIX) + np.uint64(count_trailing_zeros(words[w]))


@helper
def _longest_first(num_tokens_P: NDArray[np.int32], seq_len: int) -> NDArray[np.uint64]:
    """Pieces by length, the longest first, ties in order (counting sort): tokens << 32 | piece."""
    longest = np.uint64(seq_len)
    place_L = np.zeros(seq_len + 2, np.uint32)
    for tokens in num_tokens_P:
        place_L[longest - np.uint64(tokens) + _ONE] += np.uint32(1)
    for free in range(1, seq_len + 2):
        place_L[np.uint64(free)] += place_L[np.uint64(free - 1)]
    order_P = np.empty(num_tokens_P.size, np.uint64)
    for p in range(num_tokens_P.size):
        length = np.uint64(num_tokens_P[np.uint64(p)])
        order_P[place_L[longest - length]] = length << _HALF | np.uint64(p)
        place_L[longest - length] += np.uint32(1)
    return order_P


@kernel
def best_fit_bins(num_tokens_P: NDArray[np.int32], seq_len: int) -> tuple[NDArray[np.int32], int]:
    """Best fit decreasing: pieces from the longest (ties in order) to the bin that they leave fullest; the last one so
    left if several are equal.

    Returns:
        The bin of each piece, bins numbered as they were opened, and the number of bins.
    """
    order_P = _longest_first(num_tokens_P, seq_len)
    num_words = (seq_len >> 6) + 2
    words = np.zeros(num_words, np.uint64)
    groups = np.zeros((num_words >> 6) + 2, np.uint64)
    head_L = np.full(seq_len + 1, -1, np.int32)
    next_B = np.empty(num_tokens_P.size, np.int32)
    bin_P = np.empty(num_tokens_P.size, np.int32)
    none = np.uint64(seq_len + 1)
    num_bins = 0
    for entry in order_P:
        tokens = entry >> _HALF
        space = _tightest(words, groups, tokens, none)
        if space != none:
            b = head_L[space]
            following = next_B[np.uint64(b)]
            head_L[space] = following
            w = space >> _SIX
            words[w] ^= np.uint64(following < 0) << (space & _WORD)
            if words[w] == 0:
                groups[w >> _SIX] &= ~(_ONE << (w & _WORD))
        else:
            b = np.int32(num_bins)
            num_bins += 1
            space = np.uint64(seq_len)
        bin_P[entry & _LOW] = b
        left = space - tokens
        if left != 0:
            w = left >> _SIX
            words[w] |= _ONE << (left & _WORD)
            groups[w >> _SIX] |= _ONE << (w & _WORD)
            next_B[np.uint64(b)] = head_L[left]
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
def lay_out(pieces: PieceColumns, bin_P: NDArray[np.int32], sample_of_bin: NDArray[np.int32]) -> NDArray[np.int32]:
    """Pieces in order of their samples, those of a sample in document order.

    Args:
        pieces: in document order.
        bin_P: of each piece.
        sample_of_bin: number that each bin's sample gets.

    Returns:
        A row a piece, so that each is written in one place: document, token start in the document, tokens, sample,
        token start in the sample.
    """
    document_P, start_P, num_tokens_P = pieces
    num_samples = sample_of_bin.size
    count_B = np.zeros(num_samples, np.int32)
    for b in bin_P:
        count_B[np.uint64(b)] += 1
    place_N = np.zeros(num_samples + 1, np.int32)
    for b in range(num_samples):
        place_N[np.uint64(sample_of_bin[np.uint64(b)] + 1)] = count_B[np.uint64(b)]
    for n in range(num_samples):
        place_N[np.uint64(n + 1)] += place_N[np.uint64(n)]
    bins_B3 = np.zeros((num_samples, 3), np.int32)  # next row, tokens so far, sample: together, for one miss a piece
    for b in range(num_samples):
        n = sample_of_bin[np.uint64(b)]
        bins_B3[np.uint64(b), 0] = place_N[np.uint64(n)]
        bins_B3[np.uint64(b), 2] = n
    out_P5 = np.empty((bin_P.size, 5), np.int32)
    for i in range(bin_P.size):
        p = np.uint64(i)
        u = np.uint64(bin_P[p])
        row = np.uint64(bins_B3[u, 0])
        filled = bins_B3[u, 1]
        bins_B3[u, 0] += 1
        bins_B3[u, 1] = filled + num_tokens_P[p]
        out_P5[row, 0] = document_P[p]
        out_P5[row, 1] = start_P[p]
        out_P5[row, 2] = num_tokens_P[p]
        out_P5[row, 3] = bins_B3[u, 2]
        out_P5[row, 4] = filled
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
