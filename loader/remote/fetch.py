"""Fetching whole objects of a store: parallel ranges, written in order, hashed on the way, resumed after a kill.

An object is written to ``.part`` in its target's folder, fsynced, renamed. Ranges of one object arrive in any order and
are written in theirs, so what lies on disk is always a prefix; every 256 MiB its length and hash are made durable in
``.part.json``, and a later attempt goes on from there once the prefix hashes to that.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import xxhash

from ..canonical import canonical_json
from ..errors import JobError
from ..files import fsync_folder, remove_stale_temporaries, write_atomic
from .daemon_pool import DaemonPool
from .store import RemoteFile, Store
from .store_failures import StoreError, Transfer, changed_error, with_retries

__all__ = ["Fetcher", "place_of", "read_ranges"]

_PART = ".part"
_NOTE = ".part.json"
_DURABLE_BYTES = 256 << 20
_HASH_BYTES = 4 << 20


def place_of(store: Store, file: RemoteFile, start: int | None = None, stop: int | None = None) -> str:
    """URL of an object, and the range of it if one is meant, for messages."""
    where = f"{store.url}/{file.path}"
    return where if start is None else f"{where} bytes {start}-{stop}"


class Fetcher:
    """Threads that fetch ranges, shared by all objects of a job; a context manager.

    Memory: ``transfer.ranges`` ranges at most are asked for or wait to be written, whatever the number of objects.
    """

    def __init__(self, transfer: Transfer | None = None) -> None:
        self.transfer = transfer or Transfer()
        self.stop = threading.Event()
        self._pool = DaemonPool(self.transfer.ranges, "range")
        self._slots = threading.Semaphore(self.transfer.ranges)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        self._pool.shutdown(wait=error is None, cancel_futures=True)

    def give_up(self) -> None:
        """End the threads without waiting for them; nothing more is fetched."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fetch(
        self, store: Store, file: RemoteFile, target: Path, advance: Callable[[int], None] = lambda size: None
    ) -> str:
        """Fetch ``file`` to ``target``, whose folder holds nothing else being fetched; returns its xxh3-128.

        ``advance`` is told of bytes as they are written (negative where an attempt starts over), from this thread.

        Raises:
            JobError: a range cannot be had, after all attempts; the URL and the range are named.
            RefusedError: ``TR-REMOTE-CHANGED``: another version is there now.
            OSError: the file system refused.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_temporaries(target.parent)
        part = target.with_name(_PART)
        try:
            with open(part, "r+b" if part.exists() else "w+b") as out:
                try:
                    digest = self._ranged(store, file, out, advance)
                except StoreError as failure:
                    if failure.kind != "unsupported":
                        raise
                    digest = self._streamed(store, file, out, advance)
                out.flush()
                os.fsync(out.fileno())
                if os.fstat(out.fileno()).st_size != file.size_bytes:
                    raise JobError("TR-REMOTE-FAILED", "the file fetched has another size", place_of(store, file))
        except StoreError as failure:
            if failure.kind == "changed":
                part.unlink(missing_ok=True)
                raise changed_error(place_of(store, file)) from None
            raise JobError("TR-REMOTE-FAILED", failure.reason, place_of(store, file)) from None
        except OSError as error:
            error.filename = error.filename or str(target)
            raise
        os.replace(part, target)
        target.with_name(_NOTE).unlink(missing_ok=True)
        fsync_folder(target.parent)
        return digest

    def _ranged(self, store: Store, file: RemoteFile, out: BinaryIO, advance: Callable[[int], None]) -> str:
        note = Path(out.name).with_name(_NOTE)
        hasher, done = _resume(file, out, note)
        advance(done)
        durable = done
        for data in self._in_order(store, file, done):
            out.write(data)
            hasher.update(data)
            done += len(data)
            advance(len(data))
            if done - durable >= _DURABLE_BYTES and done < file.size_bytes:
                out.flush()
                os.fsync(out.fileno())
                facts = {"size": file.size_bytes, "version": file.version, "bytes": done, "digest": hasher.hexdigest()}
                write_atomic(note, canonical_json(facts))
                durable = done
        return hasher.hexdigest()

    def _in_order(self, store: Store, file: RemoteFile, start: int) -> Iterator[bytes | memoryview]:
        """The object's ranges from ``start`` on, several asked for ahead.

        No deadlock: slots are taken in the order of writing, so of each object that waits the next range to be written
        has one.
        """
        pending: deque[Future[bytes | memoryview]] = deque()
        at = start
        try:
            while pending or at < file.size_bytes:
                if self.stop.is_set():
                    raise StoreError("again", "stopped, as another transfer failed")
                while at < file.size_bytes and self._slots.acquire(timeout=None if not pending else 0):
                    stop = min(at + self.transfer.range_bytes, file.size_bytes)
                    pending.append(self._pool.submit(self._read, store, file, at, stop))
                    at = stop
                data = pending[0].result()
                if self.stop.is_set():  # whoever gave this up may have begun anew, on the same file
                    raise StoreError("again", "stopped, as another transfer failed")
                yield data
                pending.popleft()
                self._slots.release()
        finally:
            for future in pending:
                future.cancel()
                self._slots.release()

    def _read(self, store: Store, file: RemoteFile, start: int, stop: int) -> bytes | memoryview:
        place = place_of(store, file, start, stop)
        return with_retries(lambda: store.read(file, start, stop), place, self.transfer, store.renew, self.stop)

    def _streamed(self, store: Store, file: RemoteFile, out: BinaryIO, advance: Callable[[int], None]) -> str:
        """The whole object in one answer, from its start again where that breaks: the server knows no ranges."""
        written = out.tell()  # what ranges brought before the server knew none, and was told of

        def attempt() -> str:
            nonlocal written
            advance(-written)
            written = 0
            out.seek(0)
            out.truncate()
            hasher = xxhash.xxh3_128()
            for data in store.stream(file):
                out.write(data)
                hasher.update(data)
                written += len(data)
                advance(len(data))
            if written != file.size_bytes:
                raise StoreError("again", f"{written} of {file.size_bytes} bytes came")
            return hasher.hexdigest()

        place = place_of(store, file, 0, file.size_bytes)
        return with_retries(attempt, place, self.transfer, store.renew, self.stop)


def _resume(file: RemoteFile, out: BinaryIO, note: Path) -> tuple[xxhash.xxh3_128, int]:
    """Hasher and length of the prefix that an earlier attempt left, both empty if it cannot be trusted; ``out`` is cut
    to it and stands at its end."""
    hasher, done = xxhash.xxh3_128(), 0
    wanted = _read_note(note)
    if (
        wanted is not None
        and file.version
        and (wanted.get("size"), wanted.get("version")) == (file.size_bytes, file.version)
    ):
        left = int(wanted["bytes"])
        while left > 0 and (data := out.read(min(left, _HASH_BYTES))):
            hasher.update(data)
            left -= len(data)
        done = int(wanted["bytes"])
        if left or hasher.hexdigest() != wanted.get("digest"):
            hasher, done = xxhash.xxh3_128(), 0
    out.seek(done)
    out.truncate()
    return hasher, done


def _read_note(note: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(note.read_bytes())
        return value if isinstance(value, dict) and isinstance(value.get("bytes"), int) else None
    except (OSError, ValueError):
        return None


def read_ranges(store: Store, file: RemoteFile, start: int, stop: int, transfer: Transfer | None = None) -> bytes:
    """The bytes ``start`` to ``stop`` of an object, with retries: for a few small reads.

    Raises:
        JobError, ConfigError, RefusedError: see ``Fetcher.fetch``.
        StoreError: ``unsupported``: the server knows no ranges.
    """
    place = place_of(store, file, start, stop)
    settings = transfer or Transfer()
    try:
        found = with_retries(lambda: store.read(file, start, stop), place, settings, store.renew, threading.Event())
    except StoreError as failure:
        if failure.kind == "changed":
            raise changed_error(place) from None
        raise
    return bytes(found)
