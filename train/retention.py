"""Which checkpoints stay: the last few, the newest of each of the last days, what an alarm may go back to, and pinned
ones.

A checkpoint's number orders it, never a clock: its day is a label, so a clock that jumps can move a checkpoint to
another day's label, but neither hide the newest one nor make an old one look new.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from loader.files import TEMPORARY_PREFIX, fsync_folder

from .checkpoint import Checkpoint, is_pinned, list_checkpoints

__all__ = ["day_of", "for_window", "newest_of_days", "remove_older"]


def day_of(checkpoint: Checkpoint) -> str:
    """The day (UTC) at which its clock said it was made; "" if nobody can tell."""
    try:
        return datetime.fromtimestamp(checkpoint.facts.time_s, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return ""


def newest_of_days(own: Sequence[Checkpoint], days: int) -> list[Checkpoint]:
    """The newest checkpoint of each of the ``days`` days that saved last, newest first."""
    found: dict[str, Checkpoint] = {}
    for checkpoint in sorted(own, key=lambda one: one.facts.number, reverse=True):
        if len(found) == days:
            break
        found.setdefault(day_of(checkpoint), checkpoint)
    return list(found.values())


def for_window(steps: Sequence[int], start: int) -> set[int]:
    """Which checkpoints an alarm may need whose window begins at step ``start``: the newest at or before it, and the
    first one made behind that, which takes its place as the window moves on. Windows of later alarms begin no earlier.

    Args:
        steps: of the checkpoints in the order in which they were made.

    Returns:
        indices into ``steps``.
    """
    before = [index for index, step in enumerate(steps) if step <= start][-1:]
    behind = range(before[0] + 1 if before else 0, len(steps))
    return {*before, *behind[:1]}


def remove_older(folder: Path, latest: Sequence[Checkpoint], daily: Collection[Checkpoint] = ()) -> list[Path]:
    """Remove what is older than the oldest of ``latest`` and neither in ``daily`` nor pinned; the removed folders.

    The caller knows that the newest of ``latest`` is intact: it was read back. Damaged folders are left alone. Others
    may save and remove at the same time: each removes only what has a smaller number than a checkpoint that it knows to
    be intact, so the intact one with the greatest number is never removed.

    Raises:
        OSError: the file system refused.
    """
    oldest = min((checkpoint.facts.number for checkpoint in latest), default=0)
    kept = {checkpoint.path for checkpoint in (*latest, *daily)}
    removed, doomed = [], []
    for checkpoint in list_checkpoints(folder)[0]:
        if checkpoint.facts.number < oldest and checkpoint.path not in kept and not is_pinned(checkpoint.path):
            aside = folder / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{checkpoint.path.name}"
            try:
                os.rename(checkpoint.path, aside)
            except OSError as error:
                if error.errno == errno.ENOENT:  # another one was faster
                    continue
                raise
            doomed.append(aside)
            removed.append(checkpoint.path)
    if doomed:
        fsync_folder(folder)  # or a loss of power could bring the name back without what it named
    for aside in doomed:
        shutil.rmtree(aside, ignore_errors=True)
    return removed
