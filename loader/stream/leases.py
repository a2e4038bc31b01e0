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
from ..process_locks import ProcessLock, lock_file

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
    """This process's lease; threads share it. A forked child that needs something takes out one of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._pinned: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._held = ProcessLock(-1)
        self._take_out()
        _LEASES.add(self)

    @property
    def name(self) -> str:
        """Under which this process has it.

        Raises:
            OSError: a new one was needed and cannot be written.
        """
        with self._lock:
            if not self._held.is_linked():  # in a forked child, and where somebody cleared the folder away
                self._take_out()
            return self._name

    def _take_out(self) -> None:
        self._held.close()
        make_folder(self._folder)
        while True:
            self._name = secrets.token_hex(8)
            path = self._folder / f"{self._name}{_SUFFIX}"
            held, _ = lock_file(path, os.O_EXCL)
            if held is not None and held.is_linked():
                break  # else somebody took it for a dead one before it was locked
            if held is not None:
                held.close()
        self._held = held
        weakref.finalize(self, _end, held, path)
        self._write()

    def after_fork(self) -> None:
        """In a forked child: what the parent's threads need is theirs, and their locks may be held for ever."""
        self._lock = threading.RLock()
        self._pinned, self._kept = Counter(), Counter()

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
            if not self._held.is_linked():
                self._take_out()
            os.pwrite(self._held.descriptor, data, 0)
            self._held.cut_to(len(data))


_LEASES: weakref.WeakSet[Lease] = weakref.WeakSet()


def _after_fork() -> None:
    for lease in list(_LEASES):
        lease.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _take(counts: Counter[str], names: Iterable[str]) -> None:
    for name in names:
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]


def _end(held: ProcessLock, path: Path) -> None:
    if held.is_held:  # a forked child has a copy of the object, not of the lease
        with contextlib.suppress(OSError):  # somebody may have taken the folder away
            path.unlink(missing_ok=True)
        held.close()


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
