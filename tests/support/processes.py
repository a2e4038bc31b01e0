"""Processes that a test did not start itself, and so cannot wait for."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_running"]


def is_running(pid: int) -> bool:
    """Whether it runs; one that ended and is only not waited for does not: an orphan stays so for as long as whoever
    inherits it likes, in some containers for minutes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
