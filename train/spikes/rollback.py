"""What earlier rollbacks left behind: a record in the evidence of the skip entries they wrote, so that no kill loses
it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .records import Window

if TYPE_CHECKING:
    from loader.order.skips import SkipEntry

__all__ = ["RollbackRecord", "overlaps", "recovered", "rollbacks_from", "tried_checkpoints", "tries_of", "within_span"]

_KEY = "spike"


@dataclass(frozen=True)
class RollbackRecord:
    """One rollback that the spike watch ordered.

    Attributes:
        number: 0, 1, .. over the run.
        start, alarm, stop: the window, in steps.
        checkpoint_step, next_position: where the run went on; the position stamps the entries.
        action: mask | replace | skip_range.
        recorded_loss: mean loss of steps ``[alarm, stop)`` in the branch that was left, nats; None if not finite.
        expected_loss: what the trend before the alarm promised for them; None if unknown.
        trials: mean loss of the same steps in each trial of ``confirm: full``, None without; a placebo only where the
            window held innocents. upheld: the spike stayed in all of them.
    """

    number: int
    start: int
    alarm: int
    stop: int
    checkpoint_step: int
    next_position: int
    action: str
    recorded_loss: float | None
    expected_loss: float | None
    trials: Mapping[str, float | None] | None = None
    upheld: bool = False

    def evidence(self) -> dict[str, Any]:
        """What goes into ``SkipEntry.evidence``."""
        return {_KEY: asdict(self)}


def rollbacks_from(entries: Iterable[SkipEntry]) -> tuple[RollbackRecord, ...]:
    """The rollbacks behind a skip list, oldest first; entries of other origin are passed over."""
    found: dict[int, RollbackRecord] = {}
    for entry in entries:
        told = entry.evidence.get(_KEY)
        if isinstance(told, Mapping):
            record = RollbackRecord(**told)
            found[record.number] = record
    return tuple(found[number] for number in sorted(found))


def recovered(record: RollbackRecord, losses: Sequence[float]) -> tuple[bool, float | None, float | None]:
    """Whether a spike is gone, the share of the excess that is, and the mean loss; of steps ``[alarm, stop)``.

    Gone: at least half of the recorded excess is; where no excess was recorded, the losses are finite.
    """
    if not losses or not all(math.isfinite(loss) for loss in losses):
        return False, None, None
    mean = math.fsum(losses) / len(losses)
    if record.recorded_loss is None or record.expected_loss is None:
        return True, None, mean
    excess = record.recorded_loss - record.expected_loss
    if excess <= 0:
        return True, None, mean
    share = (record.recorded_loss - mean) / excess
    return share >= 0.5, share, mean


def overlaps(one: Window | RollbackRecord, other: Window | RollbackRecord) -> bool:
    """Whether two windows share a step: they are about the same spike then."""
    return one.start < other.stop and other.start < one.stop


def tries_of(window: Window, rollbacks: Iterable[RollbackRecord]) -> int:
    """How many rollbacks were already made for a spike in this window."""
    return sum(1 for r in rollbacks if overlaps(r, window))


def tried_checkpoints(window: Window, rollbacks: Iterable[RollbackRecord], *, finite: bool) -> list[int]:
    """Steps of the checkpoints that earlier rollbacks went back to without getting past this spike.

    Those for the same steps; and where parameters broke again, those whose steps from the checkpoint on were just being
    repeated: what broke them may lie in the checkpoint.
    """
    return [
        r.checkpoint_step
        for r in rollbacks
        if overlaps(r, window) or (not finite and r.checkpoint_step < window.stop and window.start < r.stop)
    ]


def within_span(window: Window, span_steps: int, rollbacks: Iterable[RollbackRecord]) -> int:
    """How many rollbacks lie within the last ``span_steps`` steps up to the alarm of ``window``, or answered the same
    steps: done again, they may raise the alarm a step sooner. Those ahead of it, of a stretch that the run went back
    over, count again when the run comes there."""
    step = window.alarm
    return sum(1 for r in rollbacks if step - span_steps < r.alarm <= step or overlaps(r, window))
