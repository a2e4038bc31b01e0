"""Columns on disk that are written as a stream and read back as a map: .npy files whose length nobody knows before,
and bare ones.

The header has a fixed length, so that it can be written after the rows; the digest of a column is the xxh3-128 of the
rows and then of the header, if it has one. Shapes: N rows.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from loader.errors import DamageError
from loader.files import fsync_folder, temporary_path

__all__ = ["ColumnWriter", "map_column"]

_HEADER_BYTES = 512
_MAGIC = b"\x93NUMPY\x01\x00"
_CHUNK_BYTES = 1 << 22


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A .npy header, version 1.0, of exactly ``_HEADER_BYTES``: spaces before its newline are part of the format."""
    description = np.lib.format.dtype_to_descr(dtype)  # type: ignore[no-untyped-call]
    text = f"{{'descr': {description!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    room = _HEADER_BYTES - len(_MAGIC) - 2
    if len(text) >= room:
        raise AssertionError("a row type that does not fit the header")
    return _MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


class ColumnWriter:
    """Writes one column batch by batch; the file gets its name when ``finish`` has made it durable.

    Use as a context manager: what is not finished at its end goes away. ``bare``: rows alone, without a header.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], row_shape: tuple[int, ...] = (), *, bare: bool = False
    ) -> None:
        self._path, self._dtype, self._row_shape = path, dtype, row_shape
        self._temporary = temporary_path(path)
        self._digest = xxhash.xxh3_128()
        self._rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._temporary, "wb")  # noqa: SIM115 - closed by __exit__
        self._header_bytes = 0 if bare else _HEADER_BYTES
        self._file.write(bytes(self._header_bytes))

    def __enter__(self) -> ColumnWriter:
        return self

    def add(self, rows: NDArray[Any]) -> None:
        """Append rows of the column's type.

        Raises:
            OSError: the file system refused; it names the file.
        """
        if rows.dtype != self._dtype or rows.shape[1:] != self._row_shape:
            raise AssertionError(f"rows of {rows.dtype} {rows.shape[1:]} for {self._dtype} {self._row_shape}")
        if len(rows):
            data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
            self._digest.update(data)
            self._write(data)
            self._rows += len(rows)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def finish(self) -> dict[str, Any]:
        """Make the file durable under its name; its size and digest, for ``map_column``.

        Raises:
            OSError: the file system refused; it names the file.
        """
        header = _header(self._dtype, (self._rows, *self._row_shape)) if self._header_bytes else b""
        self._digest.update(header)
        try:
            self._file.seek(0)
            self._file.write(header)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._path)
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise
        fsync_folder(self._path.parent)
        row_bytes = self._dtype.itemsize * int(np.prod(self._row_shape, dtype=np.int64))
        return {"size_bytes": self._header_bytes + self._rows * row_bytes, "digest": self._digest.hexdigest()}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):  # a full disk refuses what is still buffered once more, and it goes away anyway
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def map_column(
    path: Path, part: dict[str, Any], bare: np.dtype[Any] | None = None, *, verify: bool = True
) -> NDArray[Any]:
    """A column as a read-only map of its file, after all its bytes have been verified in pieces of 4 MiB.

    A map holds a file descriptor: callers of many files map them again instead of keeping them all.

    Args:
        path: the file.
        part: what ``ColumnWriter.finish`` said of it.
        bare: type of its rows if it has no header.
        verify: False where this process has verified the bytes before; the size is compared all the same.

    Raises:
        DamageError: missing, of another size, other bytes, or no such column; names the file.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes != part["size_bytes"]:
            raise DamageError(
                "TR-DEDUP-DAMAGED", f"the file has {size_bytes:,} bytes", str(path), f"{part['size_bytes']:,} bytes"
            )
        if verify and _digest_of(path, 0 if bare is not None else _HEADER_BYTES) != part["digest"]:
            raise DamageError(
                "TR-DEDUP-DAMAGED", "not the bytes that were written", str(path), f"xxh3-128 {part['digest']}"
            )
        if bare is not None:
            return np.asarray(np.memmap(path, bare, "r")) if size_bytes else np.zeros(0, bare)
        mode: Any = "r" if size_bytes > _HEADER_BYTES else None  # nothing cannot be mapped
        return np.asarray(np.load(path, mmap_mode=mode, allow_pickle=False))
    except OSError as error:
        raise DamageError("TR-DEDUP-DAMAGED", f"cannot read the file: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise DamageError("TR-DEDUP-DAMAGED", f"not a column: {error}", str(path)) from error


def _digest_of(path: Path, header_bytes: int) -> str:
    """The digest of a column's file: its rows, then its header."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        header = file.read(header_bytes)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    digest.update(header)
    return digest.hexdigest()
