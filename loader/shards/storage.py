"""Where the files of a Dataset are: what a Dataset asks of the place, and the answer of a folder on this machine.

A place hands out files of which it says no more than that they are there: what is read of them is verified by who reads
it. ``loader.stream.remote`` has the places for URLs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DamageError
from .access import check_size, file_size, open_regular, read_exact, read_verified, resolve
from .manifest import MAX_MANIFEST_BYTES, FileRecord
from .reader import ShardFiles, TokenFile, TokenReader, read_documents, read_segments
from .segments import SegmentFile

__all__ = ["FolderStorage", "ReadRange", "Storage", "Tables", "check_small", "file_ranges", "read_small"]

Tables = tuple[SegmentFile, NDArray[np.void]]
"""Segment table and document table of a shard."""


ReadRange = Callable[[int, int], bytes]
"""(start, size in bytes) -> those bytes of a file: all of them, or an error."""


@contextmanager
def file_ranges(path: Path, size_bytes: int) -> Iterator[ReadRange]:
    """Ranges of a file on this machine.

    Raises:
        DamageError: it is missing, a link, or of another size.
    """
    descriptor = open_regular(path)
    try:
        check_size(path, os.fstat(descriptor).st_size, size_bytes)
        yield lambda start, size: read_exact(descriptor, path, start, size)
    finally:
        os.close(descriptor)


def read_small(path: Path) -> bytes:
    """The bytes of a manifest.json or job.json on this machine.

    Raises:
        DamageError: it is missing, no regular file, or far too large for one.
    """
    check_small(file_size(path), str(path))
    return path.read_bytes()


def check_small(size_bytes: int, place: str) -> None:
    """Raise DamageError TR-FILE-SIZE at a size that no manifest.json or job.json has."""
    if size_bytes > MAX_MANIFEST_BYTES:
        raise DamageError("TR-FILE-SIZE", f"a file of {size_bytes:,} bytes", place, f"at most {MAX_MANIFEST_BYTES:,}")


class Storage(Protocol):
    """Access to the files of one Dataset; used from several threads."""

    @property
    def folder(self) -> Path:
        """Where files are, or appear when they are asked for."""

    @property
    def location(self) -> str:
        """Its name in messages: the folder, or a URL."""

    @property
    def is_fetched(self) -> bool:
        """Whether shards are fetched into a cache, so that fetching them early pays."""

    @property
    def mapped_bytes(self) -> int | None:
        """Most bytes of token files to keep open: they take room on the disk for as long. None: no bound."""

    def is_dear(self, name: str, record: FileRecord) -> bool:
        """Whether to have a file on this machine costs fetching much, so that a few ranges of it are better."""

    def local(self, name: str, record: FileRecord) -> Path:
        """Path of a file of the Dataset on this machine."""

    def read(self, name: str, record: FileRecord) -> bytes:
        """A file of the Dataset, verified."""

    def ranges(self, name: str, record: FileRecord) -> AbstractContextManager[ReadRange]:
        """To read a file of the Dataset in pieces; nothing but its size is verified."""

    def pieces(self, name: str, record: FileRecord, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """(start, size in bytes) of a file one after the other, asked for ahead where the place is far; nothing but its
        size is verified. Reads what lies there now, whatever a cache holds."""

    def unverified(self, name: str) -> bytes:
        """A small file of which nobody vouches for anything (manifest.json, job.json), as it lies there.

        Raises:
            DamageError: it is not there, or far too large. JobError: the store does not answer.
        """

    def names(self) -> Iterator[str] | None:
        """Every file there, relative and ``/``-separated; None where the place cannot be listed."""

    def tokens(self, files: ShardFiles, hash_N: NDArray[np.uint64] | None = None) -> TokenReader:
        """The samples of a shard; ``hash_N`` as for :class:`reader.TokenFile`."""

    def tables(self, files: ShardFiles) -> Tables:
        """The side tables of a shard, verified."""

    def renew(self, files: ShardFiles) -> bool:
        """After damage was seen in a shard: whether its files may be others at the next opening."""


class FolderStorage:
    """A folder on this machine, read in place and never written."""

    is_fetched: bool = False
    mapped_bytes: int | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def location(self) -> str:
        """The folder, as text."""
        return str(self._folder)

    def is_dear(self, name: str, record: FileRecord) -> bool:
        """False."""
        return False

    def local(self, name: str, record: FileRecord) -> Path:
        """The file's path; nothing is checked but the folders on the way.

        Raises:
            DamageError: one is a link, or no folder.
        """
        return resolve(self._folder, name)

    def read(self, name: str, record: FileRecord) -> bytes:
        """The whole file, verified; raises as :func:`access.read_verified`."""
        return read_verified(resolve(self._folder, name), record.size_bytes, record.xxh3_128)

    def ranges(self, name: str, record: FileRecord) -> AbstractContextManager[ReadRange]:
        """See :func:`file_ranges`."""
        return file_ranges(self.local(name, record), record.size_bytes)

    def pieces(self, name: str, record: FileRecord, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """See :func:`file_ranges`; at most a range is in memory."""
        with self.ranges(name, record) as read:
            yield from (read(start, size_bytes) for start, size_bytes in ranges)

    def unverified(self, name: str) -> bytes:
        """See :func:`read_small`."""
        return read_small(self._folder / name)

    def names(self) -> Iterator[str]:
        """Files, and links to folders, in order."""
        for folder, subfolders, names in os.walk(self._folder):
            relative = os.path.relpath(folder, self._folder)
            links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
            yield from (name if relative == "." else f"{relative}/{name}" for name in sorted(names + links))
            subfolders.sort()

    def tokens(self, files: ShardFiles, hash_N: NDArray[np.uint64] | None = None) -> TokenReader:
        """The mapped token file; raises as :class:`reader.TokenFile`."""
        return TokenFile(files, hash_N)

    def tables(self, files: ShardFiles) -> Tables:
        """Both tables; raises as :func:`reader.read_segments`."""
        return read_segments(files), read_documents(files)

    def renew(self, files: ShardFiles) -> bool:
        """False: what is damaged here stays so until somebody repairs it."""
        return False
