"""What earlier rollbacks left behind: a record in the evidence of the skip entries they wrote, so that no kill loses
it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .records import Window

if TYPE_CHECKING:
    from loader.order.skips import SkipEntry

__all__ = ["RollbackRecord", "rollbacks_from", "tries_of", "within_span"]

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


def tries_of(window: Window, rollbacks: Iterable[RollbackRecord]) -> int:
    """How many rollbacks were already made for a spike in this window."""
    return sum(1 for r in rollbacks if r.start < window.stop and window.start < r.stop)


def within_span(step: int, span_steps: int, rollbacks: Iterable[RollbackRecord]) -> int:
    """How many rollbacks lie within the last ``span_steps`` steps before ``step``."""
    return sum(1 for r in rollbacks if r.alarm > step - span_steps)
