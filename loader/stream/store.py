"""Where a Dataset lies: a location to an opened Dataset. Every wait has a time-out that names its reason.

A folder, or ``file://`` folder, is opened where it is and never written; even that can block (a network mount that is
gone), so the first touch runs in a thread of its own. The files of a Dataset at a URL are fetched into a cache folder
as they are needed (:func:`fetch_dataset`), or read by ranges to look something up (:func:`look_into_dataset`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import ConfigError, DamageError, JobError
from ..remote.store import OBSTORE_SCHEMES, is_url, open_store
from ..remote.store_failures import Transfer, location_problem
from ..settings import cache_folder
from ..shards.dataset import Dataset, open_dataset
from ..shards.manifest import Manifest
from .cache_folder import CacheFolder
from .objects import Objects, StoreObjects
from .remote import CachedStorage, RangedStorage, open_cached, open_ranged, read_remote_manifest
from .waits import told
from .whole_objects import WholeObjects

if TYPE_CHECKING:
    from ..shards.verify import Finding

__all__ = [
    "StoreOptions",
    "fetch_dataset",
    "folder_of",
    "look_into_dataset",
    "place_in",
    "verify_location",
    "within",
]

_Result = TypeVar("_Result")
_TRANSFER = Transfer(ranges=16, attempts=6, request_timeout_s=120.0, idle_timeout_s=10.0)


@dataclass(frozen=True)
class StoreOptions:
    """How Datasets at URLs are reached; none of it changes what is read.

    Attributes:
        cache: folder for fetched files, shared by all processes of a machine, on a local disk; None: the user's own
            (``settings.cache_folder``).
        cache_bytes: most bytes of shards to keep there; None: all that the disk has but a twentieth of it, and never
            less than half of what the cache and the free space together hold.
        timeout_s: longest wait without progress.
        transfer: ranges, retries, time-outs of requests.
    """

    cache: str | Path | None = None
    cache_bytes: int | None = None
    timeout_s: float = 60.0
    transfer: Transfer = _TRANSFER

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or (self.cache_bytes is not None and self.cache_bytes < 1):
            raise ConfigError("TR-STORE-OPTIONS", "cache_bytes and timeout_s must be positive")

    def open_cache(self) -> CacheFolder:
        """The cache folder.

        Raises:
            ConfigError: it cannot be written.
        """
        root = Path(self.cache) if self.cache is not None else cache_folder()
        return CacheFolder(Path(os.path.abspath(root)) / "datasets", self.cache_bytes, self.timeout_s)


def within(timeout_s: float, what: str, work: Callable[[], _Result]) -> _Result:
    """The result of ``work``, or an error when it takes longer than ``timeout_s`` since it last told what it waits for
    (``waits.tell``); its own errors pass through.

    A call that never returns cannot be ended from outside: its thread is left behind, but keeps no process alive.

    Raises:
        JobError: time ran out; ``what`` is named, and what was told last.
    """
    outcome: list[_Result] = []
    failure: list[BaseException] = []
    heard = [(time.monotonic(), what)]

    def run() -> None:
        try:
            with told(lambda now: heard.append((time.monotonic(), f"{what}: {now}"))):
                outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="tokenreel-store", daemon=True)
    thread.start()
    while thread.is_alive() and (left_s := heard[-1][0] + timeout_s - time.monotonic()) > 0:
        thread.join(left_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise JobError("TR-STORE-TIMEOUT", f"waited {timeout_s:g} s", heard[-1][1], "storage that answers")
    return outcome[0]


def place_in(base: Path, location: str) -> str:
    """A location that is relative to the folder ``base`` as one that is not; URLs stay as they are."""
    return location if is_url(location) else os.path.normpath(base / location)


def fetch_dataset(location: str, options: StoreOptions | None = None) -> Dataset:
    """Open the Dataset at ``location``: a folder, a ``file://`` folder, or a URL, whose files are then fetched into the
    cache as they are needed.

    Raises:
        ConfigError: no Dataset there, nothing that knows the URL's scheme, or a cache that cannot be.
        DamageError: its manifest is damaged.
        JobError: storage did not answer in time.
    """
    return _open(location, options or StoreOptions(), open_cached)


def look_into_dataset(location: str, options: StoreOptions | None = None) -> Dataset:
    """As :func:`fetch_dataset`, for questions about single samples and documents: shards are read by ranges and leave
    nothing in the cache, where the store has ranges."""
    return _open(location, options or StoreOptions(), open_ranged)


def verify_location(
    location: str, progress: Callable[[int], None], options: StoreOptions | None = None
) -> list[Finding]:
    """``shards.verify.verify_dataset`` wherever the Dataset is: at a URL every byte is asked of the store itself, past
    the cache, and nothing is kept.

    Raises:
        ConfigError: no Dataset there. JobError: the store fails. RefusedError: a later version wrote it.
    """
    from ..shards.verify import finding_of, verify_dataset, verify_storage

    folder = folder_of(location)
    if folder is not None:
        return verify_dataset(folder, progress)
    options = options or StoreOptions()
    objects = _remote(location, options)

    def open_manifest() -> Manifest | DamageError:
        try:
            return read_remote_manifest(objects)
        except DamageError as error:
            return error

    manifest = within(options.timeout_s, f"opening the Dataset at {objects.url}", open_manifest)
    if isinstance(manifest, DamageError):
        return [finding_of(objects.url, manifest)]
    storage = RangedStorage(objects, CachedStorage(objects, options.open_cache(), manifest.digest))
    return verify_storage(storage, manifest, progress)


def folder_of(location: str) -> Path | None:
    """The folder that a location means; None for a URL, but for one of ``file://``."""
    if is_url(location) and not location.startswith("file://"):
        return None
    return Path(location.removeprefix("file://"))


def _open(location: str, options: StoreOptions, open_remote: Callable[[Objects, CacheFolder], Dataset]) -> Dataset:
    path = folder_of(location)
    if path is not None:
        return within(options.timeout_s, f"opening the Dataset at {path}", lambda: open_dataset(path))
    objects = _remote(location, options)
    return within(
        options.timeout_s, f"opening the Dataset at {objects.url}", lambda: open_remote(objects, options.open_cache())
    )


def _remote(location: str, options: StoreOptions) -> Objects:
    """The objects below a URL; asks nobody, but may import for seconds.

    Raises:
        ConfigError: a URL with credentials, malformed, or of a scheme that nobody knows.
    """
    problem = location_problem(location)
    if problem is not None:
        raise ConfigError("TR-STORE-URL", problem, None, "a URL such as s3://bucket/dataset")
    return _objects(location.rstrip("/"), options.transfer)


def _objects(url: str, transfer: Transfer) -> Objects:
    """The objects below a URL: by obstore, else by a downloader of mosaicml-streaming, else by fsspec."""
    scheme = url.partition("://")[0]
    if scheme not in OBSTORE_SCHEMES:
        from ..mosaic_adapter import mosaic_download

        download = mosaic_download(url)
        if download is not None:
            return WholeObjects(url, download, transfer)
    try:
        return StoreObjects(open_store(url, transfer), transfer)
    except ConfigError as error:
        if error.code != "TR-REMOTE-SCHEME":
            raise
        raise ConfigError(
            "TR-STORE-SCHEME", f"no store for {scheme}://: {error.message}", url,
            "a folder, file, s3, gs, az, http, https, or what mosaicml-streaming or an fsspec file system knows",
            "pip install 'tokenreel[mosaic]'",
        ) from error  # fmt: skip
