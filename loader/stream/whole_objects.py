"""Objects of stores that hand out whole files only: what mosaicml-streaming's downloaders reach."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ConfigError, DamageError
from ..files import hash_file
from ..remote.store_failures import StoreError, Transfer, redact, with_retries
from .objects import read_part

__all__ = ["Download", "WholeObjects"]

Download = Callable[[str, str, float], None]
"""Fetches an object: its URL, the path to write, the time-out in seconds."""


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
        with tempfile.TemporaryDirectory(prefix="tokenreel-object-") as folder:
            return self._to(name, Path(folder) / "object").stat().st_size

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See ``Objects.read``."""
        with tempfile.TemporaryDirectory(prefix="tokenreel-object-") as folder:
            return read_part(self._to(name, Path(folder) / "object"), start, stop)

    def fetch(self, name: str, target: Path, advance: Callable[[int], None]) -> str:
        """See ``Objects.fetch``; progress is told at the end only."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._to(name, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())
        advance(target.stat().st_size)
        return hash_file(target)

    def _to(self, name: str, target: Path) -> Path:
        place = f"{self._url}/{name}"

        def attempt() -> Path:
            target.unlink(missing_ok=True)
            try:
                self._download(place, str(target), self._transfer.request_timeout_s)
            except FileNotFoundError as error:
                raise StoreError("missing", redact(str(error))) from None
            except PermissionError as error:
                raise StoreError("denied", redact(str(error))) from None
            except Exception as error:  # each store's client has exceptions of its own
                raise StoreError("again", redact(f"{type(error).__name__}: {error}")) from None
            if not target.is_file():
                raise StoreError("again", "the downloader left no file")
            return target

        try:
            return with_retries(attempt, place, self._transfer, lambda: None, threading.Event())
        except ConfigError as error:
            if error.code != "TR-REMOTE-MISSING":
                raise
            raise DamageError("TR-FILE-MISSING", "no such object", place, "the object") from None
