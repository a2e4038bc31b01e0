"""Guarded reading of files that a manifest names: no links, no devices, sizes before allocation, hashes before use."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DamageError
from ..files import check_name

__all__ = [
    "check_relative",
    "check_size",
    "file_size",
    "hash_regular",
    "npy_bytes",
    "npy_layout",
    "open_regular",
    "read_exact",
    "read_npy",
    "read_verified",
    "resolve",
]

_HASH_CHUNK_BYTES = 1 << 22


def check_relative(name: str, place: str) -> str:
    """Return ``name`` if each of its ``/``-separated parts is a plain name.

    Raises:
        DamageError: it is absolute, climbs, is hidden, or holds control characters.
    """
    for part in name.split("/"):
        check_name(part, place)
    return name


def resolve(root: Path, name: str) -> Path:
    """Path of the file ``name`` (checked, ``/``-separated) below ``root``; no folder on the way may be a link.

    Raises:
        DamageError: one is a link, or no folder.
    """
    parent = root
    for part in name.split("/")[:-1]:
        parent = parent / part
        try:
            mode = os.lstat(parent).st_mode
        except OSError as error:
            raise DamageError("TR-FILE-MISSING", f"no such folder: {error.strerror}", str(parent)) from None
        if not stat.S_ISDIR(mode):
            raise DamageError("TR-FILE-UNREADABLE", "not a folder", str(parent), "a folder, no link")
    return root / name


def open_regular(path: Path) -> int:
    """Descriptor of a regular file, opened for reading; links are not followed and devices never block.

    Raises:
        DamageError: it is missing, a link, or no regular file.
    """
    try:
        # O_NONBLOCK: opening a FIFO that somebody planted must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise DamageError("TR-FILE-MISSING", "a file that the manifest names is missing", str(path)) from None
    except OSError as error:
        message = f"cannot open the file: {error.strerror}"
        raise DamageError("TR-FILE-UNREADABLE", message, str(path), "a regular file, no link") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamageError("TR-FILE-UNREADABLE", "not a regular file", str(path), "a regular file, no link")
    return descriptor


def file_size(path: Path) -> int:
    """Size in bytes of a regular file; raises as :func:`open_regular`."""
    descriptor = open_regular(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def check_size(path: Path, actual_bytes: int, expected_bytes: int) -> None:
    """Raise DamageError TR-FILE-SIZE unless both sizes agree."""
    if actual_bytes != expected_bytes:
        raise DamageError(
            "TR-FILE-SIZE", f"the file has {actual_bytes:,} bytes", str(path), f"{expected_bytes:,} bytes"
        )


def read_exact(descriptor: int, path: Path, start: int, size_bytes: int) -> bytes:
    """``size_bytes`` bytes from ``start``.

    Raises:
        DamageError: the file ends before, or the device cannot read it.
    """
    pieces = []
    while size_bytes:
        try:
            piece = os.pread(descriptor, min(size_bytes, 1 << 30), start)
        except OSError as error:
            raise DamageError("TR-FILE-UNREADABLE", f"cannot read the file: {error.strerror}", str(path)) from None
        if not piece:
            raise DamageError("TR-FILE-SIZE", f"the file ends at byte {start:,}", str(path))
        pieces.append(piece)
        start += len(piece)
        size_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_verified(path: Path, size_bytes: int, xxh3_128: str) -> bytes:
    """A whole file, compared with its recorded size (before anything is allocated) and hash.

    Raises:
        DamageError: it is missing, has another size, or other bytes.
    """
    descriptor = open_regular(path)
    try:
        check_size(path, os.fstat(descriptor).st_size, size_bytes)
        data = read_exact(descriptor, path, 0, size_bytes)
    finally:
        os.close(descriptor)
    actual = xxhash.xxh3_128_hexdigest(data)
    if actual != xxh3_128:
        raise DamageError("TR-FILE-HASH", f"the file's bytes have xxh3-128 {actual}", str(path), xxh3_128)
    return data


def hash_regular(path: Path) -> tuple[int, str]:
    """Size and xxh3-128 of a regular file, read in pieces of 4 MiB; raises as :func:`open_regular`."""
    descriptor = open_regular(path)
    digest = xxhash.xxh3_128()
    size_bytes = 0
    try:
        while piece := os.pread(descriptor, _HASH_CHUNK_BYTES, size_bytes):
            digest.update(piece)
            size_bytes += len(piece)
    except OSError as error:
        raise DamageError("TR-FILE-UNREADABLE", f"cannot read the file: {error.strerror}", str(path)) from None
    finally:
        os.close(descriptor)
    return size_bytes, digest.hexdigest()


def npy_layout(head: bytes, size_bytes: int, dtype: np.dtype[np.void], place: str) -> tuple[int, int]:
    """Where the rows of a one-dimensional .npy file of exactly ``dtype`` begin, and how many there are.

    ``head`` = the first bytes of the file (4096 or all), ``size_bytes`` = its whole size. Nothing is unpickled.

    Raises:
        DamageError: the header is not that of such an array, or promises other than the file can hold.
    """
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
        if version != (1, 0):
            raise ValueError(f"version {version}")
        shape, fortran, found = np.lib.format.read_array_header_1_0(file)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a hostile header makes of the parser, it is damage
        raise DamageError("TR-FILE-FORMAT", f"not a .npy file that this version wrote: {error}", place) from None
    start = file.tell()
    if found != dtype or fortran or len(shape) != 1 or size_bytes - start != shape[0] * dtype.itemsize:
        raise DamageError("TR-FILE-FORMAT", f"the array has dtype {found} and shape {shape}", place, f"dtype {dtype}")
    return start, int(shape[0])


def read_npy(data: bytes, dtype: np.dtype[np.void], place: str) -> NDArray[np.void]:
    """The array inside the bytes of a .npy file, as a view; raises as :func:`npy_layout`."""
    start, count = npy_layout(data[:4096], len(data), dtype, place)
    return np.frombuffer(data, dtype, count, start)


def npy_bytes(rows: NDArray[Any]) -> bytes:
    """An array as the bytes of a .npy file, version 1.0, in C order: equal arrays give equal bytes."""
    file = io.BytesIO()
    description = np.lib.format.dtype_to_descr(rows.dtype)  # type: ignore[no-untyped-call]
    np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
        file, {"descr": description, "fortran_order": False, "shape": rows.shape}
    )
    return file.getvalue() + rows.tobytes()
