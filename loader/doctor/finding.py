"""One line of a doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "State"]

State = Literal["ok", "warn", "missing"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of the thing, stable. state: ``ok``; ``warn``: it works, worse; ``missing``: it will not work.
        message: what was found. next_command: what to type, for anything but ok.
    """

    name: str
    state: State
    message: str
    next_command: str | None = None
