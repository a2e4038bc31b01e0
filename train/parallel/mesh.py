"""The mesh of processes: which rank stands where, and the groups along each dimension.

Ranks are counted with the tensor dimension fastest (its traffic is the heaviest and stays inside a machine), then
context, data, pipeline. Data and context together are the dimension over which the state is cut (DESIGN 9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .config import ParallelConfig
from .refusals import refuse, world_refusals

__all__ = ["Mesh", "MeshShape", "Place", "make_mesh", "mesh_shape"]


@dataclass(frozen=True)
class Place:
    """Coordinates of a process in the mesh."""

    pipeline: int = 0
    data: int = 0
    context: int = 0
    tensor: int = 0


@dataclass(frozen=True)
class MeshShape:
    """Processes along each dimension."""

    pipeline: int = 1
    data: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.pipeline * self.data * self.context * self.tensor

    def place(self, rank: int) -> Place:
        """Where a rank stands."""
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        pipeline, data = divmod(rest, self.data)
        return Place(pipeline, data, context, tensor)

    def to_json(self) -> dict[str, int]:
        """For checkpoints and events."""
        return dict(vars(self))


def mesh_shape(config: ParallelConfig, num_processes: int) -> MeshShape:
    """The mesh of ``num_processes``; the data dimension is what tensor, pipeline and context leave.

    Raises:
        ConfigError: the number of processes is no product of the dimensions, or they form no replicas.
    """
    refuse(world_refusals(config, num_processes))
    others = config.tensor * config.pipeline * config.context
    return MeshShape(config.pipeline, num_processes // others, config.context, config.tensor)


@dataclass(frozen=True)
class Mesh:
    """The processes as one of them sees them; without groups in a world of one.

    Attributes:
        shape, place: sizes, and this process's coordinates.
        state: the mesh over which parameters are cut: ("pipeline", "replica", "shard", "tensor").
        groups: dimension -> process group, for those with more than one process.
    """

    shape: MeshShape = field(default_factory=MeshShape)
    place: Place = field(default_factory=Place)
    state: DeviceMesh | None = None
    groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    def group(self, dimension: str) -> dist.ProcessGroup | None:
        """The group along a dimension ("pipeline", "data", "context", "tensor"), or None where it has one process."""
        return self.groups.get(dimension)

    def part(self, *dimensions: str) -> DeviceMesh:
        """A part of ``state``.

        Raises:
            RuntimeError: a world of one has none.
        """
        if self.state is None:
            raise RuntimeError("a world of one has no mesh")
        return self.state[dimensions if len(dimensions) > 1 else dimensions[0]]


def make_mesh(config: ParallelConfig, rank: int, num_processes: int, device: str) -> Mesh:
    """Build the process groups; every process of the world calls it. A world of one needs none.

    Raises:
        ConfigError: see :func:`mesh_shape`.
    """
    shape = mesh_shape(config, num_processes)
    if num_processes == 1:
        return Mesh(shape)
    shared = shape.data * shape.context
    replicas = shared if config.data == "ddp" else config.replicas
    sizes = (shape.pipeline, replicas, shared // replicas, shape.tensor)
    state = init_device_mesh(device, sizes, mesh_dim_names=("pipeline", "replica", "shard", "tensor"))
    plain = (shape.pipeline, shape.data, shape.context, shape.tensor)
    names = ("pipeline", "data", "context", "tensor")
    roles: Any = init_device_mesh(device, plain, mesh_dim_names=names)
    groups = {name: roles.get_group(name) for name, size in zip(names, plain, strict=True) if size > 1}
    if "tensor" in groups:
        groups["tensor"] = state.get_group("tensor")
    return Mesh(shape, shape.place(rank), state, groups)
