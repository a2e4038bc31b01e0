"""Where a plan takes over from another one whose data are no longer what they were (``tokenreel remap``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PlanStart"]


@dataclass(frozen=True)
class PlanStart:
    """From ``position`` on sources are read from the start of their order; positions before are another plan's.

    Positions, steps, batch sizes and the mixture go on counting: only what the slots of a source read begins anew.

    Attributes:
        position, step: the first ones of this plan.
        cursor: digest of the other plan's Cursor there, which names everything that shaped the positions before.
        carried: sources whose Dataset stayed the same go on instead: source -> raw index of its order to read next.
    """

    position: int
    step: int
    cursor: str
    carried: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {**vars(self), "carried": dict(self.carried)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PlanStart:
        """From what :meth:`to_json` gave."""
        return PlanStart(**value)
