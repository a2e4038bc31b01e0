"""How a configuration says what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["raise_problems"]


def raise_problems(problems: Sequence[str]) -> None:
    """Raise what ``loader.settings`` turns into placed messages: one ``key: message`` a line; nothing without any."""
    if problems:
        raise ValueError("\n".join(problems))
