"""Locks by name among the threads and processes of a machine, which fall with their process and tell how it gets on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import JobError
from ..files import digest_bytes
from .waits import tell

__all__ = ["NamedLocks"]

_POLL_S = 0.01


class NamedLocks:
    """A lock is a file in ``folder``, held by flock while somebody has it, and removed on leaving.

    Its length is how far the holder has come, so that those who wait know a slow one from a stuck one.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        """``timeout_s``: longest wait without progress of the holder."""
        self._folder = folder
        self._timeout_s = timeout_s

    @contextlib.contextmanager
    def hold(self, name: str, what: str = "waiting for the cache") -> Iterator[int]:
        """Hold the lock of a name, among threads and processes; yields the lock file's descriptor.

        Raises:
            JobError: its holder got no further for ``timeout_s``.
        """
        path = self._folder / digest_bytes(name.encode())
        deadline, seen = time.monotonic() + self._timeout_s, -1
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                came = os.fstat(descriptor).st_size
                os.close(descriptor)
            else:
                if os.fstat(descriptor).st_nlink:
                    break
                os.close(descriptor)  # its holder removed it on leaving
                continue
            if came != seen:
                deadline, seen = time.monotonic() + self._timeout_s, came
                tell(f"{what}, as another thread or process does ({came:,} bytes have come)")
            if time.monotonic() > deadline:
                raise JobError(
                    "TR-STORE-TIMEOUT", f"waited {self._timeout_s:g} s for another thread or process: {what}",
                    str(path), "one that gets on",
                )  # fmt: skip
            time.sleep(_POLL_S)
        try:
            os.ftruncate(descriptor, 0)
            yield descriptor
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)
