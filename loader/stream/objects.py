"""The objects of one Dataset at a URL: sizes, ranges, whole files. Failures come as what they mean for a Dataset."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import xxhash

from ..errors import ConfigError, DamageError, JobError, RefusedError
from ..remote.fetch import Fetcher, place_of, read_ranges
from ..remote.store import RemoteFile, Store
from ..remote.store_failures import StoreError, Transfer, with_retries

__all__ = ["Objects", "StoreObjects", "read_part"]

_R = TypeVar("_R")


class Objects(Protocol):
    """Read access to the objects below a URL; used from several threads."""

    @property
    def url(self) -> str:
        """The URL."""

    @property
    def has_ranges(self) -> bool:
        """Whether ranges can be read without the rest."""

    def names(self) -> Iterator[str] | None:
        """Every object below the URL, in no order; None where the store has no listing.

        Raises:
            JobError: the store does not answer.
        """

    def size(self, name: str) -> int:
        """Size in bytes of an object.

        Raises:
            DamageError: ``TR-FILE-MISSING``: there is none. JobError: it cannot be looked up.
        """

    def read(self, name: str, start: int, stop: int) -> bytes:
        """A byte range; raises as :meth:`fetch`."""

    def fetch(self, name: str, target: Path, advance: Callable[[int], None]) -> str:
        """Fetch a whole object to ``target``, whose folder is the caller's alone; returns its xxh3-128.

        Raises:
            DamageError: ``TR-FILE-MISSING``. JobError: it cannot be fetched. OSError: the disk refused.
        """


def read_part(path: Path, start: int, stop: int) -> bytes:
    """The bytes ``start`` to ``stop`` of a file, as far as it goes; never more of it in memory."""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start)


def _end(fetcher: Fetcher, pid: int) -> None:
    """Threads of a Dataset that is forgotten; a forked child has none, and may find their lock held for ever."""
    if os.getpid() == pid:
        fetcher.give_up()


class StoreObjects:
    """Objects of a store that obstore or fsspec reads."""

    def __init__(self, store: Store, transfer: Transfer) -> None:
        self._store = store
        self._transfer = transfer
        self._fetcher = Fetcher(transfer)
        self._known: dict[str, RemoteFile] = {}
        self._has_ranges = True
        self._pid = os.getpid()
        weakref.finalize(self, _end, self._fetcher, self._pid).atexit = False

    @property
    def url(self) -> str:
        """The URL."""
        return self._store.url

    @property
    def has_ranges(self) -> bool:
        """True until a server says at the first range that it knows none."""
        return self._has_ranges

    def names(self) -> Iterator[str] | None:
        """See :meth:`Objects.names`."""
        if not self._store.can_list:
            return None
        listed = with_retries(
            lambda: [file.path for file in self._store.list("")],
            self.url,
            self._transfer,
            self._store.renew,
            threading.Event(),
        )
        return iter(listed)

    def size(self, name: str) -> int:
        """See :meth:`Objects.size`."""
        return self._retried(name, lambda: self._look_up(name, anew=True).size_bytes)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See :meth:`Objects.read`; where the server knows no ranges, it costs the whole object."""
        return self._retried(name, lambda: self._read(name, start, stop))

    def _read(self, name: str, start: int, stop: int) -> bytes:
        if self._has_ranges:
            try:
                return read_ranges(self._store, self._look_up(name), start, stop, self._transfer)
            except StoreError as failure:
                if failure.kind != "unsupported":
                    raise
                self._has_ranges = False
        with tempfile.TemporaryDirectory(prefix="tokenreel-object-") as folder:
            self._fetch(name, Path(folder) / "object", lambda size_bytes: None)
            return read_part(Path(folder) / "object", start, stop)

    def fetch(self, name: str, target: Path, advance: Callable[[int], None]) -> str:
        """See :meth:`Objects.fetch`."""
        return self._retried(name, lambda: self._fetch(name, target, advance))

    def _fetch(self, name: str, target: Path, advance: Callable[[int], None]) -> str:
        file = self._look_up(name, anew=True)
        if not file.size_bytes:  # nothing to ask for
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            return xxhash.xxh3_128_hexdigest(b"")
        came = 0

        def counted(size_bytes: int) -> None:
            nonlocal came
            came += size_bytes
            advance(size_bytes)

        try:
            return self._fetcher.fetch(self._store, file, target, counted)
        except RefusedError:
            counted(-came)
            raise

    def _look_up(self, name: str, anew: bool = False) -> RemoteFile:
        if os.getpid() != self._pid:
            raise JobError(
                "TR-STORE-FORKED", "the process was forked after the Dataset was opened", f"{self.url}/{name}",
                "a Dataset that is opened in the process that reads it",
            )  # fmt: skip
        file = None if anew else self._known.get(name)
        if file is None:
            place = f"{self.url}/{name}"
            file = with_retries(
                lambda: self._store.head(name), place, self._transfer, self._store.renew, threading.Event()
            )
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[name] = file
        return file

    def _retried(self, name: str, attempt: Callable[[], _R]) -> _R:
        """An object that was replaced since it was looked up is looked up again, once; the manifest decides."""
        try:
            try:
                return attempt()
            except RefusedError:
                self._known.pop(name, None)
                return attempt()
        except ConfigError as error:
            if error.code != "TR-REMOTE-MISSING":
                raise
            self._known.pop(name, None)
            raise DamageError("TR-FILE-MISSING", "no such object", f"{self.url}/{name}", "the object") from None
        except StoreError as failure:
            file = self._known.get(name)
            place = f"{self.url}/{name}" if file is None else place_of(self._store, file)
            raise JobError("TR-REMOTE-FAILED", failure.reason, place) from None
