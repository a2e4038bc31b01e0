"""Objects of stores that hand out whole files only: what mosaicml-streaming's downloaders reach.

A downloader says nothing while it runs, so what it writes is watched: a slow transfer that gets on is told from a stuck
one. That takes a downloader that writes below the folder of the path it is given, as all of them do.
"""

from __future__ import annotations

import contextvars
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigError, DamageError, JobError
from ..files import hash_file
from ..remote.store_failures import StoreError, Transfer, redact, with_retries
from .cache_room import DISK_FULL
from .objects import read_part
from .waits import tell

__all__ = ["Download", "WholeObjects"]

Download = Callable[[str, str, float], None]
"""Fetches an object: its URL, the path to write, the time-out in seconds."""

_LOOK_S = 0.25


class WholeObjects:
    """Implements ``objects.Objects`` over a downloader; a size or a range costs a whole object."""

    def __init__(self, url: str, download: Download, transfer: Transfer) -> None:
        self._url = url
        self._download = download
        self._transfer = transfer

    @property
    def url(self) -> str:
        """The URL."""
        return self._url

    @property
    def has_ranges(self) -> bool:
        """False."""
        return False

    def names(self) -> Iterator[str] | None:
        """None."""
        return None

    def size(self, name: str) -> int:
        """See ``Objects.size``."""
        with self._held_shortly(name) as path:
            return path.stat().st_size

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See ``Objects.read``."""
        with self._held_shortly(name) as path:
            return read_part(path, start, stop)

    def fetch(self, name: str, target: Path, advance: Callable[[int], None]) -> str:
        """See ``Objects.fetch``."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _watched(target.parent, advance):
                self._to(name, target)
            with open(target, "rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = error.filename or str(target)
            raise
        return hash_file(target)

    @contextmanager
    def _held_shortly(self, name: str) -> Iterator[Path]:
        """The whole object, in a temporary folder."""
        came = 0

        def advance(size_bytes: int) -> None:
            nonlocal came
            came += size_bytes
            tell(f"fetching {self._url}/{name} ({came:,} bytes have come)")

        try:
            with tempfile.TemporaryDirectory(prefix="tokenreel-object-") as folder:
                with _watched(Path(folder), advance):
                    path = self._to(name, Path(folder) / "object")
                yield path
        except OSError as error:
            message = f"{self._url}/{name} cannot be written: {error.strerror or error}"
            expected = "room and rights in the folder for temporary files (TMPDIR)"
            raise JobError("TR-STORE-DISK", message, tempfile.gettempdir(), expected) from None

    def _to(self, name: str, target: Path) -> Path:
        place = f"{self._url}/{name}"

        def attempt() -> Path:
            target.unlink(missing_ok=True)
            try:
                self._download(place, str(target), self._transfer.request_timeout_s)
            except FileNotFoundError as error:
                if not target.parent.is_dir():  # taken away meanwhile: no word about the object
                    raise
                raise StoreError("missing", redact(str(error))) from None
            except PermissionError as error:
                raise StoreError("denied", redact(str(error))) from None
            except OSError as error:
                if error.errno in DISK_FULL:  # of ours: to ask the store again would not help
                    raise
                raise _again(error) from None
            except Exception as error:  # each store's client has exceptions of its own
                raise _again(error) from None
            if not target.is_file():
                raise StoreError("again", "the downloader left no file")
            return target

        try:
            return with_retries(attempt, place, self._transfer, lambda: None, threading.Event())
        except ConfigError as error:
            if error.code != "TR-REMOTE-MISSING":
                raise
            raise DamageError("TR-FILE-MISSING", "no such object", place, "the object") from None


def _again(error: Exception) -> StoreError:
    return StoreError("again", redact(f"{type(error).__name__}: {error}"))


@contextmanager
def _watched(folder: Path, advance: Callable[[int], None]) -> Iterator[None]:
    """Inside, ``advance`` hears how many bytes came below ``folder`` as they come, from another thread, but for whom
    this one tells (``waits``); negative where files were cut or removed."""
    end, known = threading.Event(), 0

    def look() -> None:
        nonlocal known
        now = _bytes_below(folder)
        if now != known:
            come, known = now - known, now
            advance(come)

    def watch() -> None:
        while not end.wait(_LOOK_S):
            with suppress(OSError):  # whoever fetches is told of it, at the latest at the end
                look()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(watch,), name="tokenreel-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    look()


def _bytes_below(folder: Path) -> int:
    size_bytes = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size_bytes += os.lstat(os.path.join(place, name)).st_size
    return size_bytes
