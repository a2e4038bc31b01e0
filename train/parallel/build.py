"""Building the parts of a model that one process holds: cut by pipeline, then tensor, then data; filled at the end.

Nothing whole ever exists: modules are made without memory, cut, given memory, and each tensor is then drawn whole, one
after the other, of which a rank keeps its part. So a model starts from the same values on every mesh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..inputs import InputOptions
from ..model import Decoder, ModelShape, Part
from ..precision import Precision, use_float8
from ..recompute import RECOMPUTE
from .config import ParallelConfig
from .data import share_state
from .mesh import Mesh
from .pipeline import StageDecoder, parts_of_rank
from .refusals import refuse, stage_refusals, tensor_refusals
from .shards import local, num_parts
from .tensor import Spread, cut_model

if TYPE_CHECKING:
    from ..world import World

__all__ = ["Building", "build_parts", "copies_of", "digest_of", "prepare_blocks", "sum_tied_gradients"]

_TIED = "embedding.weight"


@dataclass(frozen=True)
class Building:
    """How a model is built.

    Attributes:
        parallel: the block of the configuration. inputs: device and attention. precision: number format.
        seed: of the values; None: left as they are, for a checkpoint to fill.
        recompute: a row of ``RECOMPUTE``. compile: every block by torch.compile.
    """

    parallel: ParallelConfig
    inputs: InputOptions
    precision: Precision
    seed: int | None
    recompute: str = "none"
    compile: bool = False


def prepare_blocks(part: Decoder, building: Building) -> None:
    """Set how the blocks of a model's part are run; before their parameters are shared out."""
    part.run_block = RECOMPUTE[building.recompute]
    if building.precision.float8:
        use_float8(part.blocks, building.inputs.device)
    if building.compile:
        for block in part.blocks.values():
            block.compile()


def build_parts(shape: ModelShape, building: Building, mesh: Mesh) -> list[Decoder]:
    """This rank's parts of a model, on its device, with the values of step 0.

    Raises:
        ConfigError: sizes that the mesh cannot cut.
    """
    parallel, inputs = building.parallel, building.inputs
    refuse(tensor_refusals(shape, parallel))
    refuse(stage_refusals(shape, parallel, building.recompute, compile=building.compile))
    staged = mesh.shape.pipeline > 1
    whole = [Part(range(shape.layers))]
    pieces = parts_of_rank(parallel, shape.layers, mesh.place.pipeline) if staged else whole
    parts: list[Decoder] = []
    for piece in pieces:
        with torch.device("meta"):
            part = (StageDecoder if staged else Decoder)(shape, inputs.attention, building.precision, piece)
        group = mesh.group("tensor")
        if group is not None:
            part.spread = Spread(group, parallel.sequence, parallel.vocabulary)
            cut_model(part, mesh.part("tensor"), vocabulary=parallel.vocabulary)
        prepare_blocks(part, building)
        share_state(part, parallel, mesh, building.precision)
        part.to_empty(device=inputs.device)
        if shape.tied and part.head is not None and part.embedding is not None:
            part.head.weight = part.embedding.weight  # to_empty makes two of one
        parts.append(part if building.seed is None else part.initialize(building.seed))
    return parts


def copies_of(name: str, parameter: Tensor, tied: bool, mesh: Mesh) -> int:
    """On how many ranks each part of a parameter lies."""
    a_stage = mesh.shape.size // mesh.shape.pipeline
    twice = 2 if tied and name == _TIED and mesh.shape.pipeline > 1 else 1
    return twice * a_stage // num_parts(parameter)


@torch.no_grad()
def sum_tied_gradients(parts: Sequence[Decoder], mesh: Mesh) -> None:
    """Both ends of a pipeline hold a tied embedding: its gradient is the sum of the two. Every rank calls it."""
    group = mesh.group("pipeline")
    if group is None or not parts[0].shape.tied:
        return
    for part in parts:
        if part.embedding is None:
            continue
        gradient = part.embedding.weight.grad
        assert gradient is not None
        other = mesh.shape.pipeline - 1 if part.part.first else 0
        mine = local(gradient)
        theirs = torch.empty_like(mine)
        peer = dist.get_global_rank(group, other)
        moves = [dist.P2POp(dist.isend, mine, peer, group), dist.P2POp(dist.irecv, theirs, peer, group)]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        # The same order on both ends: addition of floats commutes, so both hold the same bits.
        mine.add_(theirs)


@torch.no_grad()
def digest_of(named: Sequence[tuple[str, nn.Parameter]], world: World) -> str:
    """sha256 over names and bytes of the whole parameters of all stages; equal on every rank.

    Every rank gathers, one parameter after the other; one rank of each stage hashes.
    """
    place, own = world.mesh.place, dict[str, str]()
    hashes = place.data == place.context == place.tensor == 0
    for name, parameter in named:
        whole = parameter.detach()
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        if hashes:
            own[name] = hashlib.sha256(whole.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    total = hashlib.sha256()
    for name, digest in sorted(world.gather(own).items()):
        total.update(name.encode() + b"\0" + digest.encode())
    return total.hexdigest()
