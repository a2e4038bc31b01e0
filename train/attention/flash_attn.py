"""The package flash-attn 2 (extra ``[flash]``).

Its CUDA kernels have never run here; packing, arguments and gradients are tested with plain ones in their place.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from .backend import Availability
from .varlen import VarlenLayout, cuda_missing, varlen_backend

__all__ = ["FLASH_ATTN"]

_EXTENSION = "flash_attn_2_cuda"


@functools.cache
def _varlen_function() -> Callable[..., Tensor]:
    return cast(Callable[..., Tensor], importlib.import_module("flash_attn").flash_attn_varlen_func)


def _kernel(q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor, layout: VarlenLayout, scale: float | None) -> Tensor:
    return _varlen_function()(
        q_NHC, k_MKC, v_MKC, layout.cu_query_S, layout.cu_key_S, layout.max_query, layout.max_key,
        softmax_scale=scale, causal=True, deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


def _available(device: torch.device, dtype: torch.dtype, head_dim: int | None = None) -> Availability:
    missing = cuda_missing(device, dtype, head_dim)
    if importlib.util.find_spec(_EXTENSION) is None:
        return Availability((*missing, "the package flash-attn"), "pip install 'tokenreel[flash]'")
    return Availability(missing)


def _start(device: torch.device) -> str:
    del device
    return f"flash-attn {getattr(importlib.import_module('flash_attn'), '__version__', 'of unknown version')}"


FLASH_ATTN = varlen_backend("flash_attn", _kernel, _available, _start)
"""flash-attn 2."""
