"""Locks by name among the threads and processes of a machine, which fall with their process and tell how it gets on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import JobError
from ..files import digest_bytes, make_folder
from ..process_locks import ProcessLock, lock_file
from .waits import tell

__all__ = ["NamedLocks"]

_POLL_S = 0.01
_ATTEMPTS = 4


class NamedLocks:
    """A lock is a file in ``folder``, held by flock while somebody has it, and removed on leaving.

    Its length is how far the holder has come, so that those who wait know a slow one from a stuck one. Whoever sets the
    length, to the same one too, gets on; and so do all when the lock goes from one holder to the next.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        """``folder``: made again where somebody took it away. ``timeout_s``: longest wait in which nobody got on."""
        self._folder = folder
        self._timeout_s = timeout_s

    @contextlib.contextmanager
    def hold(
        self, name: str, what: str = "waiting for the cache", getting_on: Callable[[], None] = lambda: None
    ) -> Iterator[ProcessLock]:
        """Hold the lock of a name, among threads and processes; yields the locked file, whose length tells progress.

        Args:
            name: of the lock. what: for messages.
            getting_on: called whenever others got on with it while this thread waits.

        Raises:
            JobError: nobody got further for ``timeout_s``. OSError: the lock's file cannot be made.
        """
        path = self._folder / digest_bytes(name.encode())
        deadline, seen = time.monotonic() + self._timeout_s, None
        while True:
            held, came = self._try(path)
            if held is not None:
                if held.is_linked():
                    break
                held.close()  # its holder removed it on leaving
                continue
            if (now := _mark(path)) != seen:
                deadline, seen = time.monotonic() + self._timeout_s, now
                tell(f"{what}, as another thread or process does ({came:,} bytes have come)")
                getting_on()
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
                if held.is_linked():  # else the folder was cleared, and the file there is another holder's
                    path.unlink(missing_ok=True)
                held.close()

    def _try(self, path: Path) -> tuple[ProcessLock | None, int]:
        """As :func:`lock_file`; the folder may be cleared away at any moment."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                return lock_file(path)
            with contextlib.suppress(FileNotFoundError):
                make_folder(self._folder)
        return lock_file(path)


def _mark(path: Path) -> tuple[int, int] | None:
    """Differs between two holders of a lock, and between two moments when its length was set; None between two."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
