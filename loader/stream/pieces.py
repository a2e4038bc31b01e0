"""Whole objects of a store read once, piece after piece, some asked for ahead: for what goes through a Dataset at a URL
and keeps nothing of it."""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

from ..errors import DamageError
from ..remote.daemon_pool import DaemonPool
from ..shards.manifest import FileRecord
from ..shards.storage import file_ranges
from .objects import Objects
from .waits import tell

__all__ = ["object_pieces"]

_AHEAD = 8


def object_pieces(
    objects: Objects, name: str, record: FileRecord, ranges: Iterable[tuple[int, int]]
) -> Iterator[bytes]:
    """(start, size in bytes) of an object one after the other; at most eight of them wait in memory. A store without
    ranges gives the whole object to a temporary file first.

    Raises:
        DamageError: there is no such object, or one shorter than the ranges. JobError: it cannot be fetched.
    """
    tell(f"reading {objects.url}/{name}")
    if objects.has_ranges:
        yield from _ahead(objects, name, ranges)
        return
    with tempfile.TemporaryDirectory(prefix="tokenreel-object-") as folder:
        path = Path(folder) / "object"
        objects.fetch(name, path, lambda size_bytes: None)
        found = path.stat().st_size
        if found != record.size_bytes:
            message, place = f"the file has {found:,} bytes", f"{objects.url}/{name}"
            raise DamageError("TR-FILE-SIZE", message, place, f"{record.size_bytes:,} bytes")
        with file_ranges(path, record.size_bytes) as read:
            yield from (read(start, size_bytes) for start, size_bytes in ranges)


def _ahead(objects: Objects, name: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    waiting: deque[Future[bytes]] = deque()
    left = iter(ranges)
    with DaemonPool(_AHEAD, "tokenreel-pieces") as pool:
        while True:
            for start, size_bytes in itertools.islice(left, _AHEAD - len(waiting)):
                waiting.append(pool.submit(objects.read, name, start, start + size_bytes))
            if not waiting:
                return
            yield waiting.popleft().result()
