"""``rollback RUN --to STEP``: a new branch at an older checkpoint; nothing is deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loader.errors import ConfigError, DamageError, RefusedError
from loader.run_folder import RunPaths, append_event, lock_run, read_identity, refuse_half
from loader.runs import materialise_skips, open_branch, read_branches, steps_on_record

from .checkpoint import pin
from .lineage import lineage_checkpoints, newest_valid

__all__ = ["roll_back"]


def roll_back(run: Path, step: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Open a branch at the newest valid checkpoint of the current branch with at most ``step`` steps. A ledger that
    lost a step is no hindrance: the new branch begins before it.

    Raises:
        ConfigError: no run there, or it has not reached that step.
        RefusedError: the run is being trained, or no checkpoint is that old.
    """
    paths = RunPaths(run)
    read_identity(paths)
    with lock_run(paths):
        refuse_half(paths)
        materialise_skips(paths)

        def damaged(error: DamageError) -> None:
            say(f"damaged checkpoint, left alone: {error}")

        branches = read_branches(paths)
        reached = steps_on_record(paths)
        if step > reached:
            raise ConfigError(
                "TR-ROLLBACK-AHEAD", f"step {step} lies ahead of the run", str(run), f"a step within 0:{reached + 1}"
            )
        checkpoint = newest_valid(paths.checkpoints, branches, step, damaged)
        if checkpoint is None:
            known = [one.facts.step for one in lineage_checkpoints(paths.checkpoints, branches)]
            steps = [one for one in known if step < one <= reached]  # those before were tried
            expected = f"one of {', '.join(map(str, steps))}" if steps else "a run with checkpoints"
            raise RefusedError(
                "TR-ROLLBACK-NONE", f"no valid checkpoint at or before step {step}", str(run), expected,
                f"tokenreel rollback {run} --to {steps[0]}" if steps
                else f"put back what {run} lost from a copy, or begin in another folder",
            )  # fmt: skip
        pin(checkpoint)
        facts = checkpoint.facts
        position = int(facts.cursor["next_position"])
        branch = open_branch(paths, facts.step, position, f"rollback --to {step}")
        details = {"from_branch": branches[-1].number, "action": "rollback", "asked_step": step}
        append_event(paths, "rollback", branch.number, facts.step, **details)
    name = checkpoint.path.name
    return {"branch": branch.number, "step": facts.step, "position": position, "checkpoint": name}
