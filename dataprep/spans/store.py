"""What the span stages read of earlier ones and leave for each other: documents of a file, runs of sorted hashes.

A run is as much of a file as fits in memory. Runs are scratch: how many there are depends on the memory, what comes of
them does not. The list of a file's runs is written last, so runs of an attempt that was killed are never read.

Shapes: D documents of a file, R records of a file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError
from loader.files import fsync_folder, temporary_path, write_atomic

from ..documents import InputFile, Status
from ..stages import read_json

__all__ = [
    "METHOD",
    "AppendedFiles",
    "FileDocuments",
    "SpanFolders",
    "hash_borders",
    "load_array",
    "load_documents",
    "load_raw",
    "load_runs",
    "run_path",
    "save_array",
    "save_runs",
    "sorted_order",
]

METHOD = "ngram"
"""What the rule is called in configurations and tables."""
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class SpanFolders:
    """Folders of the stages: ``signed`` and ``decided`` are read, each of the others belongs to one span stage."""

    signed: Path
    decided: Path
    anchors: Path
    repeats: Path
    grams: Path
    spans: Path


@dataclass(frozen=True)
class FileDocuments:
    """The documents of one file in record order.

    Attributes:
        record_D, size_D: int64 record numbers and bytes of text.
        rank_D: int64 priority numbers; the smaller, the better.
        takes_part_D: bool: goes on (kept or held out), and the source has not opted out.
        status_R: uint8 by record, as decided.
    """

    record_D: NDArray[np.int64]
    size_D: NDArray[np.int64]
    rank_D: NDArray[np.int64]
    takes_part_D: NDArray[np.bool_]
    status_R: NDArray[np.uint8]


def load_documents(inputs: InputFile, file: int, folders: SpanFolders) -> FileDocuments:
    """What signing and deciding left of a file.

    Raises:
        DamageError: a part is missing, damaged, or of another length.
    """
    documents = load_array(folders.signed / f"documents.{file:05d}.npy")
    status_R = load_array(folders.decided / f"status.{file:05d}.npy")
    path = folders.decided / f"rank.{file:05d}.npy"
    rank_D = load_array(path)
    record_D = np.ascontiguousarray(documents["record"], np.int64)
    fits = len(rank_D) == len(documents) and (not len(record_D) or 0 <= record_D[-1] < len(status_R))
    if not fits:
        raise DamageError(
            "TR-SPANS-DAMAGED", f"{len(rank_D)} priorities", str(path), f"one for each of {len(documents)} documents"
        )
    status_D = status_R[record_D]
    takes_part_D = (status_D == Status.KEPT) | (status_D == Status.HELD_OUT)
    if METHOD in inputs.opt_out:
        takes_part_D[:] = False
    size_D = np.ascontiguousarray(documents["size_bytes"], np.int64)
    return FileDocuments(record_D, size_D, rank_D.astype(np.int64), takes_part_D, status_R)


def run_path(folder: Path, kind: str, file: int, run: int) -> Path:
    """Where one part of a run lies."""
    return folder / f"{kind}.{file:05d}.{run:05d}.npy"


def save_runs(folder: Path, kind: str, file: int, sizes: Sequence[int]) -> None:
    """Write the list of a file's runs (rows of each), which makes them valid."""
    write_atomic(folder / f"{kind}.{file:05d}.json", canonical_json({"runs": list(sizes)}))


def load_runs(folder: Path, kind: str, file: int) -> list[int]:
    """Rows of each run of a file.

    Raises:
        DamageError: the list is missing or damaged.
    """
    path = folder / f"{kind}.{file:05d}.json"
    sizes = read_json(path).get("runs")
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise DamageError("TR-SPANS-DAMAGED", "no list of runs", str(path), "a finished stage")
    return sizes


def _npy_chunks(array: NDArray[Any]) -> Iterator[bytes]:
    """The bytes of a .npy file without a second copy of the whole."""
    header = io.BytesIO()
    description = np.lib.format.dtype_to_descr(array.dtype)  # type: ignore[no-untyped-call]
    np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
        header, {"descr": description, "fortran_order": False, "shape": array.shape}
    )
    yield header.getvalue()
    flat = array.reshape(-1)
    step = max(1, _CHUNK_BYTES // array.dtype.itemsize)
    for start in range(0, len(flat), step):
        yield flat[start : start + step].tobytes()


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array (C order) as .npy."""
    write_atomic(path, _npy_chunks(array))


def load_array(path: Path, size: int | None = None, *, mapped: bool = False) -> NDArray[Any]:
    """Read an array; ``mapped`` leaves it on disk.

    Raises:
        DamageError: missing, cut short, or its last axis has not ``size`` elements.
    """
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamageError("TR-SPANS-DAMAGED", f"cannot be read: {error}", str(path), "a finished stage") from error
    if size is not None and array.shape[-1] != size:
        raise DamageError("TR-SPANS-DAMAGED", f"holds {array.shape[-1]} rows", str(path), f"{size} rows")
    return array


def load_raw(path: Path, dtype: type[np.generic], size: int) -> NDArray[Any]:
    """An array without a header (see ``AppendedFiles``).

    Raises:
        DamageError: missing, or not of ``size`` elements.
    """
    try:
        array = np.fromfile(path, dtype)
    except OSError as error:
        raise DamageError("TR-SPANS-DAMAGED", f"cannot be read: {error}", str(path), "a finished stage") from error
    if len(array) != size:
        raise DamageError("TR-SPANS-DAMAGED", f"holds {len(array)} rows", str(path), f"{size} rows")
    return array


class AppendedFiles:
    """Files that grow in turns, under temporary names until ``commit``; what is not committed goes away."""

    def __init__(self) -> None:
        self._paths: dict[Path, Path] = {}

    def __enter__(self) -> AppendedFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary in self._paths.values():
            temporary.unlink(missing_ok=True)

    def append(self, path: Path, array: NDArray[Any]) -> None:
        """Add elements to the end of a file; the first call makes it."""
        temporary = temporary_path(path)
        mode = "ab" if path in self._paths else "wb"
        self._paths[path] = temporary
        with open(temporary, mode) as file:
            file.write(array.tobytes())

    def place(self, path: Path) -> Path:
        """Where a file is until it is committed."""
        return self._paths[path]

    def commit(self) -> None:
        """Make all files durable under their own names."""
        for path, temporary in self._paths.items():
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        for folder in {path.parent for path in self._paths}:
            fsync_folder(folder)
        self._paths.clear()


def hash_borders(hash_S: NDArray[np.uint64], num_parts: int) -> list[int]:
    """Where each of ``num_parts`` equal ranges of hashes begins among sorted ones, and their end."""
    firsts = np.array([(part << 64) // num_parts for part in range(num_parts)], np.uint64)
    return [*np.searchsorted(hash_S, firsts).tolist(), len(hash_S)]


def sorted_order(hash_G: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The stable order (uint32, fewer than 2^32 elements) that sorts hashes.

    Sorts the top bits with the place below them, several times faster than ``np.argsort``, then puts right the few
    places where hashes differ only in the bits that had to give way.
    """
    bits = max(1, (len(hash_G) - 1).bit_length()) if len(hash_G) else 1
    mask = np.uint64((1 << bits) - 1)
    packed = hash_G & ~mask
    packed |= np.arange(len(hash_G), dtype=np.uint64)
    packed.sort()
    order = (packed & mask).astype(np.uint32)
    ordered = hash_G[order]
    falls = np.flatnonzero(ordered[1:] < ordered[:-1])
    for top in np.unique(packed[falls] & ~mask).tolist():
        start = int(np.searchsorted(packed, np.uint64(top)))
        stop = int(np.searchsorted(packed, np.uint64(top) | mask, side="right"))
        order[start:stop] = order[start:stop][np.argsort(ordered[start:stop], kind="stable")]
    return order
