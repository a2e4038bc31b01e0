"""Where a plan takes over from another one whose data are no longer what they were (``tokenreel remap``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["PlanStart"]


@dataclass(frozen=True)
class PlanStart:
    """From ``position`` on every source is read from the start of its order; positions before are another plan's.

    Positions, steps, batch sizes and the mixture go on counting: only what the slots of a source read begins anew.

    Attributes:
        position, step: the first ones of this plan.
        cursor: digest of the other plan's Cursor there, which names everything that shaped the positions before.
    """

    position: int
    step: int
    cursor: str

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"position": self.position, "step": self.step, "cursor": self.cursor}

    @staticmethod
    def from_json(value: dict[str, Any]) -> PlanStart:
        """From what :meth:`to_json` gave."""
        return PlanStart(int(value["position"]), int(value["step"]), str(value["cursor"]))
