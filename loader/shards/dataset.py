"""A Dataset, opened: its manifest, and its shards opened as they are needed. Everything read is verified.

Shape letters: N samples asked for, T tokens of a sample, S segments, R shards of the Dataset, K shards of a source.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError, DamageError, RefusedError
from .access import read_npy, read_verified, resolve
from .cache import Cache
from .document_lookup import DocumentLookup
from .documents import DocumentPlace
from .gather import SampleGroups, ShardTables, gather_segments, group_samples
from .layout import SHARD_DTYPE, TokenArray, token_dtype
from .manifest import (
    FileRecord,
    InputFile,
    Manifest,
    check_shard_table,
    files_from_text,
    parse_manifest,
)
from .reader import ShardFiles, TokenReader
from .segments import SegmentTable
from .storage import FolderStorage, Storage, read_small

__all__ = ["Dataset", "open_dataset", "read_dataset", "read_manifest"]

_MAX_OPEN_SHARDS = 512
_OPEN_COST = 1 << 20
# 16 shards of a source are live at once, with some 3 MB of segments each: room for ten sources, or batches would read
# the same tables again and again.
_TABLE_CACHE_BYTES = 512 << 20
_TABLE_COST = 1 << 16  # of a tiny table: its arrays cost more than their bytes, and 100,000 of them add up


class Dataset:
    """Read access to a Dataset; made by :func:`open_dataset`. All methods may be called from several threads.

    Every method that reads raises DamageError, naming the file (and the sample), if bytes are not those written.

    Attributes:
        path: the folder; of a Dataset at a URL, where its files appear when they are fetched.
        location: its name for people: the folder, or the URL.
        storage: where its files come from.
        manifest: what manifest.json says.
        digest: the manifest's self-hash, 32 hex digits.
        shards_R: shards.npy, rows of ``layout.SHARD_DTYPE``, source by source.
    """

    def __init__(self, storage: Storage, manifest: Manifest, shards_R: NDArray[np.void]) -> None:
        self.storage = storage
        self.path = storage.folder
        self.location = storage.location
        self.manifest = manifest
        self.digest = manifest.digest
        self.shards_R = shards_R
        self.source_names = tuple(source.name for source in manifest.sources)
        stops: list[int] = np.cumsum([0, *(source.num_shards for source in manifest.sources)]).tolist()
        samples_R = shards_R["num_samples"].astype(np.int64)
        segments_R = shards_R["num_segments"].astype(np.int64)
        self._first_row: dict[str, int] = dict(zip(self.source_names, stops, strict=False))
        spans = dict(zip(self.source_names, itertools.pairwise(stops), strict=True))
        self._samples_K = {name: samples_R[a:b] for name, (a, b) in spans.items()}
        self._sample_start_K = {name: _starts(samples_R[a:b]) for name, (a, b) in spans.items()}
        self._segment_start_K = {name: _starts(segments_R[a:b]) for name, (a, b) in spans.items()}
        self._tokens: Cache[TokenReader] = Cache(_MAX_OPEN_SHARDS * _OPEN_COST)
        self._segments: Cache[ShardTables] = Cache(_TABLE_CACHE_BYTES)
        self._lock = threading.Lock()
        self._documents = DocumentLookup(storage, manifest)
        self._files: tuple[InputFile, ...] | None = None

    def shard_samples(self, source: str) -> NDArray[np.int64]:
        """Number of samples of each shard of a source, in shard order; i8 of length K."""
        self._check_source(source)
        return self._samples_K[source].copy()

    def num_segments(self, source: str) -> int:
        """Segments of a source."""
        self._check_source(source)
        return int(self._segment_start_K[source][-1])

    def read_samples(self, source: str, samples_N: ArrayLike) -> TokenArray:
        """Token ids of N samples, tokens_NT, u2 or u4 as stored, each sample verified by its xxh3-64.

        ``samples_N`` are source sample numbers (shard-major), in any order, repeats allowed.

        Raises:
            IndexError: a number is outside the source.
            DamageError: a shard or sample is not what was written.
        """
        count = len(np.atleast_1d(np.asarray(samples_N)))
        tokens_NT = np.empty((count, self.manifest.seq_len), token_dtype(self.manifest.vocab_size))
        self.read_samples_into(source, samples_N, tokens_NT, np.arange(count))
        return tokens_NT

    def read_samples_into(
        self, source: str, samples_N: ArrayLike, tokens_RT: TokenArray, row_N: NDArray[np.int64]
    ) -> None:
        """As :meth:`read_samples`, into rows ``row_N`` of a C-contiguous array of the Dataset's dtype."""
        manifest = self.manifest
        if tokens_RT.dtype != token_dtype(manifest.vocab_size) or tokens_RT.shape[1:] != (manifest.seq_len,):
            raise ValueError(f"no rows of this Dataset: {tokens_RT.dtype} {tokens_RT.shape}")
        groups = self._groups(source, samples_N)
        if not len(groups.sample_N):
            return
        target = tokens_RT.data.cast("B")
        locals_, rows, bounds = groups.local_G.tolist(), row_N[groups.index_G].tolist(), groups.bounds
        for shard, start, stop in zip(groups.shards, bounds, bounds[1:], strict=False):
            self._copy(self._first_row[source] + shard, locals_[start:stop], target, rows[start:stop])

    def _copy(self, row: int, samples: list[int], target: memoryview, rows: list[int]) -> None:
        """Copy samples of shard ``row``; damaged files that came from elsewhere are had again, once."""
        for last in (False, True):
            try:
                file = self._tokens.get(row, self._open_tokens)
                damaged = file.copy(samples, target, rows)
            except DamageError:
                if last or not self._renew(row):
                    raise
                continue
            if not damaged:
                return
            if last or not self._renew(row):
                break
        shard = self.shards_R[row]
        source = self.source_names[int(shard["source"])]
        raise DamageError(
            "TR-SAMPLE-HASH",
            f"sample {damaged[0]} of the shard differs from what was written (sample"
            f" {damaged[0] + int(self._sample_start_K[source][int(shard['number'])])} of source {source!r};"
            f" {len(damaged)} of {len(samples)} read)",
            file.place,
            "the xxh3-64 in the shard's .segments",
            f"tokenreel verify {self.location}",
        )

    def _renew(self, row: int) -> bool:
        self._tokens.drop(row)
        return self.storage.renew(self.shard_files(row))

    def first_uses(self, source: str, samples_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards, as ascending rows of shards.npy, that hold any of a source's samples (that exist), and which of
        the N is the first of each."""
        self._check_source(source)
        shard_N = np.searchsorted(self._sample_start_K[source], samples_N, "right") - 1
        shard_K, first_K = np.unique(shard_N, return_index=True)
        return shard_K.astype(np.int64) + self._first_row[source], first_K.astype(np.int64)

    def release(self, row: int) -> None:
        """Close a shard's token file as soon as nobody reads it; reading it again opens it again."""
        self._tokens.drop(row)

    def segments_of(self, source: str, samples_N: ArrayLike) -> SegmentTable:
        """The segments of N samples, with their documents; samples as in :meth:`read_samples`."""
        groups = self._groups(source, samples_N)
        first_row = self._first_row[source]
        tables = [self._segments.get(first_row + shard, self._open_segments) for shard in groups.shards]
        return gather_segments(groups, tables, self._segment_start_K[source], self.manifest.seq_len)

    @property
    def searched_rows(self) -> tuple[int, int] | None:
        """See :attr:`document_lookup.DocumentLookup.searched_rows`."""
        return self._documents.searched_rows

    def find_document(self, document: int, proven: bool = True) -> tuple[DocumentPlace, ...]:
        """The shards and rows that hold a document, in shard order; none if the Dataset does not.

        ``proven`` false: where documents.npy lies far away and is large, a few ranges of it will do. They may name a
        wrong place, which the shard's own table shows, and may miss one.
        """
        places = []
        for _, row, document_row in self._documents.find(document, proven).tolist():
            if row >= len(self.shards_R) or document_row >= int(self.shards_R["num_documents"][row]):
                raise DamageError("TR-DATASET-INDEX", "a row names no shard", f"{self.location}/documents.npy")
            shard = self.shards_R[row]
            places.append(DocumentPlace(self.source_names[int(shard["source"])], int(shard["number"]), document_row))
        return tuple(places)

    def samples_of_document(self, document: int, proven: bool = True) -> list[tuple[str, NDArray[np.int64]]]:
        """(source, source sample numbers) of a document, one entry a shard that holds it; each entry is proven by the
        shard's tables, and that there is no other one as :meth:`find_document` says."""
        found = []
        for place in self.find_document(document, proven):
            table = self._segments.get(self._first_row[place.source] + place.shard, self._open_segments)
            segment_S = np.flatnonzero(table.table.segments_S["document_row"] == place.row)
            if not len(segment_S) or int(table.documents_D["id"][place.row]) != document:
                raise DamageError("TR-DATASET-INDEX", "a row names another document", f"{self.location}/documents.npy")
            local_N = np.unique(np.searchsorted(table.table.segment_offset_N, segment_S, "right") - 1)
            found.append((place.source, local_N + self._sample_start_K[place.source][place.shard]))
        return found

    def input_files(self) -> tuple[InputFile, ...]:
        """What files.txt lists: source, path, size and hash of each input file."""
        with self._lock:
            if self._files is None:
                data = self.read_file("files.txt")
                self._files = files_from_text(data, self.manifest.sources, str(self.path / "files.txt"))
            return self._files

    def file_path(self, file: int) -> str:
        """Path of an input file, relative to its source's root."""
        return self.input_files()[file].path

    def read_file(self, name: str) -> bytes:
        """A file that the manifest covers by hash (``tokenizer/...``, ``removed.parquet``, ...), verified.

        Raises:
            ConfigError: the manifest covers no such file.
        """
        return self.storage.read(name, self._record(name))

    def read_path(self, path: Path, size_bytes: int, xxh3_128: str) -> bytes:
        """A file of a shard by its path, verified (``reader.ReadWhole``); raises as :meth:`read_file`."""
        return self.storage.read(path.relative_to(self.path).as_posix(), FileRecord(size_bytes, xxh3_128))

    def local_file(self, name: str) -> Path:
        """Path on this machine of a file that the manifest covers by hash; who reads it verifies it.

        Raises:
            ConfigError: the manifest covers no such file.
        """
        return self.storage.local(name, self._record(name))

    def tokenizer_folder(self) -> Path | None:
        """The folder on this machine with the Dataset's tokenizer, its files verified; None where it carries none."""
        names = [name for name in self.manifest.files_hashed if name.startswith("tokenizer/")]
        for name in names:
            record = self._record(name)
            read_verified(self.local_file(name), record.size_bytes, record.xxh3_128)
        return self.path / "tokenizer" if names else None

    def _record(self, name: str) -> FileRecord:
        record = self.manifest.files_hashed.get(name)
        if record is None:
            raise ConfigError("TR-DATASET-FILE", f"the manifest names no file {name!r}", self.location)
        return record

    def shard_files(self, row: int) -> ShardFiles:
        """Row ``row`` of shards.npy with its paths."""
        shard = self.shards_R[row]
        return ShardFiles(
            folder=self.path / self.source_names[int(shard["source"])],
            seq_len=self.manifest.seq_len,
            vocab_size=self.manifest.vocab_size,
            number=int(shard["number"]),
            num_samples=int(shard["num_samples"]),
            num_segments=int(shard["num_segments"]),
            num_documents=int(shard["num_documents"]),
            max_segments=int(shard["max_segments"]),
            size_bytes=int(shard["size_bytes"]),
            mds_hash=shard["mds_hash"].tobytes().hex(),
            segments_hash=shard["segments_hash"].tobytes().hex(),
            docs_hash=shard["docs_hash"].tobytes().hex(),
        )

    def _check_source(self, source: str) -> None:
        if source not in self._samples_K:
            raise ConfigError(
                "TR-SOURCE-UNKNOWN", f"no source {source!r}", self.location, f"one of {', '.join(self.source_names)}"
            )

    def _groups(self, source: str, samples_N: ArrayLike) -> SampleGroups:
        self._check_source(source)
        sample_N = np.atleast_1d(np.asarray(samples_N, np.int64))
        start_K = self._sample_start_K[source]
        if len(sample_N) and not 0 <= int(sample_N.min()) <= int(sample_N.max()) < int(start_K[-1]):
            raise IndexError(f"source {source!r} has samples 0..{int(start_K[-1]) - 1}")
        return group_samples(sample_N, start_K)

    def _open_tokens(self, row: int) -> tuple[TokenReader, int]:
        files = self.shard_files(row)
        most, limit = self.storage.mapped_bytes, _MAX_OPEN_SHARDS * _OPEN_COST
        cost = _OPEN_COST if most is None else max(_OPEN_COST, files.size_bytes * limit // max(1, most))
        tables = self._segments.peek(row)  # who reads batches has them: the file need not be read and verified twice
        return self.storage.tokens(files, None if tables is None else tables.table.sample_hash_N), cost

    def _open_segments(self, row: int) -> tuple[ShardTables, int]:
        tables = ShardTables(*self.storage.tables(self.shard_files(row)))
        return tables, max(_TABLE_COST, tables.size_bytes)


def _starts(count_K: NDArray[np.int64]) -> NDArray[np.int64]:
    start_K = np.zeros(len(count_K) + 1, np.int64)
    np.cumsum(count_K, out=start_K[1:])
    return start_K


def read_manifest(path: Path) -> Manifest:
    """manifest.json of the Dataset folder ``path``.

    Raises:
        ConfigError: there is no Dataset.
        DamageError: the manifest differs from its self-hash, or cannot be right.
    """
    place = path / "manifest.json"
    if not place.exists() and not place.is_symlink():
        raise ConfigError("TR-DATASET-NONE", "no Dataset here", str(path), "a folder with a manifest.json")
    return parse_manifest(read_small(place), str(place))


def open_dataset(path: Path | str, expect_digest: str | None = None) -> Dataset:
    """Open the Dataset in folder ``path``; reads manifest.json and shards.npy, both verified. Datasets at URLs:
    ``loader.fetch_dataset``.

    Raises:
        ConfigError: there is no Dataset.
        DamageError: manifest or shard table are damaged, or contradict each other.
        RefusedError: intact, but its digest is not ``expect_digest``.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if expect_digest is not None and manifest.digest != expect_digest:
        raise RefusedError(
            "TR-DATASET-OTHER",
            f"another Dataset is at this path: digest {manifest.digest}",
            str(path),
            f"digest {expect_digest}",
            f"tokenreel inspect {path}",
        )
    for source in manifest.sources:
        resolve(path, f"{source.name}/index.json")
    return read_dataset(FolderStorage(path), manifest)


def read_dataset(storage: Storage, manifest: Manifest) -> Dataset:
    """The Dataset of a manifest whose files ``storage`` has; reads shards.npy, verified.

    Raises:
        DamageError: it is damaged, or contradicts the manifest.
    """
    place = f"{storage.location}/shards.npy"
    data = storage.read("shards.npy", manifest.files_hashed["shards.npy"])
    shards_R = read_npy(data, SHARD_DTYPE, place)
    check_shard_table(manifest, shards_R, place)
    return Dataset(storage, manifest, shards_R)
