"""What a run's folder must hold before an attempt begins in it, and which checkpoints stay pinned there."""

from __future__ import annotations

from loader.errors import DamageError
from loader.run_folder import RunPaths, refuse_half
from loader.runs import ledger_of, read_branches

from .checkpoint import list_checkpoints, pin_steps, unpin_alarms

__all__ = ["check_folder", "refuse_silent_restart"]


def refuse_silent_restart(paths: RunPaths) -> None:
    """Without a valid checkpoint only a run that has done nothing may begin at step 0.

    Raises:
        DamageError: it has done steps.
    """
    good, damaged = list_checkpoints(paths.checkpoints)
    if good or damaged or len(ledger_of(paths)):
        raise DamageError(
            "TR-CHECKPOINT-NONE", "the run has done steps, but no checkpoint of this branch is valid",
            str(paths.checkpoints), "one intact checkpoint", "restore a checkpoint, or begin in another folder",
        )  # fmt: skip


def check_folder(paths: RunPaths, steps: int, alarm_is_open: bool) -> None:
    """Steps are flushed to the ledger before the checkpoint behind them is begun: a shorter one lost what was safe. To
    train on would leave a gap that no later start forgives.

    Where branches begin is pinned, also for a store. What an alarm had pinned is let go, unless that alarm is open
    still or the steps to be done again may raise it.

    Raises:
        DamageError: it holds fewer than ``steps`` steps, or is damaged, or half of it is of a newer upload.
    """
    refuse_half(paths)
    held = len(ledger_of(paths))
    if held < steps:
        raise DamageError(
            "TR-LEDGER-SHORT", f"the ledger holds {held} of the {steps} steps before the checkpoint", str(paths.ledger),
            "every step that was trained", f"tokenreel rollback {paths.root} --to {held}, then the same command",
        )  # fmt: skip
    pin_steps(paths.checkpoints, [branch.from_step for branch in read_branches(paths) if branch.parent is not None])
    if held == steps and not alarm_is_open:
        unpin_alarms(paths.checkpoints)
