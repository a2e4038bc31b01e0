"""Parameters that may be spread over ranks: what this rank holds of them.

A spread parameter is a DTensor, which knows the whole tensor's shape and where its part lies; torch's checkpoints use
that to load on another mesh. The training itself computes on plain tensors: these functions are the border.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

__all__ = ["copy_own_part", "local", "num_parts", "own_gradient", "rewrap"]


def local(tensor: Tensor) -> Tensor:
    """The plain tensor behind a parameter: this rank's part of a DTensor (differentiable), or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_own_part(parameter: Tensor, whole: Tensor) -> None:
    """Fill ``parameter`` with its part of ``whole``, a plain tensor of the parameter's global shape on any device."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    own = whole
    for dim, (size, start) in enumerate(zip(shape, offset, strict=True)):
        own = own.narrow(dim, min(start, own.shape[dim]), size)
    parameter.to_local().copy_(own)


def num_parts(parameter: Tensor) -> int:
    """How many different parts a parameter is cut into; every part lies on ranks / parts many ranks."""
    if not isinstance(parameter, DTensor):
        return 1
    sizes = [
        parameter.device_mesh.size(dim)
        for dim, placement in enumerate(parameter.placements)
        if isinstance(placement, Shard | _StridedShard)
    ]
    return math.prod(sizes)


def own_gradient(parameter: Tensor) -> Tensor:
    """This rank's part of a parameter's gradient, laid out as the parameter is.

    Raises:
        RuntimeError: the backward pass left none.
    """
    gradient = parameter.grad
    if gradient is None:
        raise RuntimeError("a parameter without a gradient")
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        if gradient.placements != parameter.placements:
            gradient = gradient.redistribute(placements=parameter.placements)
        return gradient.to_local()
    return gradient


def rewrap(own: Tensor, like: Tensor) -> Tensor:
    """A DTensor around ``own`` with the placement of ``like``; ``own`` itself where ``like`` is a plain tensor."""
    if not isinstance(like, DTensor):
        return own
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
