"""torch's flex_attention with a block mask of the segments: fused on CUDA in every dtype, also without flash kernels.

On the CPU it has no backward pass; its forward values are tested there. The CUDA kernels have never run here.

Shape legend as in backend.py; I blocks of queries, J blocks of keys.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backend import WHOLE, AttentionBackend, Availability, LayoutOptions, query_index, segment_borders

__all__ = ["FLEX"]

_BLOCK = 128
_MIN_HEAD_DIM = 16


def _ordered(chosen_BIJ: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """Number of chosen key blocks of each query block, and their indices, the others behind: as BlockMask wants it."""
    counts = chosen_BIJ.sum(-1, dtype=np.int32)[:, None]
    indices = np.argsort(~chosen_BIJ, axis=-1, kind="stable").astype(np.int32)[:, None]
    return _send(counts, device), _send(indices, device)


def _send(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def _blocks(
    first_Bt: NDArray[np.int64], last_t: NDArray[np.int64], num_tokens: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which key blocks a query block must look at with the mask, and which it sees whole: two (B, I, J).

    Query i sees the keys from ``first_Bt[:, i]`` through ``last_t[i]``.
    """
    num_samples, num_queries = first_Bt.shape
    num_query_blocks, num_key_blocks = -(-num_queries // _BLOCK), -(-num_tokens // _BLOCK)
    padded_t = np.minimum(np.arange(num_query_blocks * _BLOCK), num_queries - 1)
    first_BIQ = first_Bt[:, padded_t].reshape(num_samples, num_query_blocks, _BLOCK)
    last_IQ = last_t[padded_t].reshape(num_query_blocks, _BLOCK)
    some = np.empty((num_samples, num_query_blocks, num_key_blocks), np.bool_)
    every = np.empty_like(some)
    for block in range(num_key_blocks):
        start, stop = block * _BLOCK, (block + 1) * _BLOCK
        some[:, :, block] = ((first_BIQ < stop) & (last_IQ >= start)).any(-1)
        # Never a block that sticks out over the end: no query sees keys there.
        every[:, :, block] = ((first_BIQ <= start) & (last_IQ >= stop - 1)).all(-1)
    return some & ~every, every


def _prepare(
    segment_of_BT: NDArray[np.integer[Any]],
    device: torch.device,
    dtype: torch.dtype,
    options: LayoutOptions = WHOLE,
) -> Any:
    """A BlockMask, made on the host: T x T numbers are never laid out."""
    del dtype
    from torch.nn.attention.flex_attention import BlockMask

    num_tokens = segment_of_BT.shape[1]
    index_t = query_index(num_tokens, options)
    first_BT = np.empty(segment_of_BT.shape, np.int64)
    for row_T, borders in zip(first_BT, segment_borders(segment_of_BT), strict=True):
        row_T[:] = np.repeat(borders[:-1], np.diff(borders))
    first_Bt = first_BT[:, index_t]
    partial_BIJ, full_BIJ = _blocks(first_Bt, index_t, num_tokens)
    first, last = _send(first_Bt, device), _send(index_t, device)

    def sees(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del head
        return (key >= first[sample, query]) & (key <= last[query])

    return BlockMask.from_kv_blocks(
        *_ordered(partial_BIJ, device),
        *_ordered(full_BIJ, device),
        BLOCK_SIZE=_BLOCK,
        mask_mod=sees,
        seq_lengths=(len(index_t), num_tokens),
    )


@functools.cache
def _kernel(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return cast(Callable[..., Tensor], torch.compile(flex_attention) if compiled else flex_attention)


def _attend(q_BHtC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, block_mask: Any, scale: float | None = None) -> Tensor:
    kernel = _kernel(q_BHtC.is_cuda)  # on the CPU the plain form: only values are wanted there, not speed
    grouped = q_BHtC.shape[1] != k_BKTC.shape[1]
    return kernel(q_BHtC, k_BKTC, v_BKTC, block_mask=block_mask, scale=scale, enable_gqa=grouped)


def _available(device: torch.device, dtype: torch.dtype, head_dim: int | None = None) -> Availability:
    del dtype
    missing = []
    if device.type != "cuda" or not torch.cuda.is_available():
        missing.append("a CUDA device (on the CPU flex_attention has no backward pass)")
    if importlib.util.find_spec("triton") is None:
        missing.append("the package triton, which CUDA builds of torch bring")
    if head_dim is not None and head_dim < _MIN_HEAD_DIM:
        missing.append(f"heads of at least {_MIN_HEAD_DIM} numbers (these have {head_dim})")
    return Availability(tuple(missing))


FLEX = AttentionBackend("flex", _prepare, _attend, _available)
"""flex_attention."""
