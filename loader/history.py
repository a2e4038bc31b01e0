"""What a run lived through, as one timeline: attempts from the ledger, branches, skip entries and events."""

from __future__ import annotations

from typing import Any

from .ledger import ledger_path, list_attempts, read_intact_records
from .runs import RunPaths, read_branches, read_events, read_identity, read_skips

__all__ = ["history_of"]


def history_of(paths: RunPaths) -> dict[str, Any]:
    """JSON-able: ``run_id``, ``branches`` (with their attempts), ``skips``, ``events`` oldest first.

    Raises:
        ConfigError: no run there.
        DamageError: a file of the run is damaged.
    """
    branches = read_branches(paths)
    skips = [{"number": number, **entry.to_json()} for number, entry in enumerate(read_skips(paths), 1)]
    first_skips = [branch.first_skip for branch in branches]
    for skip in skips:
        skip["branch"] = max(index for index, first in enumerate(first_skips) if first <= skip["number"])
    return {
        "run_id": read_identity(paths).get("run_id"),
        "current_branch": branches[-1].number,
        "branches": [
            {
                "branch": branch.number,
                "parent": branch.parent,
                "from_step": branch.from_step,
                "from_position": branch.from_position,
                "reason": branch.reason,
                "attempts": _attempts(paths, branch.number),
            }
            for branch in branches
        ],
        "skips": skips,
        "events": list(read_events(paths)),
    }


def _attempts(paths: RunPaths, branch: int) -> list[dict[str, Any]]:
    """Attempts of a branch: the steps each did, its first and last loss, and what is damaged of it, or None."""
    attempts = []
    for attempt in list_attempts(paths.ledger, branch):
        file = read_intact_records(ledger_path(paths.ledger, branch, attempt))
        records_N, damage = file.records_N, None if file.damage is None else str(file.damage.place)
        steps = [int(records_N["step"][0]), int(records_N["step"][-1]) + 1] if len(records_N) else None
        losses = [f"{records_N['loss'][index]:.4f}" for index in (0, -1)] if len(records_N) else None
        attempts.append({"attempt": attempt, "steps": steps, "losses": losses, "damage": damage})
    return attempts
