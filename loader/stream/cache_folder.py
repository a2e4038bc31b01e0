"""A folder of fetched files that processes of one machine share: each file there whole and verified, or not there.

    <root>/<dataset digest>/...     files, under the names they have in their Dataset; ``.fetched`` marks such a folder,
                                    and nothing outside of marked folders is ever removed
    <root>/.leases/                 what each process needs (``leases``)
    <root>/.locks/                  held while a file is fetched; the length of one is how many bytes have come
    <root>/.tmp-<lease>-<process>-<number>/   a file on its way

Names begin with the digest of a Dataset, so another version of it never meets the files of this one. A file is fetched
under a temporary name, compared with size and xxh3-128, fsynced, renamed; one found there is compared before its first
use in each process, and removed and fetched again where it differs. Locks are flocks: they fall with their process.
The folder must lie on a local file system.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, DamageError, JobError
from ..files import TEMPORARY_PREFIX, fsync_folder, make_folder
from ..process_locks import ProcessLock
from ..shards.access import hash_regular, resolve
from .leases import Lease, Needs, read_needs
from .locks import NamedLocks
from .waits import tell

__all__ = ["CacheFolder", "Fetch", "Wanted"]

Fetch = Callable[[Path, Callable[[int], None]], str]
"""Writes a file to a path, told how to report bytes that came, and returns its xxh3-128."""

_MARK = ".fetched"
_EVICTED_SUFFIXES = (".mds", ".segments", ".docs", "documents.npy")
_REMEMBERED = 8192
_DISK_SHARE = 20  # without a limit, a twentieth of the disk stays free, or half of what there is where that is less


@dataclass(frozen=True)
class Wanted:
    """A file as its manifest has it.

    Attributes:
        name: in the cache, ``/``-separated, checked.
        size_bytes, xxh3_128: of the file.
        place: its URL, for messages.
    """

    name: str
    size_bytes: int
    xxh3_128: str
    place: str


class CacheFolder:
    """Makes files be there; threads and processes may share the folder, under different limits if they like.

    Attributes:
        root: the folder. given_limit_bytes: as given. lease: what this process needs of it.
    """

    def __init__(self, root: Path, limit_bytes: int | None, timeout_s: float) -> None:
        """Open, and clear away what killed processes left.

        Args:
            root: made if missing.
            limit_bytes: of shard files in all; None: what the disk has, but for a twentieth of it; on a disk that is
                fuller than that, half of what is left.
            timeout_s: longest wait for another process that gets on with a file no further.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self.root = root
        self.given_limit_bytes = limit_bytes
        self._locks = NamedLocks(root / ".locks", timeout_s)
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._unscanned = 0
        self._room = 0
        try:
            make_folder(root)
            make_folder(root / ".locks")
            self.lease = Lease(root / ".leases")
            with self._locks.hold("evict"):
                self._clear(read_needs(root / ".leases"))
        except OSError as error:
            message = f"the cache folder cannot be written: {error.strerror}"
            raise ConfigError("TR-STORE-CACHE", message, str(root), "a folder of your own, on a local disk") from None

    def limit_bytes(self) -> int:
        """The limit in force; where none was given, the folder is looked through."""
        if self.given_limit_bytes is not None:
            return self.given_limit_bytes
        disk = os.statvfs(self.root)
        has = sum(size for _, size, _ in self._files()) + disk.f_bavail * disk.f_frsize
        return has - min(disk.f_blocks * disk.f_frsize // _DISK_SHARE, has // 2)

    def has(self, wanted: Wanted) -> bool:
        """Whether the file is there and was verified by this process."""
        try:
            found = os.lstat(self.root / wanted.name)
        except OSError:
            return False
        seen = self._seen.get(wanted.name)
        return seen == (found.st_ino, found.st_size) and stat.S_ISREG(found.st_mode)

    def forget(self, name: str) -> None:
        """Verify the file again before its next use."""
        with self._lock:
            self._seen.pop(name, None)

    def ensure(self, wanted: Wanted, fetch: Fetch) -> Path:
        """The path of a file that is there and verified. The caller pins it, or expects it to be gone again.

        Raises:
            DamageError: the object's bytes are not those of the manifest, twice; or what ``fetch`` raises.
            JobError: the disk refused, or another process holds the file for too long without getting on.
        """
        path = self.root / wanted.name
        if not self.has(wanted):
            try:
                with self._locks.hold(wanted.name, f"fetching {wanted.place}") as progress:
                    if not self._verified(wanted):
                        self._fetch(wanted, fetch, progress)
            except OSError as error:
                message = f"the cache cannot be read and written: {error.strerror or error}"
                place = str(error.filename or path)
                raise JobError("TR-STORE-DISK", message, place, "room and rights in the cache folder") from None
        with contextlib.suppress(OSError):
            os.utime(path)  # its age decides who is evicted first
        return path

    def claim(self, top: str) -> None:
        """Make the folder ``top`` of a Dataset, marked as one of fetched files, unless it is there.

        Raises:
            ConfigError: there is a folder of that name that no cache made.
        """
        mark = self.root / top / _MARK
        if not mark.exists():
            folder = self._temporary()
            try:
                make_folder(folder)
                (folder / _MARK).touch()
                os.rename(folder, self.root / top)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
            if not mark.exists():
                message = "the cache holds a folder that is not of its making, or cannot be written"
                raise ConfigError("TR-STORE-CACHE", message, str(self.root / top), "a folder for fetched files alone")

    def _temporary(self) -> Path:
        """A new name; a forked child has a lease of its own, but counts on from the same number."""
        return self.root / f"{TEMPORARY_PREFIX}{self.lease.name}-{os.getpid()}-{next(self._numbers)}"

    def _verified(self, wanted: Wanted) -> bool:
        """Whether the right bytes are there; others are removed."""
        if self.has(wanted):
            return True
        path = self.root / wanted.name
        try:
            resolve(self.root, wanted.name)
            found = os.lstat(path)
            tell(f"verifying {path}")
            size_bytes, digest = hash_regular(path)
        except FileNotFoundError:
            return False
        except DamageError as error:
            if error.code == "TR-FILE-MISSING":
                return False
            size_bytes, digest = -1, ""
        if (size_bytes, digest) != (wanted.size_bytes, wanted.xxh3_128):
            self._remove(path)
            return False
        self._remember(wanted.name, found)
        return True

    def _remove(self, path: Path) -> None:
        """Remove what lies where a file of ours should, and links and files where a folder of ours should."""
        below = path.relative_to(self.root)
        for place in [self.root / parent for parent in reversed(below.parents)][1:]:
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                place.unlink()
                return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _remember(self, name: str, found: os.stat_result) -> None:
        with self._lock:
            self._seen[name] = (found.st_ino, found.st_size)
            self._seen.move_to_end(name)
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)

    def _fetch(self, wanted: Wanted, fetch: Fetch, progress: ProcessLock) -> None:
        path, folder = self.root / wanted.name, self._temporary()
        self.claim(wanted.name.partition("/")[0])
        make_folder(path.parent)
        came = 0

        def advance(size_bytes: int) -> None:
            nonlocal came
            came += size_bytes
            progress.cut_to(max(0, came))
            tell(f"fetching {wanted.place} ({came:,} of {wanted.size_bytes:,} bytes)")

        self._make_room(wanted.size_bytes)
        tell(f"fetching {wanted.place}")
        try:
            for last in (False, True):
                shutil.rmtree(folder, ignore_errors=True)
                temporary = folder / path.name
                came, digest = 0, fetch(temporary, advance)
                found = os.lstat(temporary)
                if (found.st_size, digest) == (wanted.size_bytes, wanted.xxh3_128):
                    break
                if last:
                    message = f"the object has {found.st_size:,} bytes and xxh3-128 {digest}, fetched twice"
                    expected = f"{wanted.size_bytes:,} bytes and {wanted.xxh3_128}, as the manifest says"
                    raise DamageError("TR-FILE-HASH", message, wanted.place, expected)
            os.replace(temporary, path)
            fsync_folder(path.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._remember(wanted.name, found)

    def _make_room(self, size_bytes: int) -> None:
        """Evict until a file of ``size_bytes`` fits. The folder is looked through once in a while, not each time, as
        long as far less than the limit can have come meanwhile."""
        with self._lock:
            self._unscanned += size_bytes
            if self._unscanned <= self._room // 8:
                return
        with self._locks.hold("evict"):
            needs = read_needs(self.root / ".leases")
            self._clear(needs)
            files = list(self._files())
            limit = self.limit_bytes()
            used = size_bytes + sum(size for _, size, _ in files)
            self._evict(files, used - limit, needs)
            with self._lock:
                self._unscanned, self._room = size_bytes, max(0, limit - used)

    def _evict(self, files: Iterable[tuple[int, int, str]], too_many: int, needs: Needs) -> None:
        """Remove ``too_many`` bytes: what nobody needs first, then what is needed later, the oldest first."""
        for _, size, name in sorted(files, key=lambda file: (file[2] in needs.kept, file[0])):
            if too_many <= 0:
                return
            if name not in needs.pinned:
                (self.root / name).unlink(missing_ok=True)
                self.forget(name)
                too_many -= size

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """(time of last use, size, name) of each file that may be evicted."""
        for mark in self.root.glob(f"*/{_MARK}"):
            for folder, _, names in os.walk(mark.parent):
                for name in names:
                    if name.endswith(_EVICTED_SUFFIXES):
                        path = os.path.join(folder, name)
                        with contextlib.suppress(FileNotFoundError):
                            found = os.lstat(path)
                            yield found.st_mtime_ns, found.st_size, os.path.relpath(path, self.root)

    def _clear(self, needs: Needs) -> None:
        """Remove what processes that are dead left half fetched."""
        for path in self.root.glob(f"{TEMPORARY_PREFIX}*"):
            if path.name[len(TEMPORARY_PREFIX) :].partition("-")[0] not in needs.alive:
                shutil.rmtree(path, ignore_errors=True)
