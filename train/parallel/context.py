"""Context parallelism: the tokens of every sample spread over a group, attention exact and document-masked.

Two methods, one table. ``zigzag`` gathers keys and values (Llama 3 technical report, 2024, section 3.3.2): of 2 x ranks
chunks, rank r holds chunk r and chunk 2 x ranks - 1 - r, which makes the causal work equal. ``ulysses`` (Jacobs et al.,
2023) exchanges heads for tokens: each rank attends over whole samples with some of the heads.

Shape legend: B samples, T tokens of a sample, t = T / ranks, R ranks, H query heads, K key/value heads, C numbers of a
head, h heads of a rank of queries, keys and values together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..attention import AttentionBackend, LayoutOptions
from .refusals import context_refusals, refuse

__all__ = ["CONTEXT_METHODS", "ContextMethod", "check_context_sizes", "context_attention", "context_tokens"]

_Ranges = tuple[tuple[int, int], ...]
_Group = dist.ProcessGroup
_WHOLE = LayoutOptions()


@dataclass(frozen=True)
class ContextMethod:
    """One row of the table.

    Attributes:
        ranges: ``(seq_len, rank, ranks) -> token ranges`` that a rank holds, in its order.
        wrap: ``(backend, ranges, group) -> backend`` over this rank's tokens.
    """

    ranges: Callable[[int, int, int], _Ranges]
    wrap: Callable[[AttentionBackend, _Ranges, _Group], AttentionBackend]


class _GatherKeys(torch.autograd.Function):
    """Keys and values of all ranks' tokens in the samples' order; backward their gradients summed, each to its rank."""

    @staticmethod
    def forward(ctx: Any, k_BKtC: Tensor, v_BKtC: Tensor, group: _Group) -> tuple[Tensor, Tensor]:
        ctx.group = group
        own = torch.stack((k_BKtC, v_BKtC))
        parts = own.new_empty((group.size(), *own.shape))
        dist.all_gather(list(parts.unbind()), own, group=group)
        early, late = parts.chunk(2, dim=4)  # (R, 2, B, K, T / 2R, C)
        whole = torch.cat((early, late.flip(0))).movedim(0, 3).flatten(3, 4)
        return whole[0], whole[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        ranks = ctx.group.size()
        dtype = gradients[0].dtype
        whole = torch.stack(gradients).float()  # every rank adds to them: not in half precision
        chunks = torch.stack(whole.chunk(2 * ranks, dim=3))  # (2R, 2, B, K, T / 2R, C)
        early, late = chunks.chunk(2)
        parts = torch.cat((early, late.flip(0)), dim=4)  # (R, 2, B, K, t, C)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, list(parts.unbind()), group=ctx.group)
        k_BKtC, v_BKtC = own.to(dtype)
        return k_BKtC, v_BKtC, None


class _Exchange(torch.autograd.Function):
    """(R, ...): block r goes to rank r, and the block of rank r comes in its place. It is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, group: _Group) -> Tensor:
        ctx.group = group
        return _exchange(blocks, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchange(gradients[0], ctx.group), None


def _exchange(blocks: Tensor, group: _Group) -> Tensor:
    blocks = blocks.contiguous()
    out = torch.empty_like(blocks)
    dist.all_to_all_single(out, blocks, group=group)
    return out


def _prepare_whole(backend: AttentionBackend, seq_len: int, ranges: _Ranges | None) -> Callable[..., Any]:
    """``prepare`` of segment numbers of whole samples, for the queries of ``ranges`` (None: all)."""

    def prepare(
        segment_of_BT: NDArray[np.integer[Any]],
        device: torch.device,
        dtype: torch.dtype,
        options: LayoutOptions = _WHOLE,
    ) -> Any:
        if segment_of_BT.shape[1] != seq_len:
            raise ValueError(f"segment numbers of {segment_of_BT.shape[1]} tokens, not of whole samples ({seq_len})")
        return backend.prepare(segment_of_BT, device, dtype, replace(options, query_ranges=ranges))

    return prepare


def _zigzag_ranges(seq_len: int, rank: int, size: int) -> _Ranges:
    chunk, mirrored = seq_len // (2 * size), 2 * size - 1 - rank
    return (rank * chunk, (rank + 1) * chunk), (mirrored * chunk, (mirrored + 1) * chunk)


def _zigzag(backend: AttentionBackend, ranges: _Ranges, group: _Group) -> AttentionBackend:
    seq_len = (ranges[0][1] - ranges[0][0]) * 2 * group.size()

    def attend(q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor, layout: Any, scale: float | None = None) -> Tensor:
        k_BKTC, v_BKTC = cast(tuple[Tensor, Tensor], _GatherKeys.apply(k_BKtC, v_BKtC, group))
        return backend.attend(q_BHtC, k_BKTC, v_BKTC, layout, scale)

    return replace(backend, prepare=_prepare_whole(backend, seq_len, ranges), attend=attend)


def _ulysses_ranges(seq_len: int, rank: int, size: int) -> _Ranges:
    piece = seq_len // size
    return ((rank * piece, (rank + 1) * piece),)


def _ulysses(backend: AttentionBackend, ranges: _Ranges, group: _Group) -> AttentionBackend:
    ranks = group.size()
    seq_len = (ranges[0][1] - ranges[0][0]) * ranks

    def attend(q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor, layout: Any, scale: float | None = None) -> Tensor:
        heads, kv_heads = q_BHtC.shape[1], k_BKtC.shape[1]
        check_context_sizes("ulysses", {"heads": heads, "kv_heads": kv_heads}, ranks)
        by_rank = torch.cat([torch.stack(x.chunk(ranks, dim=1)) for x in (q_BHtC, k_BKtC, v_BKtC)], dim=2)
        tokens = cast(Tensor, _Exchange.apply(by_rank, group))  # (R, B, h, t, C)
        whole = tokens.movedim(0, 2).flatten(2, 3)  # (B, h, T, C)
        q, k, v = torch.split(whole, [heads // ranks, kv_heads // ranks, kv_heads // ranks], dim=1)
        out = backend.attend(q, k, v, layout, scale)
        pieces = torch.stack(out.chunk(ranks, dim=2))  # (R, B, H / R, t, C)
        return cast(Tensor, _Exchange.apply(pieces, group)).transpose(0, 1).flatten(1, 2)

    return replace(backend, prepare=_prepare_whole(backend, seq_len, None), attend=attend)


CONTEXT_METHODS: dict[str, ContextMethod] = {
    "zigzag": ContextMethod(_zigzag_ranges, _zigzag),
    "ulysses": ContextMethod(_ulysses_ranges, _ulysses),
}
"""Every method. An entry needs its rows in tests/distributed/test_context_attention.py."""


def check_context_sizes(method: str, sizes: dict[str, int], size: int) -> None:
    """Refuse what does not cut evenly.

    Args:
        method: a row of ``CONTEXT_METHODS``.
        sizes: ``seq_len``, ``heads`` and ``kv_heads`` (of one tensor rank), as far as they are known.
        size: ranks of the context dimension.

    Raises:
        ConfigError: the sizes are named.
    """
    refuse(context_refusals(method, sizes, size))


def context_tokens(method: str, seq_len: int, rank: int, size: int) -> NDArray[np.int64]:
    """The tokens of every sample that a rank holds: (seq_len / size,) indices in the rank's order.

    Args:
        method: a row of ``CONTEXT_METHODS``. seq_len: T. rank, size: in the context dimension.

    Raises:
        ConfigError: ``seq_len`` does not cut evenly.
    """
    check_context_sizes(method, {"seq_len": seq_len}, size)
    ranges = CONTEXT_METHODS[method].ranges(seq_len, rank, size)
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges])


def context_attention(
    backend: AttentionBackend, method: str, group: dist.ProcessGroup, seq_len: int
) -> AttentionBackend:
    """``backend`` over this rank's tokens: what one process would compute, and the same gradients.

    Its ``prepare`` gets the segment numbers of whole samples (B, T); its ``attend`` gets and returns what lies at
    :func:`context_tokens`, in that order. Every rank of the group must call it, with as many samples.

    Args:
        backend: a row of ``ATTENTION``. method: a row of ``CONTEXT_METHODS``. group: of the context dimension.
        seq_len: T.

    Raises:
        ConfigError: ``seq_len`` does not cut evenly; ``attend`` raises it for the heads.
    """
    check_context_sizes(method, {"seq_len": seq_len}, group.size())
    if group.size() == 1:
        return backend
    row = CONTEXT_METHODS[method]
    return row.wrap(backend, row.ranges(seq_len, group.rank(), group.size()), group)
