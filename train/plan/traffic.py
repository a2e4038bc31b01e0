"""Bytes that a rank receives from others in a step, by what they are for.

A ring moves (n - 1) / n of a tensor for a gather or a scattering sum, twice that for a sum that all keep. Parameters
travel in the compute dtype, gradients in float32 and once a step; micro-batches before the last keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model_shape import ModelShape
from .activations import tokens
from .memory import part_parameters
from .pipeline import PartSizes, chunks_of, rank_parts
from .sizes import MeshSizes, StepSizes

__all__ = ["StepTraffic", "step_traffic"]

_FLOAT32 = 4


@dataclass(frozen=True)
class StepTraffic:
    """Bytes that the busiest rank receives in a step.

    Attributes:
        gathered: parameters, by the ranks that share the state. reduced: gradients.
        tensor: activations, between tensor ranks. context: keys, values and their gradients. pipeline: hidden vectors.
    """

    gathered: float
    reduced: float
    tensor: float
    context: float
    pipeline: float

    @property
    def state(self) -> float:
        """What the ranks that share the state move."""
        return self.gathered + self.reduced


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


def step_traffic(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> StepTraffic:
    """The traffic of one step."""
    return max(
        (_rank_traffic(model, mesh, step, part) for part in rank_parts(model.layers, mesh)),
        key=lambda traffic: sum(vars(traffic).values()),
    )


def _rank_traffic(model: ModelShape, mesh: MeshSizes, step: StepSizes, part: PartSizes) -> StepTraffic:
    count, passes = part_parameters(model, mesh, part), step.micro_batches(mesh.data)
    replicas = mesh.sharers // mesh.shards
    gathers = 2 if mesh.sharing in ("fsdp", "hsdp") and mesh.pipeline == 1 else 1
    gathered = gathers * passes * _ring(mesh.shards) * count * step.compute_bytes
    reduced = _FLOAT32 * count * (_ring(mesh.shards) + 2 * _ring(replicas) / mesh.shards)
    rows = tokens(model, mesh, step)
    hidden = rows * model.dim * step.compute_bytes
    ends = int(part.first) + int(part.last) if mesh.vocabulary else 0
    sums = 4 * part.num_blocks + 2 * ends  # two forward and two backward a block
    return StepTraffic(
        gathered=gathered,
        reduced=reduced,
        tensor=passes * sums * 2 * _ring(mesh.tensor) * hidden,
        context=passes * part.num_blocks * _context_bytes(model, mesh, step),
        pipeline=passes * chunks_of(mesh) * 2 * hidden / (mesh.tensor if mesh.sequence else 1)
        if mesh.pipeline > 1
        else 0.0,
    )


def _context_bytes(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """Of one block and micro-batch, forward and backward."""
    rows = tokens(model, mesh, step)
    if mesh.context_method == "ulysses":
        widths = 2 * model.query_width + 2 * model.key_width
        return 2 * _ring(mesh.context) * rows * widths / mesh.tensor * step.compute_bytes
    keys = 2 * model.key_width / mesh.tensor * step.compute_bytes
    return 2 * (mesh.context - 1) * rows * keys
