"""Datasets at URLs: fetched file by file into a cache folder to train on, or read by ranges to look something up.

Either way nothing is used that the manifest does not vouch for: whole files by size and xxh3-128, samples by theirs.

Shape letters: N samples of a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, DamageError, RefusedError, TokenreelError
from ..remote.daemon_pool import DaemonPool
from ..shards.access import read_verified
from ..shards.dataset import Dataset, read_dataset
from ..shards.layout import docs_size, mds_header_size, segments_size, token_dtype
from ..shards.manifest import FileRecord, Manifest, parse_manifest
from ..shards.reader import ShardFiles, TokenFile, TokenReader, read_documents, read_hashes, read_segments
from ..shards.storage import ReadRange, Tables, check_small, file_ranges
from .cache_folder import CacheFolder, Wanted
from .objects import Objects
from .pieces import object_pieces
from .waits import tell

__all__ = ["CachedStorage", "RangedStorage", "RangedTokens", "open_cached", "open_ranged", "read_remote_manifest"]

_R = TypeVar("_R")
_MANIFEST = "manifest.json"
_ATTEMPTS = 4
_RANGE_BYTES = 8 << 20
_DEAR_BYTES = 16 << 20
_REQUESTS = 16


def read_remote_manifest(objects: Objects) -> Manifest:
    """manifest.json at a URL, in memory.

    Raises:
        ConfigError: there is none. DamageError: it is damaged. JobError: it cannot be fetched.
    """
    place = f"{objects.url}/{_MANIFEST}"
    tell(f"fetching {place}")
    try:
        data = _unverified(objects, _MANIFEST)
    except DamageError as error:
        if error.code != "TR-FILE-MISSING":
            raise
        raise ConfigError("TR-DATASET-NONE", "no Dataset here", objects.url, "a URL with a manifest.json") from None
    return parse_manifest(data, place)


def _unverified(objects: Objects, name: str) -> bytes:
    size_bytes = objects.size(name)
    check_small(size_bytes, f"{objects.url}/{name}")
    return objects.read(name, 0, size_bytes) if size_bytes else b""


@contextmanager
def _refused_if_replaced(objects: Objects, digest: str) -> Iterator[None]:
    """Damage inside is no damage where another Dataset has been put to the URL since this one was opened.

    Raises:
        RefusedError: ``TR-DATASET-OTHER``: that is so; what was raised inside otherwise.
    """
    try:
        yield
    except DamageError as error:
        try:
            found = read_remote_manifest(objects).digest
        except TokenreelError:
            raise error from None
        if found == digest:
            raise
        raise RefusedError(
            "TR-DATASET-OTHER", f"another Dataset has been put here meanwhile, with digest {found}: {error.place}"
            " is not what it was", objects.url, f"digest {digest}", "put that one back, or open the new one anew",
        ) from error  # fmt: skip


def open_cached(objects: Objects, cache: CacheFolder) -> Dataset:
    """A Dataset whose files are fetched into ``cache`` as they are needed.

    Raises:
        ConfigError: there is none, or the cache cannot hold a single shard. DamageError: manifest or shard table.
        JobError: the store fails.
    """
    manifest = read_remote_manifest(objects)
    storage = CachedStorage(objects, cache, manifest.digest)
    dataset = read_dataset(storage, manifest)
    largest = max((storage.shard_bytes(dataset.shard_files(row)) for row in _largest(dataset)), default=0)
    cache.check_holds(largest)
    return dataset


def _largest(dataset: Dataset) -> Iterable[int]:
    """The shards that may be the largest with all their files."""
    rows_R = dataset.shards_R
    names = ("size_bytes", "num_segments", "num_documents")
    return {int(np.argmax(rows_R[name])) for name in names} if len(rows_R) else ()


def open_ranged(objects: Objects, cache: CacheFolder) -> Dataset:
    """A Dataset to look things up in: samples and tables are read by ranges and leave nothing behind. Only what must
    lie on a disk goes to ``cache``: documents.npy and the tokenizer, when they are asked for; and everything that is
    asked for, where the store knows no ranges.

    Raises:
        As :func:`open_cached`, but no shard need fit.
    """
    manifest = read_remote_manifest(objects)
    cached = CachedStorage(objects, cache, manifest.digest)
    return read_dataset(RangedStorage(objects, cached) if objects.has_ranges else cached, manifest)


class CachedStorage:
    """The files of one Dataset in a cache folder, each fetched when it is first needed."""

    is_fetched: bool = True

    def __init__(self, objects: Objects, cache: CacheFolder, digest: str) -> None:
        self._objects = objects
        self.cache = cache
        self._digest = digest
        cache.claim(digest)

    @property
    def folder(self) -> Path:
        """The Dataset's folder in the cache."""
        return self.cache.root / self._digest

    @property
    def location(self) -> str:
        """The URL."""
        return self._objects.url

    @property
    def mapped_bytes(self) -> int | None:
        """The cache's limit: what is evicted stays on the disk while it is mapped."""
        return self.cache.given_limit_bytes

    def is_dear(self, name: str, record: FileRecord) -> bool:
        """False: what is needed of such a Dataset is fetched."""
        return False

    def local(self, name: str, record: FileRecord) -> Path:
        """The file in the cache, there and verified."""
        wanted = self._wanted(name, record)
        return self._ensure(wanted)

    def read(self, name: str, record: FileRecord) -> bytes:
        """The whole file, through the cache."""
        wanted = self._wanted(name, record)
        path = self.cache.root / wanted.name
        return self._opened([wanted], lambda: read_verified(path, record.size_bytes, record.xxh3_128))

    def ranges(self, name: str, record: FileRecord) -> AbstractContextManager[ReadRange]:
        """Ranges of the file in the cache."""
        return file_ranges(self.local(name, record), record.size_bytes)

    def pieces(self, name: str, record: FileRecord, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Pieces of the object, past the cache; see :func:`pieces.object_pieces`."""
        return object_pieces(self._objects, name, record, ranges)

    def unverified(self, name: str) -> bytes:
        """A small object as it lies there, past the cache."""
        return _unverified(self._objects, name)

    def names(self) -> Iterator[str] | None:
        """See ``Objects.names``."""
        return self._objects.names()

    def tokens(self, files: ShardFiles, hash_N: NDArray[np.uint64] | None = None) -> TokenReader:
        """The mapped token file, through the cache."""
        return self._opened(self.wanted(files, documents=False), lambda: TokenFile(files, hash_N))

    def tables(self, files: ShardFiles) -> Tables:
        """Both tables, through the cache."""
        wanted = self.wanted(files, tokens=False)
        return self._opened(wanted, lambda: (read_segments(files), read_documents(files)))

    def renew(self, files: ShardFiles) -> bool:
        """True: the shard's files are verified again at the next opening, and fetched again where they are damaged."""
        for wanted in self.wanted(files):
            self.cache.forget(wanted.name)
        return True

    def wanted(self, files: ShardFiles, tokens: bool = True, documents: bool = True) -> list[Wanted]:
        """The files of a shard, with what the manifest says of them."""
        found = [(files.segments, segments_size(files.num_samples, files.num_segments), files.segments_hash)]
        if tokens:
            found.append((files.mds, files.size_bytes, files.mds_hash))
        if documents:
            found.append((files.docs, docs_size(files.num_documents), files.docs_hash))
        return [self._wanted(f"{p.parent.name}/{p.name}", FileRecord(size, digest)) for p, size, digest in found]

    def shard_bytes(self, files: ShardFiles) -> int:
        """Bytes of all files of a shard."""
        return sum(wanted.size_bytes for wanted in self.wanted(files))

    def prefetch(self, files: ShardFiles) -> None:
        """Make a shard's files be there; raises as reading them would."""
        for wanted in self.wanted(files):
            if not self.cache.has(wanted):
                self._ensure(wanted)

    def keep(self, files: ShardFiles) -> None:
        """The shard is needed in the next steps: nobody evicts it while anything else can go."""
        self.cache.lease.keep(wanted.name for wanted in self.wanted(files))

    def let_go(self, files: ShardFiles) -> None:
        """End one :meth:`keep`."""
        self.cache.lease.let_go(wanted.name for wanted in self.wanted(files))

    def _wanted(self, name: str, record: FileRecord) -> Wanted:
        place = f"{self._objects.url}/{name}"
        return Wanted(f"{self._digest}/{name}", record.size_bytes, record.xxh3_128, place)

    def _ensure(self, wanted: Wanted) -> Path:
        name = wanted.name.partition("/")[2]
        with _refused_if_replaced(self._objects, self._digest):
            return self.cache.ensure(wanted, lambda target, advance: self._objects.fetch(name, target, advance))

    def _opened(self, needed: list[Wanted], open_files: Callable[[], _R]) -> _R:
        """What ``open_files`` makes of files that are there. Where one was evicted, or spoilt since it was verified,
        before it could be opened, it is fetched again."""
        with self.cache.lease.pin(wanted.name for wanted in needed):
            for left in reversed(range(_ATTEMPTS)):
                for wanted in needed:
                    self._ensure(wanted)
                try:
                    return open_files()
                except DamageError:
                    if not left:
                        raise
                for wanted in needed:
                    self.cache.forget(wanted.name)
        raise AssertionError("some attempt is the last")


class RangedStorage:
    """A Dataset read by ranges; ``cached`` takes what must lie on a disk."""

    is_fetched: bool = False
    mapped_bytes: int | None = None

    def __init__(self, objects: Objects, cached: CachedStorage) -> None:
        self._objects = objects
        self._cached = cached

    @property
    def folder(self) -> Path:
        """The Dataset's folder in the cache, which may be empty."""
        return self._cached.folder

    @property
    def location(self) -> str:
        """The URL."""
        return self._objects.url

    def is_dear(self, name: str, record: FileRecord) -> bool:
        """Of a large one, unless the cache has it."""
        return record.size_bytes > _DEAR_BYTES and not (self.folder / name).is_file()

    def local(self, name: str, record: FileRecord) -> Path:
        """The file in the cache."""
        return self._cached.local(name, record)

    def read(self, name: str, record: FileRecord) -> bytes:
        """The whole file, verified, in memory."""
        with _refused_if_replaced(self._objects, self.folder.name):
            return _read_object(self._objects, name, record)

    def ranges(self, name: str, record: FileRecord) -> AbstractContextManager[ReadRange]:
        """Ranges of the object."""
        _check_size(self._objects, name, record.size_bytes)
        return nullcontext(lambda start, size: self._objects.read(name, start, start + size))

    def pieces(self, name: str, record: FileRecord, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """See :func:`pieces.object_pieces`."""
        if self._objects.has_ranges:
            _check_size(self._objects, name, record.size_bytes)
        return object_pieces(self._objects, name, record, ranges)

    def unverified(self, name: str) -> bytes:
        """A small object as it lies there, past the cache."""
        return _unverified(self._objects, name)

    def names(self) -> Iterator[str] | None:
        """See ``Objects.names``."""
        return self._objects.names()

    def tokens(self, files: ShardFiles, hash_N: NDArray[np.uint64] | None = None) -> TokenReader:
        """The samples, by ranges."""
        with _refused_if_replaced(self._objects, self.folder.name):
            return RangedTokens(self._objects, files, read_hashes(files, self._read_path) if hash_N is None else hash_N)

    def tables(self, files: ShardFiles) -> Tables:
        """Both tables, whole."""
        return read_segments(files, self._read_path), read_documents(files, self._read_path)

    def renew(self, files: ShardFiles) -> bool:
        """True: nothing is kept, so the next reading asks the store again."""
        return True

    def _read_path(self, path: Path, size_bytes: int, xxh3_128: str) -> bytes:
        return self.read(path.relative_to(self.folder).as_posix(), FileRecord(size_bytes, xxh3_128))


def _read_object(objects: Objects, name: str, record: FileRecord) -> bytes:
    """An object, compared with its size before a byte of it is read, and with its hash.

    Raises:
        DamageError: it is another one. JobError: it cannot be fetched.
    """
    place = f"{objects.url}/{name}"
    if objects.has_ranges:
        _check_size(objects, name, record.size_bytes)
    starts = range(0, record.size_bytes, _RANGE_BYTES)
    ranges = ((start, min(_RANGE_BYTES, record.size_bytes - start)) for start in starts)
    data = b"".join(object_pieces(objects, name, record, ranges))
    actual = xxhash.xxh3_128_hexdigest(data)
    if actual != record.xxh3_128:
        raise DamageError("TR-FILE-HASH", f"the file's bytes have xxh3-128 {actual}", place, record.xxh3_128)
    return data


def _check_size(objects: Objects, name: str, expected: int) -> None:
    found = objects.size(name)
    if found != expected:
        message = f"the file has {found:,} bytes"
        raise DamageError("TR-FILE-SIZE", message, f"{objects.url}/{name}", f"{expected:,} bytes")


class RangedTokens:
    """The samples of a shard at a URL: neighbours in one range, several ranges at once."""

    def __init__(self, objects: Objects, files: ShardFiles, hash_N: NDArray[np.uint64]) -> None:
        """``hash_N`` = the samples' hashes.

        Raises:
            DamageError: the object has another size. JobError: the store does not answer.
        """
        self._objects = objects
        self._name = f"{files.folder.name}/{files.mds.name}"
        self._hashes_N = hash_N.astype(np.uint64)
        self._start = mds_header_size(files.num_samples, files.seq_len, files.vocab_size)
        self._sample_bytes = files.seq_len * token_dtype(files.vocab_size).itemsize
        _check_size(objects, self._name, files.size_bytes)

    @property
    def place(self) -> str:
        """The token file's URL."""
        return f"{self._objects.url}/{self._name}"

    def copy(self, samples: list[int], target: memoryview, rows: list[int]) -> list[int]:
        """See :meth:`shards.reader.TokenFile.copy`."""
        rows_of: dict[int, list[int]] = {}
        for sample, row in zip(samples, rows, strict=True):
            rows_of.setdefault(sample, []).append(row)
        size, damaged = self._sample_bytes, set[int]()
        runs = list(_runs(sorted(rows_of), max(1, _RANGE_BYTES // size)))
        tell(f"reading {len(rows_of)} samples of {self.place}")
        with DaemonPool(min(_REQUESTS, max(1, len(runs))), "tokenreel-samples") as pool:
            for (first, stop), data in zip(runs, pool.map(lambda run: self._range(*run), runs), strict=True):
                for sample in range(first, stop):
                    piece = data[(sample - first) * size : (sample - first + 1) * size]
                    if xxhash.xxh3_64_intdigest(piece) != int(self._hashes_N[sample]):
                        damaged.add(sample)
                    for row in rows_of[sample]:
                        target[row * size : (row + 1) * size] = piece
        return [sample for sample in samples if sample in damaged]

    def _range(self, first: int, stop: int) -> bytes:
        size = self._sample_bytes
        return self._objects.read(self._name, self._start + first * size, self._start + stop * size)


def _runs(samples: list[int], most: int) -> Iterable[tuple[int, int]]:
    """Half-open ranges of at most ``most`` consecutive ones of ascending, distinct numbers."""
    start = 0
    for index in range(1, len(samples) + 1):
        if index == len(samples) or samples[index] != samples[index - 1] + 1 or index - start >= most:
            yield samples[start], samples[index - 1] + 1
            start = index
