"""Which checkpoints a branch may stand on: those of its own steps and of its ancestors' before it left them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from loader.errors import DamageError
from loader.runs import Branch

from .checkpoint import Checkpoint, list_checkpoints, verify_checkpoint

__all__ = ["in_lineage", "lineage_checkpoints", "newest_valid"]


def _limits(branches: Sequence[Branch]) -> dict[int, int | None]:
    """Branch number -> last step (exclusive next step) that the current branch shares with it; None: all."""
    limits: dict[int, int | None] = {}
    current, limit = branches[-1], None
    while True:
        limits[current.number] = limit
        if current.parent is None:
            return limits
        limit = current.from_step if limit is None else min(limit, current.from_step)
        current = branches[current.parent]


def in_lineage(checkpoint: Checkpoint, branches: Sequence[Branch]) -> bool:
    """Whether the current (last) branch contains the steps that led to the checkpoint."""
    limits = _limits(branches)
    if checkpoint.facts.branch not in limits:
        return False
    limit = limits[checkpoint.facts.branch]
    return limit is None or checkpoint.facts.step <= limit


def lineage_checkpoints(folder: Path, branches: Sequence[Branch]) -> list[Checkpoint]:
    """Committed checkpoints of the current branch and its ancestors, by step, oldest first."""
    own = [checkpoint for checkpoint in list_checkpoints(folder)[0] if in_lineage(checkpoint, branches)]
    return sorted(own, key=lambda checkpoint: (checkpoint.facts.step, checkpoint.facts.number))


def newest_valid(
    folder: Path, branches: Sequence[Branch], last_step: int | None, damaged: Callable[[DamageError], None]
) -> Checkpoint | None:
    """The newest checkpoint of the current branch with at most ``last_step`` steps whose every byte is intact.

    Each damaged one met on the way is handed to ``damaged`` and left alone. None if there is none.
    """
    for error in list_checkpoints(folder)[1]:
        damaged(error)
    for checkpoint in reversed(lineage_checkpoints(folder, branches)):
        if last_step is not None and checkpoint.facts.step > last_step:
            continue
        try:
            verify_checkpoint(checkpoint)
        except DamageError as error:
            damaged(error)
            continue
        return checkpoint
    return None
