"""Which checkpoints a branch may stand on: those of its own steps and of its ancestors' before it left them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from loader.errors import ConfigError, DamageError
from loader.runs import Branch

from .checkpoint import Checkpoint, list_checkpoints, open_checkpoint, verify_checkpoint, verify_together
from .world import World

__all__ = ["damaged_name", "in_lineage", "lineage_checkpoints", "lineage_of", "named_checkpoint", "newest_valid"]


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
    return lineage_of(list_checkpoints(folder)[0], branches)


def lineage_of(known: Iterable[Checkpoint], branches: Sequence[Branch]) -> list[Checkpoint]:
    """Those of the current branch and its ancestors, by step, oldest first."""
    own = [checkpoint for checkpoint in known if in_lineage(checkpoint, branches)]
    return sorted(own, key=lambda checkpoint: (checkpoint.facts.step, checkpoint.facts.number))


def newest_valid(
    folder: Path,
    branches: Sequence[Branch],
    last_step: int | None,
    damaged: Callable[[DamageError], None],
    world: World | None = None,
) -> Checkpoint | None:
    """The newest checkpoint of the current branch with at most ``last_step`` steps whose every byte is intact.

    Each damaged one met on the way is handed to ``damaged`` and left alone. None if there is none.

    Args:
        world: whose processes all call it: the leading one proposes, each verifies its share. None: this one alone.
    """
    world = world or World()

    def propose() -> list[str]:
        known, errors = list_checkpoints(folder)
        for error in errors:
            damaged(error)
        own = lineage_of(known, branches)
        return [one.path.name for one in reversed(own) if last_step is None or one.facts.step <= last_step]

    for name in world.share(propose):
        try:
            return verify_together(folder / name, world)
        except DamageError as error:
            damaged(error)
    return None


def damaged_name(folder: Path, error: DamageError) -> str:
    """The name of the checkpoint below ``folder`` in which ``error`` found damage; "": it names none."""
    place = Path(error.place or "")
    return next((path.name for path in (place, *place.parents) if path.parent == folder and path != folder), "")


def named_checkpoint(folder: Path, name: str) -> Checkpoint:
    """The checkpoint of that name below a run's ``checkpoints``, every byte of it intact.

    Raises:
        ConfigError: no such name; those there are listed. DamageError: it is damaged.
    """
    path = folder / name
    # Only a plain name: the same name in another run's folder would be other weights.
    if path.parent != folder or not path.name.startswith("step_") or not path.is_dir():
        known = ", ".join(sorted(child.name for child in folder.glob("step_*"))) or "none"
        raise ConfigError("TR-REPLAY-CHECKPOINT", f"no checkpoint {name!r}", str(folder), known)
    checkpoint = open_checkpoint(path)
    verify_checkpoint(checkpoint)
    return checkpoint
