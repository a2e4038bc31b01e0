"""torch.nn.attention.varlen: the flash kernels that torch brings, or FlashAttention 3 and 4 if they are installed.

The CUDA kernels have never run here; packing, arguments and gradients are tested with plain ones in their place.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata

import torch
from torch import Tensor

from .backend import Availability
from .varlen import VarlenLayout, cuda_missing, varlen_backend

__all__ = ["TORCH_VARLEN", "newer_kernels"]

_CAUSAL = (-1, 0)
_HOPPER, _BLACKWELL = 9, 10


def _kernel(q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor, layout: VarlenLayout, scale: float | None) -> Tensor:
    # Here, since importing it costs four seconds of torch's compiler.
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q_NHC, k_MKC, v_MKC, layout.cu_query_S, layout.cu_key_S, layout.max_query, layout.max_key,
        scale=scale, window_size=_CAUSAL, enable_gqa=q_NHC.shape[1] != k_MKC.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def _available(device: torch.device, dtype: torch.dtype, head_dim: int | None = None) -> Availability:
    return Availability(cuda_missing(device, dtype, head_dim))


def _has_distribution(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def newer_kernels(capability_major: int) -> list[str]:
    """Installed kernels that serve this generation of cards, best first; torch's own serve where none does.

    FlashAttention 3 is a module without a package on the index, 4 comes with the extra ``[flash4]``.
    """
    found = []
    if capability_major == _HOPPER and importlib.util.find_spec("flash_attn_interface") is not None:
        found.append("FA3")
    if capability_major in (_HOPPER, _BLACKWELL) and _has_distribution("flash-attn-4"):
        found.append("FA4")
    return found


def _start(device: torch.device) -> str:
    """Let the newest installed kernels serve; they replace torch's for the whole process."""
    from torch.nn import attention

    active = attention.current_flash_attention_impl()
    if active is not None:
        return f"kernels: {active}"
    failures = []
    for name in newer_kernels(torch.cuda.get_device_capability(device)[0]):
        try:
            attention.activate_flash_attention_impl(name)
        except (ImportError, RuntimeError, ValueError, AttributeError) as error:
            failures.append(f"; {name} is installed and does not load: {error}")
        else:
            return f"kernels: {name}"
    return "kernels: torch's own" + "".join(failures)


TORCH_VARLEN = varlen_backend("torch_varlen", _kernel, _available, _start)
"""torch's varlen attention."""
