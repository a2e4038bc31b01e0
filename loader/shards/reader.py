"""One shard, opened: token rows by mmap, side tables verified whole; safe to use from many threads.

Shape letters: N samples, T tokens of a sample (``seq_len``), S segments, D documents.

Why mmap and not pread: copying and hashing a row out of a mapping costs 1.2 us, with pread 2.5 us (2,048 tokens of
2 bytes). A file that is truncated under a mapping would kill the process at the next touch (SIGBUS), so every read
first asks for the file's size. What remains is a device that fails under the mapping: that kills the process, loudly.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DamageError
from .access import check_size, open_regular, read_exact, read_verified
from .documents import decode_documents
from .layout import (
    DOCUMENT_MAGIC,
    SEGMENT_MAGIC,
    ShardName,
    docs_size,
    mds_header,
    segments_size,
    token_dtype,
)
from .segments import SegmentFile, check_table_header, decode_segments, segment_fault

__all__ = ["ReadWhole", "ShardFiles", "TokenFile", "TokenReader", "read_documents", "read_hashes", "read_segments"]

ReadWhole = Callable[[Path, int, str], bytes]
"""Reads a whole file, given its path, size in bytes and xxh3-128, and verifies it: as ``access.read_verified``."""


@dataclass(frozen=True)
class ShardFiles:
    """A row of shards.npy with its files' paths: all that is needed to open a shard."""

    folder: Path
    number: int
    seq_len: int
    vocab_size: int
    num_samples: int
    num_segments: int
    num_documents: int
    max_segments: int
    size_bytes: int
    mds_hash: str
    segments_hash: str
    docs_hash: str

    @property
    def mds(self) -> Path:
        """Path of the token file."""
        return self.folder / ShardName(self.number).mds

    @property
    def segments(self) -> Path:
        """Path of the segment table."""
        return self.folder / ShardName(self.number).segments

    @property
    def docs(self) -> Path:
        """Path of the document table."""
        return self.folder / ShardName(self.number).docs


class TokenReader(Protocol):
    """The samples of a shard."""

    @property
    def place(self) -> str:
        """Name of the file, for messages."""

    def copy(self, samples: list[int], target: memoryview, rows: list[int]) -> list[int]:
        """Copy samples to rows of ``target``; returns those that are damaged. See :meth:`TokenFile.copy`."""


class TokenFile:
    """The mapped ``.mds`` file of a shard. Its header is compared whole; its samples are verified as they are read."""

    def __init__(self, files: ShardFiles, hash_N: NDArray[np.uint64] | None = None) -> None:
        """Map the file. ``hash_N`` = its samples' hashes, from a verified table; None: the table is read for them.

        Raises:
            DamageError: it is missing, a link, of another size, or its header differs from what was written.
        """
        self.path = files.mds
        self.size_bytes = files.size_bytes
        descriptor = open_regular(self.path)
        try:
            check_size(self.path, os.fstat(descriptor).st_size, files.size_bytes)
            header = mds_header(files.num_samples, files.seq_len, files.vocab_size)
            if read_exact(descriptor, self.path, 0, len(header)) != header:
                message = "the header differs from that of such a shard"
                raise DamageError("TR-SHARD-FORMAT", message, str(self.path), f"{files.num_samples} samples")
            self._map = mmap.mmap(descriptor, files.size_bytes, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self._view = memoryview(self._map)[len(header) :]
        self._sample_bytes = files.seq_len * token_dtype(files.vocab_size).itemsize
        hash_N = read_hashes(files) if hash_N is None else hash_N.astype(np.uint64)  # a copy: the table may be let go
        self._hashes = hash_N.data

    @property
    def place(self) -> str:
        """Its path."""
        return str(self.path)

    def copy(self, samples: list[int], target: memoryview, rows: list[int]) -> list[int]:
        """Copy samples (numbers in the shard, that exist) to rows of ``target``, bytes; returns those that are damaged.

        The copy is hashed, not the mapping: what is verified is what the caller gets. One sample after the other is
        what memory likes best: the copy is hashed while it is still in the cache (1,600 Mtok/CPU-s at batch 64 over 8
        shards; numpy's take and a scatter 1,200, fancy assignment 750).

        Raises:
            DamageError: the file has been truncated, or extended, since it was mapped.
        """
        if self._map.size() != self.size_bytes:
            check_size(self.path, self._map.size(), self.size_bytes)
        size, view, hashes, digest = self._sample_bytes, self._view, self._hashes, xxhash.xxh3_64_intdigest
        damaged = []
        for sample, row in zip(samples, rows, strict=True):
            start, at = sample * size, row * size
            copied = target[at : at + size]
            copied[:] = view[start : start + size]
            if digest(copied) != hashes[sample]:
                damaged.append(sample)
        return damaged


def read_hashes(files: ShardFiles, read: ReadWhole = read_verified) -> NDArray[np.uint64]:
    """xxh3-64 of each sample of a shard, from its segment table, verified whole; raises as :func:`read_segments`."""
    return _read_segments(files, read).sample_hash_N.astype(np.uint64)


def read_segments(files: ShardFiles, read: ReadWhole = read_verified) -> SegmentFile:
    """The segment table of a shard, verified whole; ``read`` gets the file.

    Raises:
        DamageError: hash, counts or ranges differ from what was written.
    """
    table = _read_segments(files, read)
    fault = segment_fault(table, files.seq_len, files.num_documents, files.max_segments)
    if fault is not None:
        raise DamageError("TR-SHARD-SEGMENTS", fault, str(files.segments))
    return table


def _read_segments(files: ShardFiles, read: ReadWhole) -> SegmentFile:
    size_bytes = segments_size(files.num_samples, files.num_segments)
    data = read(files.segments, size_bytes, files.segments_hash)
    place = str(files.segments)
    check_table_header(
        data,
        SEGMENT_MAGIC,
        place,
        seq_len=files.seq_len,
        num_samples=files.num_samples,
        num_rows=files.num_segments,
        max_segments=files.max_segments,
        number=files.number,
    )
    return decode_segments(data, files.num_samples, files.num_segments, place)


def read_documents(files: ShardFiles, read: ReadWhole = read_verified) -> NDArray[np.void]:
    """The document table of a shard, verified whole; raises as :func:`read_segments`."""
    size_bytes = docs_size(files.num_documents)
    data = read(files.docs, size_bytes, files.docs_hash)
    place = str(files.docs)
    check_table_header(data, DOCUMENT_MAGIC, place, num_rows=files.num_documents, number=files.number)
    return decode_documents(data, files.num_documents, place)
