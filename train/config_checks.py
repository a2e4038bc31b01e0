"""Checks of configuration blocks: all failures of a block at once, each with its key."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["require"]


def require(checks: Iterable[tuple[str, bool, str]]) -> None:
    """Raise a ValueError with one ``key: message`` line for each failed check."""
    problems = [f"{key}: {message}" for key, good, message in checks if not good]
    if problems:
        raise ValueError("\n".join(problems))
