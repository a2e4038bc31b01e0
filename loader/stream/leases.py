"""Which files of a shared cache folder are needed, and by whom: a lease a process, that ends with the process.

A lease is a file that its process keeps locked (flock), so a killed one's is seen to be dead by whoever can lock it. It
holds a line a file: ``pin`` for files that are being opened this moment, ``keep`` for those of the next steps. Leases
only guide eviction: a file that goes all the same is fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import make_folder

__all__ = ["Lease", "Needs", "read_needs"]

_SUFFIX = ".lease"
_END = "end"
_MAX_LEASE_BYTES = 1 << 26


@dataclass(frozen=True)
class Needs:
    """What all live leases of a folder say together: names of files, and the names of the leases."""

    pinned: frozenset[str]
    kept: frozenset[str]
    alive: frozenset[str]


class Lease:
    """This process's lease; threads share it."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._lock = threading.Lock()
        self._pinned: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        while True:
            self.name = secrets.token_hex(8)
            path = folder / f"{self.name}{_SUFFIX}"
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.fstat(self._descriptor).st_nlink:
                break  # else somebody took it for a dead one before it was locked
            os.close(self._descriptor)
        weakref.finalize(self, _end, self._descriptor, path, os.getpid())
        self._write()

    @contextlib.contextmanager
    def pin(self, names: Iterable[str]) -> Iterator[None]:
        """Inside, nobody evicts the files."""
        own = list(names)
        with self._lock:
            self._pinned.update(own)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                _take(self._pinned, own)

    def keep(self, names: Iterable[str]) -> None:
        """Files that will be needed: evicted last. As often as they are kept they must be let go."""
        with self._lock:
            self._kept.update(names)
            self._write()

    def let_go(self, names: Iterable[str]) -> None:
        """End one :meth:`keep` of each file."""
        with self._lock:
            _take(self._kept, names)
            self._write()

    def _write(self) -> None:
        lines = [*(f"pin {name}" for name in self._pinned), *(f"keep {name}" for name in self._kept), _END]
        data = "\n".join(lines).encode()
        with contextlib.suppress(OSError):  # a full disk must not stop who reads what is there
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))


def _take(counts: Counter[str], names: Iterable[str]) -> None:
    for name in names:
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]


def _end(descriptor: int, path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has a copy of the object, not of the lease
        path.unlink(missing_ok=True)
    os.close(descriptor)


def read_needs(folder: Path) -> Needs:
    """What the live leases say; those of dead processes are removed."""
    pinned: set[str] = set()
    kept: set[str] = set()
    alive: set[str] = set()
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                alive.add(path.name[: -len(_SUFFIX)])
            else:
                with contextlib.suppress(OSError):  # another user's may have to stay
                    path.unlink()
                continue
            for line in _lines(descriptor):
                kind, _, name = line.partition(" ")
                (pinned if kind == "pin" else kept).add(name)
        finally:
            os.close(descriptor)
    return Needs(frozenset(pinned), frozenset(kept), frozenset(alive))


def _lines(descriptor: int) -> list[str]:
    """The lines of a lease that may be written meanwhile: read until it is whole, a few times at most."""
    for _ in range(8):
        data = os.pread(descriptor, min(_MAX_LEASE_BYTES, os.fstat(descriptor).st_size), 0)
        lines = data.decode("utf-8", "replace").split("\n")
        if lines[-1] == _END:
            return lines[:-1]
    return []
