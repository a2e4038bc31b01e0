"""A folder of fetched files that processes of one machine share: each file there whole and verified, or not there.

    <root>/<dataset digest>/...     files, under the names they have in their Dataset; ``.fetched`` marks such a folder,
                                    and nothing outside of marked folders is ever removed
    <root>/.leases/                 what each process needs (``leases``)
    <root>/.locks/                  held while a file is fetched; the length of one is how many bytes have come
    <root>/.used                    how full it is (``cache_room``)
    <root>/.tmp-<lease>-<process>-<number>-<size>/   a file on its way

Names begin with the digest of a Dataset, so another version of it never meets the files of this one. A file is fetched
under a temporary name, compared with size and xxh3-128, fsynced, renamed; one found there is compared before its first
use in each process, and removed and fetched again where it differs. Locks are flocks: they fall with their process.
The folder must lie on a local file system. It may be cleared away at any time, whole or in parts: it is made again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, DamageError, JobError
from ..files import TEMPORARY_PREFIX, fsync_folder, make_folder
from ..process_locks import ProcessLock
from ..shards.access import hash_regular, resolve
from .cache_room import DISK_FULL, MARK, CacheRoom
from .locks import NamedLocks
from .waits import tell

__all__ = ["ANOTHER_FOLDER", "CacheFolder", "Fetch", "Wanted"]

Fetch = Callable[[Path, Callable[[int], None]], str]
"""Writes a file to a path, told how to report bytes that came, and returns its xxh3-128."""

ANOTHER_FOLDER = "`cache` in the configuration, or TOKENREEL_CACHE in the environment, names another"
"""For messages: what to do about a folder that cannot be used."""

_REMEMBERED = 8192
_ATTEMPTS = 4
_NONE = "the cache holds nothing that nobody needs"


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
            limit_bytes: of shard files in all; None: all that the disk has but a twentieth of it, and never less than
                half of what the cache and the free space together hold.
            timeout_s: longest wait for another process that gets on with a file no further.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self.root = root
        self.given_limit_bytes = limit_bytes
        self._locks = NamedLocks(root / ".locks", timeout_s)
        self._room = CacheRoom(root, limit_bytes, self._locks)
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._claimed: set[str] = set()
        self._numbers = itertools.count()
        try:
            make_folder(root)
            make_folder(root / ".locks")
            self.lease = self._room.begin()
        except OSError as error:
            raise _unwritable(root, error) from None

    def limit_bytes(self) -> int:
        """The limit in force; where none was given, the folder is looked through."""
        return self._room.limit_bytes()

    def check_holds(self, shard_bytes: int) -> None:
        """Refuse a cache that cannot hold one shard with all its files.

        Raises:
            ConfigError: ``TR-STORE-CACHE-SMALL``.
        """
        limit = self.limit_bytes()
        if limit >= shard_bytes:
            return
        if self.given_limit_bytes is None:
            raise ConfigError(
                "TR-STORE-CACHE-SMALL", f"the disk has room for {limit:,} bytes of cache, which hold no shard",
                str(self.root), f"{2 * shard_bytes:,} bytes on the disk, free or in the cache; {ANOTHER_FOLDER}",
            )  # fmt: skip
        raise ConfigError(
            "TR-STORE-CACHE-SMALL", f"a cache of {limit:,} bytes (cache_bytes) cannot hold one shard", str(self.root),
            f"at least {shard_bytes:,} bytes; a few dozen shards of each source to read each only once an epoch",
        )  # fmt: skip

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
                expected = f"room and rights in the cache folder; {ANOTHER_FOLDER}"
                raise JobError("TR-STORE-DISK", message, str(error.filename or path), expected) from None
        with contextlib.suppress(OSError):
            os.utime(path)  # its age decides who is evicted first
        return path

    def claim(self, top: str) -> None:
        """Make the folder ``top`` of a Dataset, marked as one of fetched files, unless it is there.

        Raises:
            ConfigError: there is a folder of that name that no cache made, or the cache cannot be written.
        """
        try:
            self._claim(top)
        except OSError as error:
            raise _unwritable(self.root / top, error) from None

    def _claim(self, top: str) -> None:
        mark = self.root / top / MARK
        if mark.exists():
            self._claimed.add(top)
            return
        folder = self._temporary(0)
        try:
            make_folder(folder)
            (folder / MARK).touch()
            os.rename(folder, self.root / top)
            self._claimed.add(top)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            if top in self._claimed and (self.root / top).is_dir():
                mark.touch()  # somebody is clearing away what is in it
            if mark.exists():
                return  # another was faster
            if not os.path.lexists(self.root / top):
                raise
            message = "the cache holds a folder that is not of its making"
            expected = f"a folder for fetched files alone; {ANOTHER_FOLDER}"
            raise ConfigError("TR-STORE-CACHE", message, str(self.root / top), expected) from None

    def _temporary(self, size_bytes: int) -> Path:
        """A new name for a folder in which ``size_bytes`` will come; a forked child has a lease of its own, but counts
        on from the same number."""
        number = next(self._numbers)
        return self.root / f"{TEMPORARY_PREFIX}{self.lease.name}-{os.getpid()}-{number}-{size_bytes}"

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
        """Fetch the file; once more where the folder was cleared away meanwhile, or where the disk was full and the
        cache held what nobody needs."""
        removed = 0
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._fetch_once(wanted, fetch, progress)
                return
            except FileNotFoundError:
                if not left:
                    raise
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                gone = self._room.free(wanted.size_bytes, lambda: progress.cut_to(0)) if left else []
                self._forget(gone)
                removed += len(gone)
                if not gone:
                    what = f"{removed:,} file(s) that nobody needs were removed" if removed else _NONE
                    raise OSError(error.errno, f"{error.strerror}; {what}", error.filename) from None

    def _fetch_once(self, wanted: Wanted, fetch: Fetch, progress: ProcessLock) -> None:
        path, folder = self.root / wanted.name, self._temporary(wanted.size_bytes)
        self._claim(wanted.name.partition("/")[0])
        make_folder(path.parent)
        came = 0

        def advance(size_bytes: int) -> None:
            nonlocal came
            came += size_bytes
            progress.cut_to(max(0, came))
            tell(f"fetching {wanted.place} ({came:,} of {wanted.size_bytes:,} bytes)")

        self._forget(self._room.take(wanted.size_bytes, folder, lambda: progress.cut_to(0)))
        tell(f"fetching {wanted.place}")
        try:
            for last in (False, True):
                temporary = folder / str(last) / path.name
                came, digest = 0, fetch(temporary, advance)
                found = os.lstat(temporary)
                if (found.st_size, digest) == (wanted.size_bytes, wanted.xxh3_128):
                    break
                if last:
                    message = f"the object has {found.st_size:,} bytes and xxh3-128 {digest}, fetched twice"
                    expected = f"{wanted.size_bytes:,} bytes and {wanted.xxh3_128}, as the manifest says"
                    raise DamageError("TR-FILE-HASH", message, wanted.place, expected)
                shutil.rmtree(temporary.parent, ignore_errors=True)
            os.replace(temporary, path)
            fsync_folder(path.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._remember(wanted.name, found)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.forget(name)


def _unwritable(place: Path, error: OSError) -> ConfigError:
    message = f"the cache folder cannot be written: {error.strerror}"
    return ConfigError(
        "TR-STORE-CACHE", message, str(place), f"a folder of your own, on a local disk; {ANOTHER_FOLDER}"
    )
