"""How full a cache folder may become, and who has to go: one account for all processes that share the folder.

    <root>/.used                bytes of the files that may be evicted, those on their way included
    <root>/.tmp-<...>-<size>/   a file on its way; what it will take counts from the moment that this folder is made

The account may say too much (a fetch failed, a file was damaged), never too little as long as nobody but the cache puts
files there; so it is believed as long as the limit is kept. Otherwise the folder is looked through, which costs a call
of the system for each file; so that it happens rarely, a sixteenth of the limit more than necessary is freed, of what
nobody needs. An account that is not there, or was left by processes that are gone, is made anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..files import TEMPORARY_PREFIX
from ..process_locks import ProcessLock
from .leases import Lease, Needs, read_needs
from .locks import NamedLocks
from .waits import tell

__all__ = ["DISK_FULL", "MARK", "CacheRoom"]

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says where the disk, or the user's share of it, is full."""

MARK = ".fetched"
"""The file that marks a folder of fetched files."""

_EVICTED_SUFFIXES = (".mds", ".segments", ".docs", "documents.npy")
_DISK_SHARE = 20
_SPARE_SHARE = 16
_TOLD_FILES = 1024
_DIGITS = 20
_LOCK = "evict"


class CacheRoom:
    """The room in a cache folder; threads and processes may share it, under different limits if they like.

    Attributes:
        root: the folder. given_limit_bytes: as given.
    """

    def __init__(self, root: Path, limit_bytes: int | None, locks: NamedLocks) -> None:
        self.root = root
        self.given_limit_bytes = limit_bytes
        self._locks = locks
        self._account = root / ".used"

    def begin(self) -> Lease:
        """Clear away what dead processes left: files on their way, and the account where none lives; then take out this
        process's own lease: of several that start at once the first one must see that nobody was there.

        Raises:
            OSError: the folder cannot be written. JobError: another process holds it for too long.
        """
        with self._locks.hold(_LOCK):
            needs = read_needs(self.root / ".leases")
            self._clear(needs)
            if not needs.alive:
                self._account.unlink(missing_ok=True)
            return Lease(self.root / ".leases")

    def limit_bytes(self) -> int:
        """The limit in force; where none was given, the folder is looked through."""
        if self.given_limit_bytes is not None:
            return self.given_limit_bytes
        return self._limit(sum(size for _, size, _ in self._files(lambda: None)))

    def take(self, size_bytes: int, folder: Path, getting_on: Callable[[], None]) -> list[str]:
        """Make room for a file of ``size_bytes``, and ``folder`` to fetch it to, whose name ends with the size.

        Args:
            getting_on: called now and then where it takes long.

        Returns:
            The names of what had to go.

        Raises:
            OSError: the folder cannot be written. JobError: another process holds it for too long.
        """
        gone: list[tuple[str, int]] = []
        with self._locks.hold(_LOCK, "making room in the cache", getting_on) as progress:
            used = self._read()
            if used is None or used + size_bytes > self._limit(used):
                needs, files, coming = self._look_through(_step(progress, getting_on))
                there = sum(size for _, size, _ in files)
                limit = self._limit(there)
                gone = self._evict(files, there + coming + size_bytes - limit, limit // _SPARE_SHARE, needs)
                used = there + coming - sum(size for _, size in gone)
            os.mkdir(folder)
            self._write(used + size_bytes)
        return [name for name, _ in gone]

    def free(self, size_bytes: int, getting_on: Callable[[], None]) -> list[str]:
        """Remove what nobody needs, ``size_bytes`` and a sixteenth of what is there, as the disk is full although the
        limit is not reached; see :meth:`take`."""
        with self._locks.hold(_LOCK, "making room on the disk", getting_on) as progress:
            needs, files, coming = self._look_through(_step(progress, getting_on))
            there = sum(size for _, size, _ in files)
            needed = Needs(needs.pinned | needs.kept, frozenset(), needs.alive)
            gone = self._evict(files, size_bytes + there // _SPARE_SHARE, 0, needed)
            self._write(there + coming - sum(size for _, size in gone))
        return [name for name, _ in gone]

    def _limit(self, used: int) -> int:
        if self.given_limit_bytes is not None:
            return self.given_limit_bytes
        disk = os.statvfs(self.root)
        has = used + disk.f_bavail * disk.f_frsize
        return has - min(disk.f_blocks * disk.f_frsize // _DISK_SHARE, has // 2)

    def _look_through(self, step: Callable[[], None]) -> tuple[Needs, list[tuple[int, int, str]], int]:
        """Who needs what; the files that may be evicted; the bytes of those on their way."""
        needs = read_needs(self.root / ".leases")
        self._clear(needs)
        sizes = (path.name.rpartition("-")[2] for path in self.root.glob(f"{TEMPORARY_PREFIX}*"))
        coming = sum(int(size) for size in sizes if size.isdecimal())
        return needs, list(self._files(step)), coming

    def _evict(
        self, files: Iterable[tuple[int, int, str]], too_many: int, spare: int, needs: Needs
    ) -> list[tuple[str, int]]:
        """Remove ``too_many`` bytes: what nobody needs first, then what is needed later, the oldest first; and up to
        ``spare`` bytes more of what nobody needs, so that the next files have room already. Returns names and sizes."""
        gone = []
        for _, size, name in sorted(files, key=lambda file: (file[2] in needs.kept, file[0])):
            if too_many <= 0 and (name in needs.kept or size > too_many + spare):
                break
            if name not in needs.pinned:
                (self.root / name).unlink(missing_ok=True)
                gone.append((name, size))
                too_many -= size
        return gone

    def _files(self, step: Callable[[], None]) -> Iterator[tuple[int, int, str]]:
        """(time of last use, size, name) of each file that may be evicted."""
        for mark in self.root.glob(f"*/{MARK}"):
            for folder, _, names in os.walk(mark.parent):
                for name in names:
                    if name.endswith(_EVICTED_SUFFIXES):
                        path = os.path.join(folder, name)
                        step()
                        with contextlib.suppress(FileNotFoundError):
                            found = os.lstat(path)
                            yield found.st_mtime_ns, found.st_size, os.path.relpath(path, self.root)

    def _clear(self, needs: Needs) -> None:
        """Remove what processes that are dead left half fetched."""
        for path in self.root.glob(f"{TEMPORARY_PREFIX}*"):
            if path.name[len(TEMPORARY_PREFIX) :].partition("-")[0] not in needs.alive:
                shutil.rmtree(path, ignore_errors=True)

    def _read(self) -> int | None:
        """The account; None where there is none that can be read."""
        try:
            data = self._account.read_bytes()
        except OSError:
            return None
        return int(data) if data.isdigit() and len(data) == _DIGITS else None

    def _write(self, used: int) -> None:
        """Always of one length, so that a full disk has room for it; it need not survive a power loss."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._account, flags, 0o666)
            try:
                os.ftruncate(descriptor, os.pwrite(descriptor, f"{used:0{_DIGITS}d}".encode(), 0))
            finally:
                os.close(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self._account.unlink(missing_ok=True)


def _step(progress: ProcessLock, getting_on: Callable[[], None]) -> Callable[[], None]:
    """Called a file: now and then it says to those who wait, here and elsewhere, that this gets on."""
    looked_at = 0

    def step() -> None:
        nonlocal looked_at
        looked_at += 1
        if not looked_at % _TOLD_FILES:
            progress.cut_to(looked_at)
            tell(f"looking through the cache ({looked_at:,} files)")
            getting_on()

    return step
