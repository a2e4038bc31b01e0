"""Packing documents into samples of ``seq_len`` tokens.

=========== ====================================================================== ================ =================
strategy    how                                                                    fitting ones cut padding
=========== ====================================================================== ================ =================
best_fit    pieces, longest first, each go where the least space would be left     none             0.02-0.07 %
first_fit   stream order, the first of 64 open bins that has room                  none             0.3-2.5 %
concat      documents end to end, chunked: what most trainers do                   9-30 %           a window's last
=========== ====================================================================== ================ =================

A document that fits a sample is never cut but by ``concat``; a longer one is split at multiples of ``seq_len`` (by
``concat`` wherever a sample ends). Only a document's first piece begins with BOS. Windows of whole documents are
packed on their own, so packing is local and parallel; 8,192 documents are enough for the figures above.

Legend: D documents of a window, P pieces, N samples, S segments (pieces and paddings).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernels.pack import (
    PieceColumns,
    best_fit_bins,
    concat_bins,
    first_fit_bins,
    lay_out,
    shuffled,
    split_documents,
    split_stream,
)

__all__ = ["PACKERS", "PackedWindow", "Packer", "pack_window", "packing_counts", "shards_of_windows", "window_borders"]


@dataclass(frozen=True)
class Packer:
    """A strategy.

    Attributes:
        split: (tokens of each document, seq_len) to pieces in document order, none longer than ``seq_len``.
        choose: (tokens of each piece, seq_len) to (bin of each piece, number of bins).
        cuts_fitting: whether documents that fit a sample may be cut.
    """

    split: Callable[[NDArray[np.int64], int], PieceColumns]
    choose: Callable[[NDArray[np.int32], int], tuple[NDArray[np.int32], int]]
    cuts_fitting: bool = False


PACKERS: Mapping[str, Packer] = {
    "best_fit": Packer(split_documents, best_fit_bins),
    "first_fit": Packer(split_documents, first_fit_bins),
    "concat": Packer(split_stream, concat_bins, cuts_fitting=True),
}
"""strategy -> how it splits and chooses."""


@dataclass(frozen=True)
class PackedWindow:
    """Where the pieces of a window's documents lie; pieces sorted by sample, then by place in it.

    Attributes:
        num_samples: samples of the window.
        document_P: number of the document in the window.
        document_token_start_P: first token of the piece, counted in the document.
        num_tokens_P: tokens of the piece, at least 1.
        sample_P: number of the sample in the window.
        token_start_P: place of the first token in the sample.
    """

    num_samples: int
    document_P: NDArray[np.int32]
    document_token_start_P: NDArray[np.int32]
    num_tokens_P: NDArray[np.int32]
    sample_P: NDArray[np.int32]
    token_start_P: NDArray[np.int32]

    def padding_tokens(self, seq_len: int) -> int:
        """Tokens of the window's samples that belong to no document."""
        return self.num_samples * seq_len - int(self.num_tokens_P.sum())


def pack_window(num_tokens_D: NDArray[np.int64], seq_len: int, key: int, strategy: str = "best_fit") -> PackedWindow:
    """Pack the documents of one window.

    The result is a function of the arguments alone. Samples are numbered by a keyed permutation, because packers fill
    them in order of length, and a slice of a shard should look like the whole; pieces of a sample stay in document
    order.

    Args:
        num_tokens_D: tokens of each document, BOS and EOS included, all >= 1.
        seq_len: tokens of a sample.
        key: keys the order of the samples.
        strategy: key of ``PACKERS``.

    Raises:
        ValueError: a document without tokens, or with 2^31 and more.
    """
    num_tokens_D = np.asarray(num_tokens_D, np.int64)
    if len(num_tokens_D) and not 1 <= int(num_tokens_D.min()) <= int(num_tokens_D.max()) < 1 << 31:
        raise ValueError("every document needs at least one token, and fewer than 2^31")
    packer = PACKERS[strategy]
    pieces = packer.split(num_tokens_D, seq_len)
    bin_P, num_samples = packer.choose(pieces[2], seq_len)
    sample_of_bin = shuffled(num_samples, np.uint64(key & 0xFFFFFFFFFFFFFFFF))
    rows_P5 = lay_out(pieces, bin_P, sample_of_bin)
    return PackedWindow(num_samples, rows_P5[:, 0], rows_P5[:, 1], rows_P5[:, 2], rows_P5[:, 3], rows_P5[:, 4])


def packing_counts(packed: PackedWindow, num_tokens_D: NDArray[np.int64], seq_len: int) -> dict[str, int]:
    """What packing did to a window's documents.

    Returns:
        ``samples``; ``padding``, in tokens; ``long_documents`` of more than ``seq_len`` tokens and the ``long_pieces``
        into which they were split; ``fitting_cut``: documents that would fit one sample and lie in several.
    """
    pieces_D = np.bincount(packed.document_P, minlength=len(num_tokens_D))
    long_D = num_tokens_D > seq_len
    return {
        "samples": packed.num_samples,
        "padding": packed.padding_tokens(seq_len),
        "long_documents": int(long_D.sum()),
        "long_pieces": int(pieces_D[long_D].sum()),
        "fitting_cut": int((pieces_D[~long_D] > 1).sum()),
    }


def window_borders(num_tokens_D: NDArray[np.int64], max_documents: int, max_tokens: int) -> NDArray[np.int64]:
    """Cut a sequence of documents into windows of at most ``max_documents`` documents and ``max_tokens`` tokens (one
    document always fits): borders b, window i = documents [b[i], b[i + 1]). No document: the one border 0.
    """
    stop_D = np.cumsum(num_tokens_D)
    borders = [0]
    while borders[-1] < len(num_tokens_D):
        start = borders[-1]
        before = int(stop_D[start - 1]) if start else 0
        by_tokens = int(np.searchsorted(stop_D, before + max_tokens, side="right"))
        borders.append(max(start + 1, min(start + max_documents, by_tokens, len(num_tokens_D))))
    return np.array(borders, np.int64)


def shards_of_windows(samples: list[int], most_samples: int) -> list[int]:
    """Cut windows into shards: shard of each window. As few shards as the size allows, as equal as whole windows allow.

    Args:
        samples: samples of each window.
        most_samples: samples that a shard aims at; a single larger window is a shard of its own.
    """
    whole = sum(samples)
    num_shards = max(1, -(-whole // max(most_samples, 1)))
    shards, shard, filled, before = [], 0, 0, 0
    for count in samples:
        middle = before + count / 2
        wanted = min(int(middle * num_shards / whole), num_shards - 1)
        if filled and (wanted > shard or filled + count > most_samples):
            shard, filled = shard + 1, 0
        shards.append(shard)
        filled += count
        before += count
    return shards
