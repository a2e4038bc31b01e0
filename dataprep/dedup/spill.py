"""Intermediate columns of a decision: in memory as long as they fit, else in files of a scratch folder.

A ``Spill`` takes rows (one array per column) for numbered partitions and gives each partition back as a whole, in the
order in which its rows came. Nothing in it shapes a result; it only decides where the rows lie meanwhile. No file is
held open. Shapes: R rows.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.files import remove_stale_temporaries, temporary_path

__all__ = ["Spill", "Workspace", "forget_pages", "new_map", "scratch_folder"]

_SCRATCH = "scratch"
_DOCUMENT_BYTES = 150
"""Narrow columns of a document and what is made of them, at the most."""


@dataclass(frozen=True)
class Workspace:
    """What a decision may use; shapes no output.

    Attributes:
        folder: where scratch files may lie.
        memory_bytes: bound of memory beside the program itself.
        partitions: at least so many partitions of keys and groups of documents (for tests).
    """

    folder: Path
    memory_bytes: int = 4 << 30
    partitions: int = 1

    def beside(self, num_documents: int) -> Workspace:
        """What is left beside the narrow columns of so many documents; an eighth in any case."""
        left = self.memory_bytes - num_documents * _DOCUMENT_BYTES
        return replace(self, memory_bytes=max(self.memory_bytes // 8, left))

    def spill(self, name: str, columns: Sequence[Any], num_partitions: int, share: int = 16) -> Spill:
        """A spill that keeps a sixteenth (or another share) of the memory."""
        return Spill(self.folder, name, columns, num_partitions, self.memory_bytes // share)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder below ``folder`` for scratch files; goes away at the end, as do those of killed processes."""
    remove_stale_temporaries(folder, _SCRATCH)
    scratch = temporary_path(folder / _SCRATCH)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def forget_pages(array: NDArray[Any]) -> None:
    """Give the resident pages of a mapped array back to the system (they are read again when needed); any other
    array is left alone."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the file system inside name the file, which those of writing do not do themselves."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def new_map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A new file as an array to be filled; its room on disk is taken at once, because a disk that is full when a
    mapped page is written kills the process.

    Raises:
        OSError: no room, or no such folder; names the file.
    """
    size_bytes = dtype.itemsize * math.prod(shape)
    if size_bytes == 0:  # nothing cannot be mapped
        return np.zeros(shape, dtype)
    with _naming(path), path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    return np.memmap(path, dtype, "r+", shape=shape).view(np.ndarray)


class Spill:
    """Rows by partition.

    Args:
        folder: where files may be written.
        name: begins the names of this spill's files.
        columns: dtypes of the columns, or (dtype, shape of a row) such as ``("<u4", (128,))``.
        num_partitions: partitions are numbered below it.
        buffer_bytes: rows beyond it go to disk.
    """

    def __init__(self, folder: Path, name: str, columns: Sequence[Any], num_partitions: int, buffer_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._kinds: list[tuple[np.dtype[Any], tuple[int, ...]]] = [
            (np.dtype(column[0]), column[1]) if isinstance(column, tuple) else (np.dtype(column), ())
            for column in columns
        ]
        self._parts: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in range(num_partitions)]
        self._buffered_bytes = 0
        self._limit_bytes = buffer_bytes
        self._on_disk = False
        self._rows_on_disk = [0] * num_partitions
        self.num_rows = [0] * num_partitions
        """Rows of each partition so far."""
        self.spilled_bytes = 0
        """Bytes that went to disk so far."""

    @property
    def num_partitions(self) -> int:
        """Partitions, whether they hold rows or not."""
        return len(self._parts)

    def add(self, partition: int, *columns: NDArray[Any]) -> None:
        """Append rows to one partition; the arrays are kept, not copied."""
        if len(columns[0]) == 0:
            return
        self._parts[partition].append(columns)
        self.num_rows[partition] += len(columns[0])
        self._buffered_bytes += sum(column.nbytes for column in columns)
        if self._buffered_bytes > self._limit_bytes:
            self._flush()

    def route(self, partition_R: NDArray[np.integer[Any]], *columns: NDArray[Any]) -> None:
        """Append each row to its own partition."""
        if len(self._parts) == 1:
            self.add(0, *columns)
            return
        if len(self._parts) <= 1 << 16:
            partition_R = partition_R.astype(np.uint16)  # sorted by radix
        order = np.argsort(partition_R, kind="stable")
        stops = np.cumsum(np.bincount(partition_R, minlength=len(self._parts)))
        columns = tuple(column[order] for column in columns)
        for partition in np.flatnonzero(np.diff(stops, prepend=0)).tolist():
            rows = slice(int(stops[partition - 1]) if partition else 0, int(stops[partition]))
            self.add(partition, *(column[rows] for column in columns))

    def read(self, partition: int) -> list[NDArray[Any]]:
        """The columns of one partition, in memory."""
        columns = []
        for number, (dtype, shape) in enumerate(self._kinds):
            arrays = [part[number] for part in self._parts[partition]]
            path = self._path(partition, number)
            if self._rows_on_disk[partition]:
                arrays.insert(0, np.fromfile(path, dtype).reshape(self._rows_on_disk[partition], *shape))
            whole = arrays[0] if len(arrays) == 1 else np.concatenate([np.zeros((0, *shape), dtype), *arrays])
            columns.append(whole)
        return columns

    def map(self, partition: int) -> list[NDArray[Any]]:
        """The columns of one partition as mapped files; what is in memory goes to disk first."""
        self._flush()
        columns: list[NDArray[Any]] = []
        for number, (dtype, row_shape) in enumerate(self._kinds):
            shape = (self.num_rows[partition], *row_shape)
            if 0 in shape:
                columns.append(np.zeros(shape, dtype))
                continue
            mapped = np.memmap(self._path(partition, number), dtype, "r+", shape=shape)
            columns.append(mapped.view(np.ndarray))
        return columns

    def drop(self, partition: int) -> None:
        """Forget one partition and remove its files."""
        self._buffered_bytes -= sum(column.nbytes for part in self._parts[partition] for column in part)
        self._parts[partition] = []
        self.num_rows[partition] = 0
        if self._rows_on_disk[partition]:
            for number in range(len(self._kinds)):
                self._path(partition, number).unlink(missing_ok=True)
        self._rows_on_disk[partition] = 0

    def _path(self, partition: int, number: int) -> Path:
        return self._folder / f"{self._name}.{partition:05d}.{number}"

    def _flush(self) -> None:
        for partition, parts in enumerate(self._parts):
            for number, (dtype, _) in enumerate(self._kinds) if parts else ():
                path = self._path(partition, number)
                with _naming(path), path.open("ab") as file:
                    for part in parts:
                        rows = np.ascontiguousarray(part[number], dtype)
                        file.write(rows.data)
                        self.spilled_bytes += rows.nbytes
            self._rows_on_disk[partition] += sum(len(part[0]) for part in parts)
            self._parts[partition] = []
        self._buffered_bytes = 0
