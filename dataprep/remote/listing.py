"""Which objects a source with a URL for its root names: by patterns or one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from loader.errors import ConfigError
from loader.remote.daemon_pool import DaemonPool
from loader.remote.store import RemoteFile, Store
from loader.remote.store_failures import StoreError, Transfer, with_retries

from .globs import Pattern, list_folders

__all__ = ["find_objects", "look_up"]

_R = TypeVar("_R")


def find_objects(store: Store, patterns: Sequence[str], transfer: Transfer) -> list[RemoteFile]:
    """Objects that match one of ``patterns``, by path, each once. Only the folders that a pattern can reach are listed,
    and only matches are held in memory.

    Raises:
        ConfigError: ``TR-REMOTE-LIST``: plain HTTP has no listing.
        JobError: the store does not answer, or refuses the credentials.
    """
    compiled = [Pattern(pattern) for pattern in patterns]
    found = {}
    for folder in list_folders(compiled):
        if not store.can_list:
            raise ConfigError(
                "TR-REMOTE-LIST",
                "plain HTTP has no listing, so patterns cannot be expanded",
                store.url,
                "the files one by one: files, or file_list",
            )
        for file in _listed(store, folder, compiled, transfer):
            found[file.path] = file
    literals = sorted({p.literal for p in compiled if p.literal is not None} - found.keys())
    for one in _heads(store, literals, transfer):
        if one is not None:
            found[one.path] = one
    return [found[path] for path in sorted(found)]


def look_up(store: Store, paths: Sequence[str], transfer: Transfer) -> list[RemoteFile]:
    """Size and version of each of ``paths``, in their order, several asked for at once.

    Raises:
        ConfigError: ``TR-REMOTE-MISSING``, naming the first that is not there.
        JobError: see ``find_objects``.
    """
    files = []
    for path, file in zip(paths, _heads(store, paths, transfer), strict=True):
        if file is None:
            place = f"{store.url}/{path}"
            raise ConfigError("TR-REMOTE-MISSING", "no such object", place, "the object, readable")
        files.append(file)
    return files


def _listed(store: Store, folder: str, patterns: Sequence[Pattern], transfer: Transfer) -> list[RemoteFile]:
    def attempt() -> list[RemoteFile]:
        return [file for file in store.list(folder) if any(pattern.matches(file.path) for pattern in patterns)]

    place = f"{store.url}/{folder}".rstrip("/")
    with DaemonPool(1, "list") as pool:  # a signal does not reach a thread that waits for an answer
        return pool.submit(_tried, store, attempt, place, transfer, threading.Event()).result()


def _heads(store: Store, paths: Sequence[str], transfer: Transfer) -> Iterator[RemoteFile | None]:
    """Each path looked up; None where there is no object."""
    stop = threading.Event()

    def attempt(path: str) -> RemoteFile | None:
        try:
            return store.head(path)
        except StoreError as failure:
            if failure.kind == "missing":
                return None
            raise

    def tried(path: str) -> RemoteFile | None:
        return _tried(store, lambda: attempt(path), f"{store.url}/{path}", transfer, stop)

    if not paths:
        return
    with DaemonPool(transfer.ranges, "head") as pool:
        try:
            yield from pool.map(tried, paths)
        except BaseException:
            stop.set()
            raise


def _tried(store: Store, attempt: Callable[[], _R], place: str, transfer: Transfer, stop: threading.Event) -> _R:
    try:
        return with_retries(attempt, place, transfer, store.renew, stop)
    except StoreError as failure:
        raise ConfigError("TR-REMOTE-LIST", f"the store cannot do that: {failure.reason}", place) from None
