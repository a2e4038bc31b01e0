"""Segments of packed pieces: one for each piece of a document, and one more at each cut inside it.

A document's tokens stay one run, whatever was cut from it; where something was cut, one segment ends and the next
begins, so that every segment stands for one contiguous range of the document's text.

Legend: D documents of a window, T tokens of its documents, P pieces, G gaps, S segments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GAP_DTYPE", "Gaps", "PieceRanges", "SegmentColumns", "split_at_gaps", "window_gaps"]

GAP_DTYPE = np.dtype([("record", "<i8"), ("token", "<i8"), ("num_bytes", "<i8")])
"""A cut as tokenising leaves it: ``num_bytes`` of the document are missing in front of its own token ``token``. Rows
are sorted by record and token; what is cut behind the last token leaves no gap."""


@dataclass(frozen=True)
class Gaps:
    """Gaps of a window: ``place_G`` (ascending) tokens of the window in front of which ``num_bytes_G`` are missing."""

    place_G: NDArray[np.int64]
    num_bytes_G: NDArray[np.int64]


@dataclass(frozen=True)
class PieceRanges:
    """Pieces of a window's documents, all int64 (P).

    Attributes:
        sample_P, token_start_P: sample, and place of the first token in it.
        document_P, document_token_start_P: document, and tokens of it before the piece (BOS counted).
        num_tokens_P: tokens, BOS and EOS included.
        base_P: place of the document's first own token among the window's T tokens.
        start_P, stop_P: own tokens there.
        begins_P: 1 where the piece begins with BOS, else 0.
    """

    sample_P: NDArray[np.int64]
    token_start_P: NDArray[np.int64]
    document_P: NDArray[np.int64]
    document_token_start_P: NDArray[np.int64]
    num_tokens_P: NDArray[np.int64]
    base_P: NDArray[np.int64]
    start_P: NDArray[np.int64]
    stop_P: NDArray[np.int64]
    begins_P: NDArray[np.int64]


@dataclass(frozen=True)
class SegmentColumns:
    """Segments (S) in the order of their pieces: what ``make_segments`` wants, and the sample of each."""

    sample_S: NDArray[np.int64]
    token_start_S: NDArray[np.int64]
    document_S: NDArray[np.int64]
    document_token_start_S: NDArray[np.int64]
    byte_start_S: NDArray[np.int64]
    byte_count_S: NDArray[np.int64]


def window_gaps(
    record_D: NDArray[np.integer[Any]],
    file_D: NDArray[np.int64],
    start_D: NDArray[np.int64],
    gaps_of_file: dict[int, NDArray[Any]],
) -> Gaps:
    """Gaps of the window's documents, whose own tokens begin at ``start_D``; ``gaps_of_file`` has rows of
    ``GAP_DTYPE``."""
    places, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for file, rows_G in gaps_of_file.items():
        mine_D = np.flatnonzero(file_D == file)
        if not len(rows_G) or not len(mine_D):
            continue
        records = record_D[mine_D].astype(np.int64)
        order = np.argsort(records, kind="stable")
        found = np.searchsorted(records[order], rows_G["record"])
        inside = found < len(records)
        inside[inside] = records[order][found[inside]] == rows_G["record"][inside]
        document_G = mine_D[order[found[inside]]]
        places.append(start_D[document_G] + rows_G["token"][inside])
        sizes.append(rows_G["num_bytes"][inside])
    place_G, num_bytes_G = np.concatenate(places), np.concatenate(sizes)
    order = np.argsort(place_G, kind="stable")
    return Gaps(place_G[order], num_bytes_G[order])


def split_at_gaps(
    pieces: PieceRanges, gaps: Gaps, bytes_before: Callable[[NDArray[np.int64]], NDArray[np.int64]]
) -> SegmentColumns:
    """The segments of all pieces.

    Args:
        pieces: in the order wanted.
        gaps: of the same window.
        bytes_before: bytes of the window's tokens before each of some places among them (0 .. T).
    """
    first_P = np.searchsorted(gaps.place_G, pieces.start_P, side="right")
    last_P = np.maximum(np.searchsorted(gaps.place_G, pieces.stop_P, side="left"), first_P)
    parts_P = last_P - first_P + 1
    piece_S = np.repeat(np.arange(len(parts_P)), parts_P)
    part_S = np.arange(len(piece_S)) - (np.cumsum(parts_P) - parts_P)[piece_S]
    start_S = pieces.start_P[piece_S].copy()
    inner = part_S > 0
    start_S[inner] = gaps.place_G[(first_P[piece_S] + part_S - 1)[inner]]
    stop_S = pieces.stop_P[piece_S].copy()
    stop_S[:-1][inner[1:]] = start_S[1:][inner[1:]]
    missing = np.concatenate([[0], np.cumsum(gaps.num_bytes_G)])
    base_S = pieces.base_P[piece_S]
    # A piece of BOS or EOS alone has no bytes, and at its place may begin the next document, gap first.
    empty_S = start_S == stop_S
    gap_S = missing[
        np.where(
            empty_S,
            np.searchsorted(gaps.place_G, start_S, side="left"),
            np.searchsorted(gaps.place_G, start_S, side="right"),
        )
    ]
    gap_S = gap_S - missing[np.searchsorted(gaps.place_G, base_S, side="left")]
    shift_S = np.where(inner, start_S - pieces.start_P[piece_S] + pieces.begins_P[piece_S], 0)
    before_S = bytes_before(start_S)
    return SegmentColumns(
        pieces.sample_P[piece_S],
        pieces.token_start_P[piece_S] + shift_S,
        pieces.document_P[piece_S],
        pieces.document_token_start_P[piece_S] + shift_S,
        before_S - bytes_before(base_S) + gap_S,
        bytes_before(stop_S) - before_S,
    )
