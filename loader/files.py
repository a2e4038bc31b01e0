"""Durable files and folders: write under a temporary name, fsync, rename; hash; check names from a manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

import xxhash

from .errors import DamageError

__all__ = [
    "TEMPORARY_PREFIX",
    "append_whole",
    "check_name",
    "digest_bytes",
    "fsync_folder",
    "hash_file",
    "is_running",
    "make_folder",
    "remove_all_temporaries",
    "remove_folder",
    "remove_stale_temporaries",
    "sync_tree",
    "temporary_path",
    "write_atomic",
]

TEMPORARY_PREFIX = ".tmp-"
_CHUNK_BYTES = 1 << 22


def temporary_path(path: Path) -> Path:
    """The name under which ``path`` is written before it is renamed: same folder (renames are atomic), own process."""
    return path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` survive a power loss.

    Raises:
        OSError: the file system refused; it names the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and what is missing above it; each survives a power loss, or a file in it would not.

    Raises:
        OSError: the file system refused; it names the folder.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


def sync_tree(folder: Path) -> None:
    """Make the names of everything below ``folder``, and its own, survive a power loss; not the contents of files."""
    for place, _, _ in os.walk(folder, topdown=False):
        fsync_folder(Path(place))
    fsync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` at once, whole or not at all, also where the process is killed or the power goes meanwhile: it
    gets a temporary name first. Where none is, nothing happens.

    Raises:
        OSError: it cannot be renamed; what cannot be removed after that stays under the temporary name.
    """
    aside = temporary_path(folder)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(folder, aside)
    except FileNotFoundError:
        return
    fsync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write ``data`` to ``path`` so that readers see the old file or the whole new one, also after a power loss.

    Raises:
        OSError: the file system refused (disk full, read-only, ...); it names the file, the temporary one is removed.
    """
    make_folder(path.parent)
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            for chunk in (data,) if isinstance(data, bytes) else data:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a failing write does not say where
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def append_whole(file: RawIOBase, data: bytes) -> None:
    """Append all of ``data`` to an unbuffered file, or nothing: a disk that fills up takes a part of a write without a
    word, and what a later write puts behind that part can never be read again.

    Raises:
        OSError: the file system refused; the file is as long as before.
    """
    size_bytes, rest = file.seek(0, os.SEEK_END), memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError:
        with suppress(OSError):  # a torn tail then: the next writer cuts it, and this one must end
            file.truncate(size_bytes)
        raise


def digest_bytes(data: bytes | memoryview) -> str:
    """xxh3-128 of ``data``, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, 32 hex digits, read in pieces of 4 MiB.

    Raises:
        OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def check_name(name: str, place: str) -> str:
    """Return ``name`` if it is a plain file or folder name; manifests are untrusted input.

    Raises:
        DamageError: it is empty, too long, hidden, holds a separator or a control character, or climbs.
    """
    bad = (
        not name
        or len(name.encode("utf-8", "surrogatepass")) > 200
        or name.startswith(".")
        or any(c in "/\\\0" or ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in name)
    )
    if bad:
        raise DamageError("TR-NAME-UNSAFE", f"unsafe name {name!r}", place, "a plain name without separators")
    return name


def remove_all_temporaries(folder: Path) -> None:
    """Remove every temporary file at any depth, whoever writes it, from a folder that is finished and in its place: on
    a file system without locks a second job may have been at work in it when it was moved there.
    """
    for path in folder.rglob(f"{TEMPORARY_PREFIX}*"):
        path.unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """Whether it runs; a killed orphan that nobody has waited for does not, and stays in /proc for as long as whoever
    inherited it likes, in some containers for minutes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def remove_stale_temporaries(folder: Path, name: str | None = None) -> list[Path]:
    """Remove the files and folders that killed writers left in ``folder`` (not below it); returns the removed paths.

    Call it only where no other live process writes: a temporary name carries its writer's pid, and a live one is kept.
    ``name``: only what was to become this name, in a folder that others write in too.
    """
    removed = []
    for path in sorted(folder.glob(f"{TEMPORARY_PREFIX}*")):
        pid, _, wanted = path.name[len(TEMPORARY_PREFIX) :].partition("-")
        if name is not None and wanted != name:
            continue
        if pid.isdecimal() and int(pid) != os.getpid() and is_running(int(pid)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed
