"""Locks by name among the threads and processes of a machine, which fall with their process and tell how it gets on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import JobError
from ..files import digest_bytes
from ..process_locks import ProcessLock, lock_file
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
    def hold(self, name: str, what: str = "waiting for the cache") -> Iterator[ProcessLock]:
        """Hold the lock of a name, among threads and processes; yields the locked file, whose length tells progress.

        Raises:
            JobError: its holder got no further for ``timeout_s``.
        """
        path = self._folder / digest_bytes(name.encode())
        deadline, seen = time.monotonic() + self._timeout_s, -1
        while True:
            held, came = lock_file(path)
            if held is not None:
                if held.is_linked():
                    break
                held.close()  # its holder removed it on leaving
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
            held.cut_to(0)
            yield held
        finally:
            if held.is_held:  # a forked child has no part in it
                path.unlink(missing_ok=True)
                held.close()
