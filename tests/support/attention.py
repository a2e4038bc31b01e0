"""Attention by its definition, random packings, and plain kernels in place of the CUDA ones; apart from the tests, so
that processes need not import pytest.

Legend as in train/attention/backend.py.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

__all__ = ["dense_attention", "draw_qkv", "plain_flash_attn", "plain_torch_flash", "random_packing", "relative_error"]


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, segment_of_BT: np.ndarray, scale: float | None = None, queries: Any = None
) -> Tensor:
    """The definition, in the dtype of its arguments; ``queries``: where q lies in the sample, all if None."""
    segment_of = torch.from_numpy(segment_of_BT)
    index = torch.arange(segment_of.shape[1])
    where = index if queries is None else torch.as_tensor(queries)
    allowed = segment_of[:, where, None] == segment_of[:, None, :]
    allowed = (allowed & (where[:, None] >= index))[:, None]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v


def draw_qkv(
    shape: tuple[int, int, int, int], kv_heads: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu"
) -> list[Tensor]:
    """Normal queries, keys and values; shape = (B, H, T, C)."""
    generator = torch.Generator().manual_seed(seed)
    samples, _, tokens, width = shape
    shapes = [shape, (samples, kv_heads, tokens, width), (samples, kv_heads, tokens, width)]
    return [torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in shapes]


def random_packing(seed: int, num_samples: int, num_tokens: int, most: int) -> np.ndarray:
    """Segment numbers of samples with 1 to ``most`` segments each, numbered through as a batch does."""
    rng = np.random.default_rng(seed)
    rows, first = [], 0
    for _ in range(num_samples):
        cuts = rng.choice(np.arange(1, num_tokens), rng.integers(0, most), replace=False)
        row = first + np.searchsorted(np.sort(cuts), np.arange(num_tokens), side="right")
        rows.append(row)
        first = int(row[-1]) + 1
    return np.stack(rows).astype(np.int32)


def relative_error(mine: Tensor | None, right: Tensor | None) -> float:
    """Largest difference relative to the largest number."""
    assert mine is not None
    assert right is not None
    return float((mine.double().cpu() - right.double().cpu()).abs().max() / right.double().abs().max())


def _borders(cu_S: Tensor, longest: int, total: int) -> list[tuple[int, int]]:
    """Checks what a CUDA kernel would run over the end of, in silence."""
    assert cu_S.dtype is torch.int32
    borders = cu_S.tolist()
    assert borders[0] == 0
    assert borders[-1] == total, "rows behind the last border are never written"
    pairs = list(itertools.pairwise(borders))
    assert all(start <= stop <= start + longest for start, stop in pairs)
    return pairs


def plain_varlen(q: Tensor, k: Tensor, v: Tensor, cu: tuple[Tensor, Tensor], most: tuple[int, int], scale: Any) -> Any:
    """FlashAttention's rule for packed sequences, aligned at their ends, one sequence after the other."""
    pairs = zip(_borders(cu[0], most[0], len(q)), _borders(cu[1], most[1], len(k)), strict=True)
    outs = [torch.empty(0, *q.shape[1:])]
    for (start, stop), (first, last) in pairs:
        if start == stop:
            continue
        assert last - first >= stop - start, "queries that see nothing"
        pieces = [x.float().transpose(0, 1)[None] for x in (q[start:stop], k[first:last], v[first:last])]
        one_segment = np.zeros((1, last - first), np.int64)
        queries = torch.arange(last - first)[last - first - (stop - start) :]
        outs.append(dense_attention(*pieces, one_segment, scale, queries)[0].transpose(0, 1))
    return torch.cat(outs).to(q.dtype)


def _gradients(grad_out: Tensor, qkv: tuple[Tensor, ...], cu: Any, most: Any, scale: Any) -> list[Tensor]:
    """Gradients of :func:`plain_varlen`, by hand: torch's is out of reach below the dispatcher.

    Not a number where a kernel leaves them undefined: at keys without a query.
    """
    q, k, v = qkv
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    found = [torch.full_like(x, float("nan")) for x in qkv]
    pairs = zip(_borders(cu[0], most[0], len(q)), _borders(cu[1], most[1], len(k)), strict=True)
    for rows, columns in ((slice(*a), slice(*b)) for a, b in pairs if a[0] < a[1]):
        shape = (k.shape[1], q.shape[1] // k.shape[1], -1, q.shape[2])  # K, heads that share one, tokens, C
        queries, out = (x[rows].float().transpose(0, 1).reshape(shape) for x in (q, grad_out))
        keys, values = (x[columns].float().transpose(0, 1)[:, None] for x in (k, v))
        future = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool).triu(
            keys.shape[2] - queries.shape[2] + 1
        )
        weights = (queries @ keys.mT * scale).masked_fill(future, float("-inf")).softmax(-1)
        grad = out @ values.mT
        grad = weights * (grad - (grad * weights).sum(-1, keepdim=True)) * scale
        found[0][rows] = (grad @ keys).flatten(0, 1).transpose(0, 1).to(q.dtype)
        found[1][columns] = (grad.mT @ queries).sum(1).transpose(0, 1).to(q.dtype)
        found[2][columns] = (weights.mT @ out).sum(1).transpose(0, 1).to(q.dtype)
    return found


def _forward_op(  # noqa: PLR0917
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, dropout: float, causal: bool,
    return_debug_mask: bool, *, scale: Any = None, window_size_left: Any = None, window_size_right: Any = None,
    **unused: Any,
) -> Any:  # fmt: skip
    assert (dropout, causal, return_debug_mask) == (0.0, True, False)
    assert (window_size_left, window_size_right) == (-1, 0)
    assert all(value is None for value in unused.values())
    out = plain_varlen(q, k, v, (cu_q, cu_k), (max_q, max_k), scale)
    none = torch.empty(0)
    return out, torch.empty(q.shape[1], len(q)), none, none, none


def _backward_op(  # noqa: PLR0917
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor,
    max_q: int, max_k: int, dropout: float, causal: bool, *rest: Any, scale: Any = None, **windows: Any,
) -> Any:  # fmt: skip
    del out, lse, rest
    assert (dropout, causal, windows) == (0.0, True, {"window_size_left": -1, "window_size_right": 0})
    return tuple(_gradients(grad_out, (q, k, v), (cu_q, cu_k), (max_q, max_k), scale))


@contextlib.contextmanager
def plain_torch_flash() -> Iterator[None]:
    """torch's flash operators on the CPU: ``torch.nn.attention.varlen`` runs as it is, down to them."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", _forward_op, "CPU")
        library.impl("_flash_attention_backward", _backward_op, "CPU")
        yield


class _PlainFlash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cu: Any, most: Any, scale: Any) -> Tensor:  # noqa: PLR0917
        ctx.save_for_backward(q, k, v)
        ctx.rest = cu, most, scale
        return plain_varlen(q, k, v, cu, most, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *_gradients(gradients[0], ctx.saved_tensors, *ctx.rest), None, None, None


def flash_attn_varlen_func(  # noqa: PLR0917
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """The signature of flash-attn 2.8."""
    assert (dropout_p, causal, window_size, softcap, alibi_slopes) == (0.0, True, (-1, -1), 0.0, None)
    assert deterministic is torch.are_deterministic_algorithms_enabled()
    assert (return_attn_probs, block_table) == (False, None)
    cu, most = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return _PlainFlash.apply(q, k, v, cu, most, softmax_scale)


@contextlib.contextmanager
def plain_flash_attn() -> Iterator[None]:
    """A module ``flash_attn`` with a plain kernel behind flash-attn 2's signature."""
    from train.attention import flash_attn as row

    modules = {}
    for name in ("flash_attn", "flash_attn_2_cuda"):
        modules[name] = types.ModuleType(name)
        modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    modules["flash_attn"].flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    modules["flash_attn"].__version__ = "2.8.3"  # type: ignore[attr-defined]
    row._varlen_function.cache_clear()
    with mock.patch.dict(sys.modules, modules):
        yield
    row._varlen_function.cache_clear()
