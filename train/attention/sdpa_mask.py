"""torch's scaled_dot_product_attention with a dense mask: every device and dtype, T x T numbers a sample.

Shape legend as in backend.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .backend import WHOLE, AttentionBackend, Availability, LayoutOptions, query_index, share_heads

__all__ = ["SDPA_MASK"]


def _prepare(
    segment_of_BT: NDArray[np.integer[Any]],
    device: torch.device,
    dtype: torch.dtype,
    options: LayoutOptions = WHOLE,
) -> Tensor:
    """Additive mask (B, 1, t, T): 0 where attention is allowed, -inf elsewhere, already in the compute dtype.

    A boolean mask would be turned into this one inside every layer's kernel, forward and backward.
    """
    segment_of = torch.from_numpy(np.ascontiguousarray(segment_of_BT)).to(device)
    query_t = torch.from_numpy(query_index(segment_of.shape[1], options)).to(device)
    key_T = torch.arange(segment_of.shape[1], device=device)
    allowed_BtT = segment_of[:, query_t, None] == segment_of[:, None, :]
    allowed_BtT &= query_t[:, None] >= key_T
    mask_BtT = torch.full(allowed_BtT.shape, float("-inf"), dtype=dtype, device=device)
    return mask_BtT.masked_fill_(allowed_BtT, 0.0)[:, None]


def _attend(q_BHtC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, mask_B1tT: Tensor, scale: float | None = None) -> Tensor:
    keys, values = share_heads(q_BHtC, k_BKTC), share_heads(q_BHtC, v_BKTC)
    return scaled_dot_product_attention(q_BHtC, keys, values, attn_mask=mask_B1tT, scale=scale)


def _available(device: torch.device, dtype: torch.dtype, head_dim: int | None = None) -> Availability:
    del device, dtype, head_dim
    return Availability()


SDPA_MASK = AttentionBackend("sdpa_mask", _prepare, _attend, _available)
"""The dense mask."""
