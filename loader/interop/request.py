"""What an exporter is asked, what it answers, and the files it writes: hashed as they are written and read back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from ..errors import DamageError
from ..shards.access import check_size, hash_regular
from ..shards.dataset import Dataset
from ..shards.manifest import FileRecord
from ..shards.reader import ShardFiles

__all__ = [
    "ExportRequest",
    "ExportedFile",
    "HashedFile",
    "PlannedFile",
    "Sink",
    "place_payload",
    "shard_rows",
    "write_file",
]

_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class ExportRequest:
    """What to export.

    Attributes:
        dataset: the opened Dataset.
        sources: names, in the manifest's order.
        output: the folder as it will be called.
        folder: the folder to write to, beside ``output``; it is renamed when all is written.
        link: link to the Dataset's token files instead of copying them.
        split: folder inside an MDS export that holds everything (llm-foundry's ``split``); empty for none.
        progress: called with bytes of the Dataset that were read.
    """

    dataset: Dataset
    sources: tuple[str, ...]
    output: Path
    folder: Path
    link: bool
    split: str
    progress: Callable[[int], None]


@dataclass(frozen=True)
class PlannedFile:
    """A file that an export would write; ``size_bytes`` is None where compression decides, 0 for a link."""

    name: str
    size_bytes: int | None


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export; ``link`` says where a linked one points, relative to its own folder."""

    name: str
    size_bytes: int
    xxh3_128: str
    link: str | None = None


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take the bytes."""


class HashedFile:
    """A file of an export that is being written: a context manager; its ``record`` is known after leaving it."""

    def __init__(self, request: ExportRequest, name: str) -> None:
        self._name = name
        self._path = request.folder / name
        self._digest = xxhash.xxh3_128()
        self._size_bytes = 0

    def __enter__(self) -> HashedFile:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "xb")
        return self

    def write(self, data: bytes | memoryview, /) -> None:
        """Append bytes."""
        self._file.write(data)
        self._digest.update(data)
        self._size_bytes += len(data)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()

    def record(self) -> ExportedFile:
        """What was written.

        Raises:
            DamageError: the file system returns other bytes.
        """
        expected = str(self._digest.hexdigest())
        size_bytes, actual = hash_regular(self._path)
        check_size(self._path, size_bytes, self._size_bytes)
        if actual != expected:
            raise DamageError("TR-FILE-HASH", f"what was written reads back as {actual}", str(self._path), expected)
        return ExportedFile(self._name, size_bytes, actual)


def write_file(request: ExportRequest, name: str, chunks: Iterable[bytes | memoryview]) -> ExportedFile:
    """Write one file of the export durably; raises as :meth:`HashedFile.record`."""
    file = HashedFile(request, name)
    with file:
        for chunk in chunks:
            file.write(chunk)
    return file.record()


def place_payload(request: ExportRequest, files: ShardFiles, name: str) -> ExportedFile:
    """Put a shard's token file into the export as ``name``, verified whole: a copy, or a relative symbolic link.

    Raises:
        DamageError: the shard's bytes are not those that were written.
    """
    if not request.link:
        made = write_file(request, name, _blocks(request.dataset, files))
        _check_payload(request.dataset, files, made.xxh3_128)
        request.progress(files.size_bytes)
        return made
    size_bytes, digest = hash_regular(files.mds)
    check_size(files.mds, size_bytes, files.size_bytes)
    _check_payload(request.dataset, files, digest)
    # The folder is renamed to a name beside its own, so what is right from there is right from here.
    final = request.output.parent.resolve() / request.output.name / name
    target = os.path.relpath(files.mds.resolve(), final.parent)
    place = request.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    request.progress(size_bytes)
    return ExportedFile(name, size_bytes, digest, target)


def _check_payload(dataset: Dataset, files: ShardFiles, digest: str) -> None:
    if digest != files.mds_hash:
        place = f"{dataset.location}/{files.mds.relative_to(dataset.path).as_posix()}"
        raise DamageError("TR-FILE-HASH", f"the file's bytes have xxh3-128 {digest}", place, files.mds_hash)


def _blocks(dataset: Dataset, files: ShardFiles) -> Iterator[bytes]:
    starts = range(0, files.size_bytes, _BLOCK_BYTES)
    ranges = ((start, min(_BLOCK_BYTES, files.size_bytes - start)) for start in starts)
    name = files.mds.relative_to(dataset.path).as_posix()
    return dataset.storage.pieces(name, FileRecord(files.size_bytes, files.mds_hash), ranges)


def shard_rows(dataset: Dataset, source: str) -> list[int]:
    """Rows of shards.npy that are a source's, in shard order."""
    number = dataset.source_names.index(source)
    return [int(row) for row in np.flatnonzero(dataset.shards_R["source"] == number)]
