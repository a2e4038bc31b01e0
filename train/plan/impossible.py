"""Meshes that cannot work, and those that do not fit, each by a name that a script can look for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..parallel.refusals import MeshRequest, mesh_refusals
from .memory import RankMemory
from .pipeline import bubble_fraction
from .sizes import MeshSizes

__all__ = ["Finding", "memory_warnings", "mesh_of_world", "mesh_warnings"]

_MUCH_BUBBLE = 0.2


@dataclass(frozen=True)
class Finding:
    """A named finding; ``fatal``: the run would refuse to start, or fail."""

    name: str
    message: str
    fatal: bool = True


def mesh_of_world(mesh: MeshSizes, world: int) -> MeshSizes:
    """The mesh with the data ranks that ``world`` processes leave; one data rank where they leave none."""
    return replace(mesh, data=max(1, world // mesh.others))


def mesh_warnings(asked: MeshRequest, mesh: MeshSizes) -> list[Finding]:
    """What training would refuse, by its own rules and all at once; then what it would do badly, for the batch that
    shows it most."""
    found = [Finding(one.name, one.message) for one in mesh_refusals(asked)]
    vocabulary = asked.shape.vocab_size
    if mesh.vocabulary and vocabulary >= mesh.tensor and vocabulary % mesh.tensor:
        message = f"vocabulary {vocabulary} is no multiple of {mesh.tensor}: the last ranks do less"
        found.append(Finding("vocabulary-not-divisible", message, fatal=False))
    least = min(asked.batches)
    if mesh.pipeline == 1 and least < mesh.data:
        message = f"{least} samples for {mesh.data} data ranks: {mesh.data - least} work on nothing that counts"
        found.append(Finding("batch-below-data-ranks", message, fatal=False))
    bubble, batch = max((bubble_fraction(mesh, _count(asked, mesh, batch)), batch) for batch in asked.batches)
    if bubble > _MUCH_BUBBLE:
        message = f"ranks wait {bubble:.0%} of a step of {batch} samples: more micro-batches"
        found.append(Finding("pipeline-bubble", message, fatal=False))
    return found


def _count(asked: MeshRequest, mesh: MeshSizes, batch: int) -> int:
    """Micro-batches of a data rank."""
    share = max(1, -(-batch // mesh.data))
    return -(-share // (asked.micro_batch or share))


def memory_warnings(ranks: list[RankMemory], card_bytes: int, card: str) -> list[Finding]:
    """Ranks that do not fit on a card."""
    worst = max(ranks, key=lambda rank: rank.needed)
    if worst.needed <= card_bytes:
        return []
    message = (
        f"pipeline rank {worst.rank} needs {worst.needed / 1e9:.1f} GB (most at the {worst.peak_at} moment), "
        f"{card} has {card_bytes / 1e9:.0f} GB"
    )
    return [Finding("does-not-fit", message)]
