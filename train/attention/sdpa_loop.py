"""torch's scaled_dot_product_attention once a segment: every device and dtype, no work between segments.

Shape legend as in backend.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .backend import (
    WHOLE,
    AttentionBackend,
    Availability,
    LayoutOptions,
    Piece,
    query_pieces,
    segment_borders,
    share_heads,
)

__all__ = ["SDPA_LOOP"]


@dataclass(frozen=True)
class _Run:
    """Consecutive samples ``[first, stop)`` with the same pieces.

    Attributes:
        pieces: with the mask of those whose first query sees earlier keys, None for the others.
    """

    first: int
    stop: int
    pieces: list[tuple[Piece, Tensor | None]]


def _staircase(pieces: list[Piece], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, int]:
    """One additive mask that holds the masks of all pieces as views, and its number of earlier keys.

    Query i may see key j if j <= i + earlier keys; a piece with fewer earlier keys begins at a later column.
    """
    earlier = max((piece.num_earlier for piece in pieces), default=0)
    if not earlier:
        return torch.empty(0), 0
    rows = max(piece.query_stop - piece.query_start for piece in pieces if piece.num_earlier)
    mask = torch.full((rows, earlier + rows), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(earlier + 1), earlier


def _prepare(
    segment_of_BT: NDArray[np.integer[Any]],
    device: torch.device,
    dtype: torch.dtype,
    options: LayoutOptions = WHOLE,
) -> list[_Run]:
    all_borders = segment_borders(segment_of_BT)
    all_pieces = [list(itertools.chain(*query_pieces(borders, options))) for borders in all_borders]
    mask, most_earlier = _staircase(list(itertools.chain(*all_pieces)), device, dtype)
    runs: list[_Run] = []
    for sample, (borders, pieces) in enumerate(zip(all_borders, all_pieces, strict=True)):
        if runs and all_borders[runs[-1].first] == borders:
            runs[-1] = _Run(runs[-1].first, sample + 1, runs[-1].pieces)
            continue
        masks = [_view(mask, piece, most_earlier) if piece.num_earlier else None for piece in pieces]
        runs.append(_Run(sample, sample + 1, list(zip(pieces, masks, strict=True))))
    return runs


def _view(mask: Tensor, piece: Piece, most_earlier: int) -> Tensor:
    first = most_earlier - piece.num_earlier
    num_keys = piece.key_stop - piece.key_start
    return mask[: piece.query_stop - piece.query_start, first : first + num_keys]


def _attend(q_BHtC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, runs: list[_Run], scale: float | None = None) -> Tensor:
    keys, values = share_heads(q_BHtC, k_BKTC), share_heads(q_BHtC, v_BKTC)
    rows = []
    for run in runs:
        samples = slice(run.first, run.stop)
        outs = [
            scaled_dot_product_attention(
                q_BHtC[samples, :, piece.query_start : piece.query_stop],
                keys[samples, :, piece.key_start : piece.key_stop],
                values[samples, :, piece.key_start : piece.key_stop],
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
            )
            for piece, mask in run.pieces
        ]
        rows.append(outs[0] if len(outs) == 1 else torch.cat(outs, dim=2))
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=0)


def _available(device: torch.device, dtype: torch.dtype, head_dim: int | None = None) -> Availability:
    del device, dtype, head_dim
    return Availability()


SDPA_LOOP = AttentionBackend("sdpa_loop", _prepare, _attend, _available)
"""One call a segment."""
