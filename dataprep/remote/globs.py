"""Glob patterns over the names of a listing, with the meaning that ``pathlib.Path.glob`` gives them on a disk."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

__all__ = ["Pattern", "list_folders"]

_MAGIC = re.compile(r"[*?\[]")


class Pattern:
    """One pattern: ``*``, ``?`` and ``[...]`` inside a name, ``**`` for any number of folders, none included.

    A pattern whose last part is ``**`` matches folders alone, hence no object.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        # Consecutive ** mean what one means.
        self._parts = [p for i, p in enumerate(parts) if p != "**" or i == 0 or parts[i - 1] != "**"]
        self._tests = [None if part == "**" else _name_test(part) for part in self._parts]

    @property
    def literal(self) -> str | None:
        """The one name that matches, if the pattern has no wildcard."""
        return None if any(_MAGIC.search(part) for part in self._parts) else "/".join(self._parts)

    @property
    def folder(self) -> str:
        """The deepest folder that holds every match, "" for the root: what has to be listed."""
        first = next((i for i, part in enumerate(self._parts) if _MAGIC.search(part)), len(self._parts) - 1)
        return "/".join(self._parts[:first])

    def matches(self, path: str) -> bool:
        """Whether ``path`` matches; linear in its length times that of the pattern."""
        last = self._tests[-1] if self._tests else None
        if last is None or not last(path.rpartition("/")[2]):  # most names of a listing end here
            return False
        states = self._closed({0})
        for part in path.split("/"):
            after = set()
            for state in states:
                if state == len(self._tests):
                    continue
                test = self._tests[state]
                if test is None:
                    after.add(state)
                elif test(part):
                    after.add(state + 1)
            states = self._closed(after)
            if not states:
                return False
        return len(self._tests) in states

    def _closed(self, states: set[int]) -> set[int]:
        """With the states that ``**`` reaches by matching no folder."""
        return states | {s + 1 for s in states if s < len(self._tests) and self._tests[s] is None}


def _name_test(part: str) -> Callable[[str], bool]:
    if not _MAGIC.search(part):
        return part.__eq__
    compiled = re.compile(fnmatch.translate(part))
    return lambda name: compiled.match(name) is not None


def list_folders(patterns: Sequence[Pattern]) -> list[str]:
    """The folders whose listings hold every match, none below another; ``[""]`` where a pattern starts with ``*``."""
    folders = sorted({pattern.folder for pattern in patterns if pattern.literal is None})
    kept: list[str] = []
    for folder in folders:
        if not any(above in ("", folder) or folder.startswith(f"{above}/") for above in kept):
            kept.append(folder)
    return kept
