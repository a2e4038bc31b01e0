"""How the ranks that read different samples share parameters, gradients and optimizer state: one table.

All rows are torch's FSDP2 (``fully_shard``) on meshes of different shape, so that each of them combines with the other
dimensions in the same way. FSDP averages gradients; our loss is already divided by the labels of the global batch, so
the averaging is switched off and gradients are summed. Parameters and reductions are float32; what travels forward is
the compute dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..precision import Precision
from .config import ParallelConfig
from .mesh import Mesh

__all__ = ["DATA", "DataSharing", "drop_gathered", "share_state", "sync_gradients"]


@dataclass(frozen=True)
class DataSharing:
    """One row of the table.

    Attributes:
        replicated: the mesh has a dimension over which nothing is cut.
        drop_after_forward: gather the parameters of a block again for its backward pass (ZeRO-3), or keep them.
    """

    replicated: bool
    drop_after_forward: bool


DATA: dict[str, DataSharing] = {
    "ddp": DataSharing(replicated=True, drop_after_forward=False),
    "zero2": DataSharing(replicated=False, drop_after_forward=False),
    "fsdp": DataSharing(replicated=False, drop_after_forward=True),
    "hsdp": DataSharing(replicated=True, drop_after_forward=True),
}
"""``parallel.data`` -> how."""


def _policy(precision: Precision) -> MixedPrecisionPolicy:
    compute = None if precision.compute is torch.float32 else precision.compute
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)


def _gather_ahead(blocks: list[FSDPModule], count: int) -> None:
    """Gather ``count`` blocks ahead, forward and backward; one is what FSDP does by itself."""
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + count])
        block.set_modules_to_backward_prefetch(blocks[max(0, number - count) : number][::-1])


def share_state(model: nn.Module, parallel: ParallelConfig, mesh: Mesh, precision: Precision) -> None:
    """Cut the parameters of a model's part over the data and context ranks, in place; nothing when there is one.

    Args:
        model: with ``blocks``; its tensor dimension is cut already. Any device, "meta" too.
        parallel: the configuration. mesh: of the world. precision: what the parameters are gathered in.
    """
    row = DATA[parallel.data]
    if mesh.state is None or mesh.shape.data * mesh.shape.context == 1:
        return
    over: DeviceMesh = mesh.part("replica", "shard") if row.replicated else mesh.part("shard")
    policy = _policy(precision)
    # A pipeline runs all forward passes of a stage before it needs the gathered parameters again.
    drop = row.drop_after_forward and mesh.shape.pipeline == 1
    blocks: list[nn.Module] = list(cast(nn.ModuleDict, model.blocks).values())
    for block in blocks:
        fully_shard(block, mesh=over, reshard_after_forward=drop, mp_policy=policy)
    fully_shard(model, mesh=over, reshard_after_forward=False, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if parallel.prefetch_blocks > 1:
        _gather_ahead(cast(list[FSDPModule], blocks), parallel.prefetch_blocks)


def drop_gathered(model: nn.Module) -> None:
    """Back to this rank's shares alone; no-op without sharing. Forward passes without a backward pass leave parameters
    gathered, and whoever looks at the model then (a checkpoint does) would take whole ones for shares."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def sync_gradients(model: nn.Module, now: bool) -> None:
    """Whether the next backward pass reduces gradients over ranks, or adds them up on each; no-op without sharing."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
