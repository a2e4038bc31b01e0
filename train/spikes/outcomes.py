"""What became of each rollback: judged on the steps it was made for, in the branch that came of it.

A rollback is judged where its window ends. A second spike inside the replay may send the run back again before that: a
rollback for other steps leaves the first one to be judged in the next branch; one for the same steps says that the
first did not help. Either way each rollback gets its outcome told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .decide import judge_recovery
from .records import StepRecord, Window
from .rollback import RollbackRecord, overlaps

__all__ = ["Outcomes"]

Event = dict[str, Any]


class Outcomes:
    """Collects the losses of the steps under judgement.

    Args:
        rollbacks: of the run, oldest first.
    """

    def __init__(self, rollbacks: Sequence[RollbackRecord]) -> None:
        self._rollbacks = tuple(
            one for i, one in enumerate(rollbacks) if not any(overlaps(later, one) for later in rollbacks[i + 1 :])
        )
        self._losses: dict[int, list[float]] = {}

    def observe(self, record: StepRecord) -> list[Event]:
        """Takes in a step; the outcomes that it completes."""
        told = []
        for rollback in self._rollbacks:
            if not rollback.alarm <= record.step < rollback.stop:
                continue
            losses = self._losses.setdefault(rollback.number, [])
            if record.label_count > 0:
                losses.append(record.loss)
            if record.step == rollback.stop - 1:
                told.append({**judge_recovery(rollback, self._losses.pop(rollback.number)), "step": record.step})
        return told

    def cut_short(self, window: Window) -> list[Event]:
        """A verdict on ``window`` takes the run away behind its last step: outcomes of the rollbacks for the same steps
        that had not been judged by then."""
        step = window.stop - 1
        return [
            {
                "kind": "outcome",
                "step": step,
                "rollback": rollback.number,
                "outcome": "not_recovered",
                "why": f"another alarm over the same steps, at step {window.alarm}",
            }
            for rollback in self._rollbacks
            if overlaps(rollback, window) and rollback.stop - 1 > step
        ]

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            str(number): [loss if math.isfinite(loss) else None for loss in losses]
            for number, losses in sorted(self._losses.items())
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """As ``state`` gave it."""
        self._losses = {
            int(number): [math.nan if loss is None else float(loss) for loss in losses]
            for number, losses in state.items()
        }
