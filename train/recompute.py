"""What the backward pass computes again instead of keeping: activation checkpointing by blocks, in a table.

    none        everything is kept
    selective   a block keeps the results of its matrix products and of attention; what lies between is cheap and is
                computed again (Korthikanti et al., 2022, in the form of torch's selective checkpointing)
    full        a block keeps its input alone and is run again

The values do not change: the same kernels run on the same numbers, and dropout is a function of the sample's position.
Under ``selective`` the kernels of flex_attention, one operator of a higher order, are run again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .model import RunBlock, run_block

__all__ = ["RECOMPUTE"]

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
    torch.ops.aten._flash_attention_forward.default,
}
# Operators that exist once their module was imported; both wrap the kernel, whose own name is never seen.
_KEPT_NAMES = {"torch_attn._varlen_attn.default", "flash_attn._flash_attn_varlen_forward.default"}


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    del context, args, kwargs
    kept = operator in _KEPT or str(operator) in _KEPT_NAMES
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _full(block: nn.Module, x_BTD: Tensor, shared: Any) -> Tensor:
    # No random state to keep: nothing in a block draws from one.
    return cast(Tensor, checkpoint(block, x_BTD, shared, use_reentrant=False, preserve_rng_state=False))


def _selective(block: nn.Module, x_BTD: Tensor, shared: Any) -> Tensor:
    contexts: Callable[[], Any] = partial(create_selective_checkpoint_contexts, _policy)
    out = checkpoint(block, x_BTD, shared, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return cast(Tensor, out)


RECOMPUTE: dict[str, RunBlock] = {"none": run_block, "selective": _selective, "full": _full}
"""``run.recompute`` -> how a block is run. An entry needs its rows in the tests."""
