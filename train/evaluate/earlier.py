"""What a run's events say of an evaluation of an earlier start; the checkpoint of its step, saved ahead, does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loader.errors import DamageError
from loader.run_folder import RunPaths, read_events
from loader.runs import Branch

__all__ = ["evaluated_earlier"]


def evaluated_earlier(paths: RunPaths, branches: Sequence[Branch], step: int) -> dict[str, Any] | None:
    """The evaluation behind ``step`` steps of the current (last) branch, or of one that it shares them with.

    Returns:
        ``loss``: held-out, nats, or None; ``kinds``: of all events of that step. None: it was not evaluated, or a
        damaged record hides it.
    """
    try:
        events = read_events(paths)
    except DamageError:
        return None
    own = [event for event in events if event["step"] == step and _shares(branches, event["branch"], step)]
    found = [event for event in own if event["kind"] == "evaluation"]
    return {"loss": found[-1].get("loss"), "kinds": sorted({event["kind"] for event in own})} if found else None


def _shares(branches: Sequence[Branch], number: int, step: int) -> bool:
    """Whether the first ``step`` steps of that branch are those of the current one."""
    current = branches[-1]
    while current.number != number:
        if current.parent is None or step > current.from_step:
            return False
        current = branches[current.parent]
    return True
