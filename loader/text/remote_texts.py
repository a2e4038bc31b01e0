"""Texts of records of remote files: the byte ranges that hold them where a record can be found in a stream of bytes,
the whole file otherwise.

Plain JSONL: 64 KiB from each record's start, more until its line ends, in ranges that close neighbours share, laid at
their places in a sparse file that the reader of local files then reads. Anything else (compressed, other formats) is
fetched into a temporary folder; the last such file is kept until another is asked for, and goes with this object.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from ..errors import DamageError, TokenreelError
from ..files import check_name
from ..remote.daemon_pool import DaemonPool
from ..remote.fetch import Fetcher, place_of, read_ranges
from ..remote.store import RemoteFile, Store
from ..remote.store_failures import StoreError, Transfer, with_retries
from ..shards.access import check_size
from .decompress import COMPRESSIONS
from .records import RecordPlace, read_texts

if TYPE_CHECKING:
    from ..shards.manifest import InputFile

__all__ = ["RemoteTexts"]

_R = TypeVar("_R")
_FIRST_BYTES = 64 << 10
_MOST_BYTES = 8 << 20


class RemoteTexts:
    """Reads records of the files below one URL."""

    def __init__(self, store: Store, transfer: Transfer | None = None) -> None:
        self._store = store
        self._transfer = transfer or Transfer()
        self._folder = Path(tempfile.mkdtemp(prefix="tokenreel-texts-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._fetched: tuple[RemoteFile, Path] | None = None

    def texts(
        self, entry: InputFile, reading: tuple[str, str], places: Sequence[RecordPlace]
    ) -> dict[RecordPlace, str]:
        """Texts of records of one input file; ``reading`` is format and text field.

        Raises:
            ConfigError: there is no such file.
            DamageError: it is not the file that was built.
            JobError: it cannot be had.
        """
        for part in entry.path.split("/"):
            if part in ("", ".", ".."):
                check_name(part, f"{self._store.url}/{entry.path}")
        file = self._look_up(entry)
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            path = Path(name) / "records.jsonl"
            try:
                if reading[0] == "jsonl" and not entry.path.lower().endswith(tuple(COMPRESSIONS)):
                    self._lay_out(file, path, sorted({place.record_start for place in places}))
                else:
                    path = self._whole(file)
            except StoreError:  # the server knows no ranges
                path = self._whole(file)
            try:
                return read_texts(path, *reading, places)
            except TokenreelError as error:
                place = (error.place or "").replace(str(path), place_of(self._store, file))
                raise type(error)(error.code, error.message, place, error.expected, error.next_command) from error

    def _look_up(self, entry: InputFile) -> RemoteFile:
        place = f"{self._store.url}/{entry.path}"
        try:
            file = self._tried(lambda: self._store.head(entry.path), place)
        except StoreError as failure:
            message = f"the file cannot be looked up: {failure.reason}"
            raise DamageError("TR-TEXT-FILE", message, place, "the file that was built") from None
        if entry.size_bytes >= 0:
            check_size(Path(place), file.size_bytes, entry.size_bytes)
        return file

    def _lay_out(self, file: RemoteFile, path: Path, starts: Sequence[int]) -> None:
        """Write the lines that begin at ``starts`` (ascending) to their places in a sparse file of the file's size."""
        size = file.size_bytes
        with open(path, "w+b") as out:
            descriptor = out.fileno()
            os.truncate(descriptor, size)

            def get(span: tuple[int, int]) -> None:
                data = memoryview(read_ranges(self._store, file, *span, self._transfer))
                written = 0
                while written < len(data):
                    written += os.pwrite(descriptor, data[written:], span[0] + written)

            spans = _spans(starts, size)
            with DaemonPool(self._transfer.ranges, "records") as pool:
                for _ in pool.map(get, (piece for span in spans for piece in _pieces(*span))):
                    pass
            covered = iter(spans)
            span = next(covered, (0, 0))
            for start in starts:
                while start >= span[1] and (after := next(covered, None)) is not None:
                    span = after
                begin, end, width = start, span[1], _FIRST_BYTES
                while begin < size and not _has_newline(descriptor, begin, end) and end < size:
                    width = min(2 * width, _MOST_BYTES)
                    begin, end = end, min(end + width, size)
                    get((begin, end))

    def _whole(self, file: RemoteFile) -> Path:
        """The whole file, fetched unless it is the one that was fetched last."""
        if self._fetched is None or self._fetched[0] != file:
            folder = self._folder / "file"
            shutil.rmtree(folder, ignore_errors=True)
            path = folder / PurePosixPath(file.path).name
            with Fetcher(self._transfer) as fetcher:
                fetcher.fetch(self._store, file, path)
            self._fetched = (file, path)
        return self._fetched[1]

    def _tried(self, attempt: Callable[[], _R], place: str) -> _R:
        return with_retries(attempt, place, self._transfer, self._store.renew, threading.Event())


def _spans(starts: Iterable[int], size: int) -> list[tuple[int, int]]:
    """What to read first of lines that begin at ``starts`` (ascending): where two come close, it is read as one."""
    spans: list[tuple[int, int]] = []
    for start in starts:
        if start >= size:
            break  # no such record: the reader says so
        end = min(start + _FIRST_BYTES, size)
        if spans and start <= spans[-1][1] + _FIRST_BYTES:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for begin in range(start, stop, _MOST_BYTES):
        yield begin, min(begin + _MOST_BYTES, stop)


def _has_newline(descriptor: int, start: int, stop: int) -> bool:
    while start < stop:
        data = os.pread(descriptor, min(_FIRST_BYTES, stop - start), start)
        if not data or b"\n" in data:
            return bool(data)
        start += len(data)
    return False
