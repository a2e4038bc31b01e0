"""What ``train`` says last: where the run stands, whatever this process did of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loader.run_folder import RunPaths
from loader.runs import ledger_of, read_branches

if TYPE_CHECKING:
    from .loop import RunResult

__all__ = ["summary", "summary_text"]


def summary(result: RunResult, paths: RunPaths, steps: int) -> dict[str, Any]:
    """The result of a process, and of the run what a process that did no step does not know.

    Args:
        paths: of the run's folder. steps: that the configuration asks for.

    Returns:
        The fields of ``result``; ``run``: the folder; ``asked_steps``; ``run_loss``: of the newest step with a finite
        loss, in nats, by the ledger of the current branch, None without one; ``run_rollbacks``: by the spike watch
        or by hand, of the whole run.

    Raises:
        DamageError: records of the run are damaged.
    """
    rolled_back = [one for one in read_branches(paths) if one.parent is not None and one.remap is None]
    return {
        **vars(result),
        "run": str(paths.root),
        "asked_steps": steps,
        "run_loss": _last_loss(paths) if result.loss is None else result.loss,
        "run_rollbacks": len(rolled_back),
    }


def _last_loss(paths: RunPaths) -> float | None:
    records_N = ledger_of(paths)
    for record in records_N[::-1]:
        if record["label_count"] and math.isfinite(record["loss"]):
            return float(record["loss"])
    return None


def summary_text(facts: Mapping[str, Any]) -> str:
    """One line of :func:`summary`; a second one where the run is past the steps that were asked for."""
    loss = "no loss" if facts["run_loss"] is None else f"loss {facts['run_loss']:.4f}"
    count = facts["run_rollbacks"]
    where = f"branch {facts['branch']}, {loss}, {count} {'rollback' if count == 1 else 'rollbacks'} in all"
    if facts["step"] > facts["asked_steps"]:
        return (
            f"nothing to do: the run is at step {facts['step']}, already past steps: {facts['asked_steps']}; {where}\n"
            f"next: more than {facts['step']} steps to go on, or tokenreel rollback {facts['run']} --to STEP to go back"
        )
    return f"{facts['outcome']}: {facts['step']} steps, {where}"
