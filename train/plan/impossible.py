"""Meshes that cannot work, and those that do not fit, each by a name that a script can look for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..model_shape import ModelShape
from .memory import RankMemory
from .pipeline import bubble_fraction, chunks_of
from .sizes import MeshSizes, StepSizes

__all__ = ["Finding", "memory_warnings", "mesh_of_world", "mesh_warnings"]

_MUCH_BUBBLE = 0.2


@dataclass(frozen=True)
class Finding:
    """A named finding; ``fatal``: the run would refuse to start, or fail."""

    name: str
    message: str
    fatal: bool = True


def mesh_of_world(mesh: MeshSizes, world: int) -> tuple[MeshSizes, list[Finding]]:
    """The mesh with the data ranks that ``world`` processes leave; one data rank where they leave none."""
    if world % mesh.others:
        product = f"context {mesh.context} x tensor {mesh.tensor} x pipeline {mesh.pipeline} = {mesh.others}"
        message = f"{world} processes are no multiple of {product}"
        return replace(mesh, data=max(1, world // mesh.others)), [Finding("world-not-a-product", message)]
    return replace(mesh, data=world // mesh.others), []


def _divides(name: str, what: str, size: int, ranks: int, fatal: bool = True) -> list[Finding]:
    if size % ranks == 0:
        return []
    return [Finding(name, f"{what} {size} is no multiple of {ranks}", fatal)]


def mesh_warnings(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> list[Finding]:
    """What does not divide or is too few, all at once."""
    found = _divides("heads-not-divisible", "heads", model.heads, mesh.tensor)
    found += _divides("kv-heads-not-divisible", "kv_heads", model.kv_heads, mesh.tensor)
    found += _divides("ffn-not-divisible", "ffn", model.ffn, mesh.tensor)
    if mesh.vocabulary:
        uneven = _divides("vocabulary-not-divisible", "vocabulary", model.vocab_size, mesh.tensor, fatal=False)
        found += [Finding(one.name, f"{one.message}: the last ranks do less", False) for one in uneven]
    if mesh.sequence:
        found += _divides("sequence-not-divisible", "tokens of a rank", model.seq_len // mesh.context, mesh.tensor)
    pieces = mesh.context * (2 if mesh.context_method == "zigzag" and mesh.context > 1 else 1)
    found += _divides("context-not-divisible", "seq_len", model.seq_len, pieces)
    if mesh.context > 1 and mesh.context_method == "ulysses":
        found += _divides("heads-not-divisible", "heads of a tensor rank", model.heads // mesh.tensor, mesh.context)
        found += _divides("kv-heads-not-divisible", "kv_heads", model.kv_heads // mesh.tensor, mesh.context)
    found += _divides("replicas-not-divisible", "data x context ranks", mesh.sharers, mesh.replicas)
    stages = mesh.pipeline * chunks_of(mesh)
    if model.layers < stages:
        found.append(Finding("fewer-layers-than-stages", f"{model.layers} layers for {stages} pipeline stages"))
    if step.global_batch < mesh.data:
        found.append(Finding("batch-below-data-ranks", f"{step.global_batch} samples for {mesh.data} data ranks"))
    elif mesh.pipeline > 1:
        found += _pipeline(mesh, step)
    return found


def _pipeline(mesh: MeshSizes, step: StepSizes) -> list[Finding]:
    found = _divides("batch-not-divisible", "global batch", step.global_batch, mesh.data * step.micro_batch)
    count = step.micro_batches(mesh.data)
    stages = mesh.pipeline * chunks_of(mesh)
    if count < stages:
        found.append(
            Finding("fewer-micro-batches-than-stages", f"{count} micro-batches a rank for {stages} pipeline stages")
        )
    bubble = bubble_fraction(mesh, count)
    if bubble > _MUCH_BUBBLE:
        found.append(Finding("pipeline-bubble", f"ranks wait {bubble:.0%} of a step: more micro-batches", False))
    return found


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
