"""Which blocks a pipeline rank holds, and how many micro-batches wait on it for their backward pass.

Blocks are spread as ``train.parallel.stages`` says. Waiting: GPipe (Huang et al., 2019) runs all forward
passes first; 1F1B (Narayanan et al., 2021) has one less a rank; interleaved, its warm-up with chunks; the zero bubble
forms (Qi et al., 2023, 2024) delay the weights' part of the backward pass, which keeps what it reads: an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..parallel.stages import SCHEDULES, block_counts
from .sizes import MeshSizes

__all__ = ["PartSizes", "bubble_fraction", "chunks_of", "rank_parts", "waiting_chunks"]

_MANY = ("interleaved", "zero_bubble")


@dataclass(frozen=True)
class PartSizes:
    """What one pipeline rank holds: blocks in each of its stages, and whether one is the first or the last of all."""

    blocks: tuple[int, ...]
    first: bool = True
    last: bool = True

    @property
    def num_blocks(self) -> int:
        """Blocks of all its stages."""
        return sum(self.blocks)


def chunks_of(mesh: MeshSizes) -> int:
    """Stages that a pipeline rank holds."""
    if mesh.pipeline == 1:
        return 1
    return SCHEDULES[mesh.schedule].stages_of(mesh.stages_per_rank)


def rank_parts(layers: int, mesh: MeshSizes) -> list[PartSizes]:
    """What each pipeline rank holds."""
    chunks = chunks_of(mesh)
    count = mesh.pipeline * chunks
    blocks = block_counts(layers, count)
    parts = []
    for rank in range(mesh.pipeline):
        stages = [rank + turn * mesh.pipeline for turn in range(chunks)]
        if SCHEDULES[mesh.schedule].folded and mesh.pipeline > 1:
            stages = [rank, count - 1 - rank]
        parts.append(PartSizes(tuple(blocks[stage] for stage in stages), 0 in stages, count - 1 in stages))
    return parts


def waiting_chunks(mesh: MeshSizes, rank: int, micro_batches: int) -> int:
    """Most (micro-batch, stage) pairs of a rank whose activations live at once."""
    ranks, chunks = mesh.pipeline, chunks_of(mesh)
    if ranks == 1:
        return 1
    if mesh.schedule == "1f1b":
        return min(micro_batches, ranks - rank)
    most = micro_batches * chunks
    if mesh.schedule in _MANY:
        warm_up = (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1
        return min(most, warm_up + (rank if mesh.schedule == "zero_bubble" else 0))
    return min(most, 2 * ranks) if mesh.schedule == "zbv" else most


def bubble_fraction(mesh: MeshSizes, micro_batches: int) -> float:
    """Share of a step in which a rank waits, for stages of equal cost; 0 for the zero bubble forms, as they aim at."""
    if mesh.pipeline == 1 or mesh.schedule in ("zero_bubble", "zbv"):
        return 0.0
    idle = (mesh.pipeline - 1) / chunks_of(mesh)
    return idle / (micro_batches + idle)
