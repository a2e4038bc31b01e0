"""What the flash kernels share: all segments of a batch one behind the other, with their borders in ``cu_seqlens``.

A kernel takes queries (N, H, C), keys and values (M, K, C) and the borders of S sequences in both; a sequence is causal
and aligned at its end: its last query sees all of its keys. That is FlashAttention's rule since 2.1, so the same call
serves queries that are a part of a sample (context parallelism).

Shape legend as in backend.py; N queries of the batch, M keys of the batch, S sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backend import (
    WHOLE,
    AttentionBackend,
    Available,
    LayoutOptions,
    query_pieces,
    segment_borders,
)

__all__ = ["VarlenKernel", "VarlenLayout", "cuda_missing", "varlen_backend"]

_MAX_HEAD_DIM = 256
_HALVES = (torch.float16, torch.bfloat16)
_MIN_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class VarlenLayout:
    """The borders of the sequences.

    Attributes:
        cu_query_S, cu_key_S: int32 on the device, S + 1 borders in the queries and in the keys, the last repeated to a
            fixed length if the layout knows one.
        max_query, max_key: no sequence is longer; constants of the run, not of the batch.
        key_stops: None: the keys are the samples. Else the first ``key_stops[i]`` keys of each sample, for every i,
            one behind the other (the query ranges need overlapping keys; these copies have a fixed size).
        seen_M: keys that belong to a query, of those copies; gradients of the others are undefined in the kernels.
    """

    cu_query_S: Tensor
    cu_key_S: Tensor
    max_query: int
    max_key: int
    key_stops: tuple[int, ...] | None = None
    seen_M: Tensor | None = None


VarlenKernel = Callable[[Tensor, Tensor, Tensor, VarlenLayout, float | None], Tensor]
"""``(q_NHC, k_MKC, v_MKC, layout, scale) -> out_NHC``, differentiable; H is a multiple of K."""


def _borders(lengths: list[int], num_sequences: int, device: torch.device) -> Tensor:
    borders = np.zeros(num_sequences + 1, np.int32)
    np.cumsum(lengths, out=borders[1 : len(lengths) + 1])
    borders[len(lengths) + 1 :] = borders[len(lengths)]
    return torch.from_numpy(borders).to(device, non_blocking=True)


def _num_sequences(needed: int, groups: int, options: LayoutOptions) -> int:
    """S, fixed by the most segments of a sample if that is known; ``groups``: samples x query ranges."""
    if options.max_segments is None:
        return needed
    gaps = 0 if options.query_ranges is None else 1
    fixed = groups * (options.max_segments + gaps)
    if needed > fixed:
        raise ValueError(f"{needed} sequences in {groups} ranges: more than max_segments = {options.max_segments} each")
    return fixed


def _prepare(
    segment_of_BT: NDArray[np.integer[Any]],
    device: torch.device,
    dtype: torch.dtype,
    options: LayoutOptions = WHOLE,
) -> VarlenLayout:
    del dtype
    num_samples, num_tokens = segment_of_BT.shape
    queries: list[int] = []
    keys: list[int] = []
    for borders in segment_borders(segment_of_BT):
        for pieces in query_pieces(borders, options):
            if options.query_ranges is not None:  # keys before those that the range's first query sees
                queries.append(0)
                keys.append(pieces[0].key_start)
            queries += [piece.query_stop - piece.query_start for piece in pieces]
            # Behind the first piece a range sees each key once: its sequences lie one behind the other.
            keys += [piece.key_stop - piece.key_start for piece in pieces]
    ranges = options.query_ranges or ((0, num_tokens),)
    num_sequences = _num_sequences(len(queries), num_samples * len(ranges), options)
    cu_query_S, cu_key_S = (_borders(lengths, num_sequences, device) for lengths in (queries, keys))
    longest = max(stop - start for start, stop in ranges)
    if options.query_ranges is None:
        return VarlenLayout(cu_query_S, cu_key_S, longest, num_tokens)
    stops = tuple(stop for _, stop in ranges)
    seen = np.repeat(np.array(queries) > 0, keys)
    seen_M = torch.from_numpy(seen).to(device, non_blocking=True)
    return VarlenLayout(cu_query_S, cu_key_S, longest, max(stops), stops, seen_M)


class _OnlySeen(torch.autograd.Function):
    """The identity; gradients of keys that no query sees are zero, whatever the kernel left there."""

    @staticmethod
    def forward(ctx: Any, x_MKC: Tensor, seen_M: Tensor) -> Tensor:
        ctx.save_for_backward(seen_M)
        return x_MKC.view_as(x_MKC)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (seen_M,) = ctx.saved_tensors
        return gradients[0].masked_fill(~seen_M[:, None, None], 0.0), None


def _packed_keys(x_BKTC: Tensor, layout: VarlenLayout) -> Tensor:
    """(B, K, T, C) -> (M, K, C)."""
    x_BTKC = x_BKTC.transpose(1, 2)
    if layout.key_stops is None or layout.seen_M is None:
        return x_BTKC.flatten(0, 1)
    copies = torch.cat([x_BTKC[:, :stop] for stop in layout.key_stops], dim=1).flatten(0, 1)
    return cast(Tensor, _OnlySeen.apply(copies, layout.seen_M))


def varlen_backend(
    name: str, kernel: VarlenKernel, available: Available, start: Callable[[torch.device], str]
) -> AttentionBackend:
    """A row of the table around a kernel over packed sequences; the other arguments are the row's."""

    def attend(
        q_BHtC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, layout: VarlenLayout, scale: float | None = None
    ) -> Tensor:
        q_NHC = q_BHtC.transpose(1, 2).flatten(0, 1)
        out_NHC = kernel(q_NHC, _packed_keys(k_BKTC, layout), _packed_keys(v_BKTC, layout), layout, scale)
        out_BtHC = out_NHC.view(q_BHtC.shape[0], q_BHtC.shape[2], *out_NHC.shape[1:])
        return out_BtHC.transpose(1, 2)

    return AttentionBackend(name, _prepare, attend, available, start)


def cuda_missing(device: torch.device, dtype: torch.dtype, head_dim: int | None) -> tuple[str, ...]:
    """What the flash kernels lack beside their packages."""
    missing = []
    if device.type != "cuda" or not torch.cuda.is_available():
        missing.append("a CUDA device")
    elif torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        missing.append("compute capability 8.0 (Ampere) or newer")
    if dtype not in _HALVES:
        missing.append(f"float16 or bfloat16 (not {str(dtype).removeprefix('torch.')})")
    if head_dim is not None and (head_dim % 8 or head_dim > _MAX_HEAD_DIM):
        missing.append(f"heads of a multiple of 8 numbers, at most {_MAX_HEAD_DIM} (these have {head_dim})")
    return tuple(missing)
