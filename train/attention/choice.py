"""Which row of the table serves a run, and why."""

from __future__ import annotations

from typing import NamedTuple

import torch

from loader.errors import ConfigError

from .backend import AttentionBackend
from .flash_attn import FLASH_ATTN
from .flex import FLEX
from .sdpa_loop import SDPA_LOOP
from .sdpa_mask import SDPA_MASK
from .torch_varlen import TORCH_VARLEN

__all__ = ["ATTENTION", "Choice", "available_backends", "choose_attention", "pick_attention"]

ATTENTION: dict[str, AttentionBackend] = {
    "torch_varlen": TORCH_VARLEN,
    "flash_attn": FLASH_ATTN,
    "flex": FLEX,
    "sdpa_loop": SDPA_LOOP,
    "sdpa_mask": SDPA_MASK,
}
"""Every backend. An entry needs its rows in tests/contracts/test_attention_backends.py."""

_CUDA_ORDER = ("torch_varlen", "flash_attn", "flex", "sdpa_mask")
_DENSE_TOKENS = 256


class Choice(NamedTuple):
    """A row and why it was taken, one line for the log."""

    backend: AttentionBackend
    reason: str


def available_backends(device: torch.device, dtype: torch.dtype, head_dim: int | None = None) -> list[str]:
    """The rows that can train on this device in this compute dtype, in the table's order."""
    return [name for name, backend in ATTENTION.items() if backend.available(device, dtype, head_dim)]


def _started(backend: AttentionBackend, device: torch.device, reason: str) -> Choice:
    kernel = backend.start(device)
    return Choice(backend, f"attention {backend.name}: {reason}{f' ({kernel})' if kernel else ''}")


def _default_on_cuda(device: torch.device, dtype: torch.dtype, head_dim: int | None) -> tuple[str, str]:
    passed: list[str] = []
    for name in _CUDA_ORDER:
        availability = ATTENTION[name].available(device, dtype, head_dim)
        if availability:
            return name, f"default on {device.type}{''.join(passed)}"
        passed.append(f"; not {name}, which needs {availability}")
    raise AssertionError("the last row runs everywhere")


def pick_attention(
    name: str | None, device: torch.device, dtype: torch.dtype, num_tokens: int, head_dim: int | None = None
) -> Choice:
    """The row for a run: the named one, or the default of device, compute dtype and sample length.

    Args:
        name: a key of ``ATTENTION``, or None for the default.
        device, dtype: where the model lives and what it computes in.
        num_tokens: T. head_dim: C; None: not checked.

    Raises:
        ConfigError: the named row cannot train here; what is missing is named.
        KeyError: no such row (the configuration check reports it first).
    """
    if name is not None:
        backend = ATTENTION[name]
        availability = backend.available(device, dtype, head_dim)
        if not availability:
            here = ", ".join(available_backends(device, dtype, head_dim))
            raise ConfigError(
                "TR-ATTENTION-UNAVAILABLE", f"attention {name} cannot train here: it needs {availability}",
                "model.attention", f"null, or one of {here}", availability.install,
            )  # fmt: skip
        return _started(backend, device, "named in the configuration")
    if device.type == "cuda":
        chosen, reason = _default_on_cuda(device, dtype, head_dim)
    else:
        chosen = "sdpa_mask" if num_tokens <= _DENSE_TOKENS else "sdpa_loop"
        side = "up to" if num_tokens <= _DENSE_TOKENS else "above"
        reason = f"default on {device.type} for samples of {side} {_DENSE_TOKENS} tokens"
    return _started(ATTENTION[chosen], device, reason)


def choose_attention(
    name: str | None,
    device: torch.device,
    num_tokens: int,
    dtype: torch.dtype = torch.float32,
    head_dim: int | None = None,
) -> AttentionBackend:
    """The row that :func:`pick_attention` takes, without its reason."""
    return pick_attention(name, device, dtype, num_tokens, head_dim).backend
