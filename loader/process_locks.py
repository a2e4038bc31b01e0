"""Locked files that belong to one process: the lock falls when the process ends, whatever children of it live on.

A flock belongs to the open file, which a forked child shares: without more, the lock of a parent that was killed lasts
as long as any of its children. A child that calls another program drops it (close-on-exec); one that does not closes
its copies as it is forked. Limit: a fork that some C library does by itself calls no handler of Python's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

__all__ = ["ProcessLock", "lock_file"]


class ProcessLock:
    """A file that this process holds locked; made by :func:`lock_file`.

    Attributes:
        descriptor: of the file; -1 once it was given back, and in a forked child, which has no part in it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @property
    def is_held(self) -> bool:
        """Whether this very process holds it."""
        return self.descriptor >= 0

    def is_linked(self) -> bool:
        """Whether the file still has a name: whoever held it before may have removed it on leaving."""
        return self.is_held and os.fstat(self.descriptor).st_nlink > 0

    def cut_to(self, size_bytes: int) -> None:
        """Set the file's length; nothing in a forked child."""
        if self.is_held:
            os.ftruncate(self.descriptor, size_bytes)

    def close(self) -> None:
        """Give the lock back; nothing where it was given back, or in a forked child."""
        with _HELD.lock:
            _HELD.locks.discard(self)
            if self.is_held:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # a child just forked may not have closed its copy yet
                os.close(self.descriptor)
                self.descriptor = -1


class _Held:
    """The locks of this process. No fork falls between the opening of a file and its being noted here."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may close a lock while its thread opens another one
        self.locks: set[ProcessLock] = set()
        os.register_at_fork(before=self.acquire, after_in_parent=self.release, after_in_child=self.drop)

    def acquire(self) -> None:
        """Before a fork."""
        self.lock.acquire()

    def release(self) -> None:
        """After it, in the parent."""
        self.lock.release()

    def drop(self) -> None:
        """In a forked child: close the copies; the parent's lock stays as it is."""
        self.lock = threading.RLock()
        for held in self.locks:
            with contextlib.suppress(OSError):
                os.close(held.descriptor)
            held.descriptor = -1
        self.locks.clear()


_HELD = _Held()


def lock_file(path: Path, flags: int = 0) -> tuple[ProcessLock | None, int]:
    """Open ``path`` for reading and writing, made if missing, and lock it without waiting; (the lock, or None where
    another open file has it; length of the file in bytes).

    Args:
        path: no link.
        flags: of ``os.open``, beside the usual ones.

    Raises:
        OSError: it cannot be opened or made; it names the file.
    """
    with _HELD.lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
        try:
            size_bytes = os.fstat(descriptor).st_size
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None, size_bytes
        except BaseException:
            os.close(descriptor)
            raise
        held = ProcessLock(descriptor)
        _HELD.locks.add(held)
        return held, size_bytes
