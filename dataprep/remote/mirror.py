"""The mirror of remote input files: ``<work>/remote/<URL>/<path>-<version>/data/<path>``, one folder an object.

``object.json`` beside ``data`` is written last and says what was fetched: URL, size, version (ETag), hash, time of
change. An object is taken from the mirror as long as the store lists the same size and version and the file lies there
as it was left; otherwise (and always where the store tells no version) it is fetched, and what other versions of it
left goes away. Everything downstream reads plain local files, so formats and stages know nothing of stores.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from pathlib import Path

import xxhash

from loader.canonical import canonical_json
from loader.cli_options import Output
from loader.errors import DamageError, JobError
from loader.files import remove_stale_temporaries, write_atomic
from loader.remote.daemon_pool import DaemonPool
from loader.remote.fetch import Fetcher
from loader.remote.store import RemoteFile, Store
from loader.remote.store_failures import Transfer

from ..stages import HashNote, read_json

__all__ = ["MIRROR_FOLDER", "RemoteInput", "fetch_all", "mirrored", "to_fetch"]

MIRROR_FOLDER = "remote"
_NOTE = "object.json"
_SLUG_CHARACTERS = 40


@dataclass(frozen=True)
class RemoteInput:
    """An object and its place in the mirror.

    Attributes:
        store, file: what is fetched.
        folder: of this version of it; ``root`` below it stands for the source's root.
    """

    store: Store
    file: RemoteFile
    folder: Path

    @property
    def root(self) -> Path:
        """The folder below which the file has the path that it has below the URL."""
        return self.folder / "data"

    @property
    def location(self) -> Path:
        """Where the fetched file lies."""
        return self.root / self.file.path


def mirrored(work: Path, store: Store, file: RemoteFile) -> RemoteInput:
    """The place of an object in the mirror below the work folder; nothing is touched."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", store.url)[-_SLUG_CHARACTERS:].strip("-.")
    source = f"{slug}-{xxhash.xxh3_64_hexdigest(store.url)[:8]}"
    version = xxhash.xxh3_64_hexdigest(f"{file.size_bytes}\0{file.version}")[:12]
    return RemoteInput(store, file, work / MIRROR_FOLDER / source / f"{_path_key(file.path)}-{version}")


def _path_key(path: str) -> str:
    return xxhash.xxh3_64_hexdigest(path)


def to_fetch(inputs: Iterable[RemoteInput], *, rehash: bool = False) -> tuple[list[RemoteInput], dict[str, HashNote]]:
    """Objects that the mirror lacks (all with ``rehash``), each once, and what was noted of the others by location."""
    lacking: dict[Path, RemoteInput] = {}
    notes = {}
    for remote in inputs:
        note = None if rehash else _read_note(remote)
        if note is None:
            lacking[remote.folder] = remote
        else:
            notes[os.path.abspath(remote.location)] = note
    return list(lacking.values()), notes


def fetch_all(inputs: Sequence[RemoteInput], output: Output, transfer: Transfer) -> dict[str, HashNote]:
    """Fetch objects into the mirror, several at once, large ones first; returns what was noted of them.

    What is finished stays when another fails, and a killed run goes on from there. The caller holds the work folder.

    Raises:
        JobError: an object cannot be had; ``TR-REMOTE-SPACE``: they do not fit on the disk.
        RefusedError: one changed while it was fetched.
    """
    if not inputs:
        return {}
    _check_space(inputs)
    notes: dict[str, HashNote] = {}
    lock = threading.Lock()
    order = sorted(inputs, key=lambda remote: -remote.file.size_bytes)
    total = sum(remote.file.size_bytes for remote in inputs)
    with output.progress("fetch", float(total), "bytes") as progress, Fetcher(transfer) as fetcher:

        def advance(size: int) -> None:
            with lock:
                progress.advance(size)

        def one(remote: RemoteInput) -> None:
            if not fetcher.stop.is_set():
                notes[os.path.abspath(remote.location)] = _fetch(remote, fetcher, advance)

        with DaemonPool(transfer.ranges, "fetch") as pool:
            futures = [pool.submit(one, remote) for remote in order]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                fetcher.stop.set()
                raise
    _forget_other_versions(inputs)
    return notes


def _fetch(remote: RemoteInput, fetcher: Fetcher, advance: Callable[[int], None]) -> HashNote:
    (remote.folder / _NOTE).unlink(missing_ok=True)
    remove_stale_temporaries(remote.folder)
    digest = fetcher.fetch(remote.store, remote.file, remote.location, advance)
    status = remote.location.stat()
    facts = {
        "url": f"{remote.store.url}/{remote.file.path}",
        "version": remote.file.version,
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "digest": digest,
    }
    write_atomic(remote.folder / _NOTE, canonical_json(facts))
    return status.st_size, status.st_mtime_ns, digest


def _read_note(remote: RemoteInput) -> HashNote | None:
    """What was noted of a fetched object, if it lies there as it was left."""
    try:
        note = read_json(remote.folder / _NOTE)
        status = remote.location.stat()
    except (DamageError, OSError):
        return None
    found = (status.st_size, status.st_mtime_ns)
    same = (
        bool(remote.file.version)
        and note.get("version") == remote.file.version
        and note.get("size_bytes") == remote.file.size_bytes
    )
    if not same or found != (note.get("size_bytes"), note.get("mtime_ns")) or not isinstance(note.get("digest"), str):
        return None
    return status.st_size, status.st_mtime_ns, str(note["digest"])


def _check_space(inputs: Sequence[RemoteInput]) -> None:
    """Say before the first byte that the disk is too small: hours later is too late."""
    mirror = inputs[0].folder.parent.parent
    mirror.mkdir(parents=True, exist_ok=True)
    needed = sum(remote.file.size_bytes for remote in inputs)
    free = shutil.disk_usage(mirror).free
    if needed > free:
        raise JobError(
            "TR-REMOTE-SPACE",
            f"the remote input does not fit on the disk: {needed:,} bytes to fetch, {free:,} free",
            str(mirror),
            "room for all remote files, beside what the stages need",
            "point run.work at a larger disk",
        )


def _forget_other_versions(inputs: Iterable[RemoteInput]) -> None:
    """Remove what earlier versions of the same objects left; each folder of the mirror is read once."""
    wanted = {remote.folder for remote in inputs}
    keys = {(remote.folder.parent, _path_key(remote.file.path)) for remote in inputs}
    for source in {folder.parent for folder in wanted}:
        for folder in source.iterdir():
            if (source, folder.name.rpartition("-")[0]) in keys and folder not in wanted:
                shutil.rmtree(folder, ignore_errors=True)
