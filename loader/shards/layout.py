"""What lies on disk: dtypes, header sizes, names and versions of a Dataset's files. Pure functions, no I/O.

All integers are little-endian. A shard is three files of one stem::

    shard.00000.mds        u32 count, u32 offset[count + 1], JSON padded with spaces up to a multiple of 4096, tokens
    shard.00000.segments   64-byte header, u64 sample_hash[N], u32 segment_offset[N + 1], 20-byte rows
    shard.00000.docs       64-byte header, 28-byte rows

The ``.mds`` header is a function of (number of samples, ``seq_len``, dtype) alone, so readers compare it whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DOCUMENT_DTYPE",
    "DOCUMENT_INDEX_DTYPE",
    "DOCUMENT_MAGIC",
    "FORMAT_NAME",
    "FORMAT_VERSION",
    "HEADER_DTYPE",
    "MAX_SEQ_LEN",
    "MAX_SHARD_BYTES",
    "MAX_VOCAB_SIZE",
    "PADDING_ROW",
    "RESERVED_NAMES",
    "SEGMENT_DTYPE",
    "SEGMENT_MAGIC",
    "SHARD_DTYPE",
    "TABLE_VERSION",
    "IntegerArray",
    "ShardName",
    "TokenArray",
    "docs_size",
    "dtype_name",
    "max_samples",
    "mds_columns",
    "mds_header",
    "mds_header_size",
    "mds_size",
    "segments_size",
    "token_dtype",
]

TokenArray: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids as stored, u2 or u4."""

IntegerArray: TypeAlias = NDArray[np.integer[Any]]
"""Integers of any width."""

FORMAT_NAME = "tokenreel-dataset"
FORMAT_VERSION = 1
TABLE_VERSION = 1
PADDING_ROW = 0xFFFFFFFF
MAX_SHARD_BYTES = 1 << 31
MAX_SEQ_LEN = 1 << 24
MAX_VOCAB_SIZE = 1 << 31
_ALIGNMENT = 4096
_NARROW_VOCAB_SIZE = 1 << 16

SEGMENT_MAGIC = b"TRSEG\x00\x00\x01"
DOCUMENT_MAGIC = b"TRDOC\x00\x00\x01"

HEADER_DTYPE = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("seq_len", "<u4"),
        ("num_samples", "<u8"),
        ("num_rows", "<u8"),
        ("max_segments", "<u4"),
        ("number", "<u4"),
        ("reserved", "<u8", (2,)),
        ("content_hash", "<u8"),
    ]
)
"""Header of a side table, 64 bytes. ``content_hash`` = xxh3-64 of the file with this field set to zero."""

SEGMENT_DTYPE = np.dtype(
    [
        ("token_start", "<u4"),
        ("document_row", "<u4"),
        ("document_token_start", "<u4"),
        ("byte_start", "<u4"),
        ("byte_count", "<u4"),
    ]
)
"""A segment, 20 bytes. Its tokens end where the next one of the sample starts; padding is a last segment whose
``document_row`` is ``PADDING_ROW``. Bytes count in the decoded UTF-8 text of the document."""

DOCUMENT_DTYPE = np.dtype([("id", "<u8"), ("record", "<u8"), ("record_start", "<u8"), ("file", "<u4")])
"""A document of a shard, 28 bytes: its id and Origin (``file`` = line of files.txt; for Parquet ``record_start`` is
the row group)."""

DOCUMENT_INDEX_DTYPE = np.dtype([("id", "<u8"), ("shard", "<u4"), ("row", "<u4")])
"""A row of documents.npy, 16 bytes, sorted by (id, shard): ``shard`` = row of shards.npy, ``row`` = row of .docs."""

SHARD_DTYPE = np.dtype(
    [
        ("source", "<u2"),
        ("max_segments", "<u4"),
        ("number", "<u4"),
        ("num_documents", "<u4"),
        ("num_samples", "<u8"),
        ("num_segments", "<u8"),
        ("num_tokens", "<u8"),
        ("size_bytes", "<u8"),
        ("mds_hash", "u1", (16,)),
        ("segments_hash", "u1", (16,)),
        ("docs_hash", "u1", (16,)),
    ]
)
"""A row of shards.npy, 94 bytes. ``size_bytes`` is that of the .mds file, ``num_tokens`` leaves padding out, hashes are
xxh3-128 of whole files."""

RESERVED_NAMES = frozenset(
    {
        "manifest.json",
        "shards.npy",
        "documents.npy",
        "files.txt",
        "job.json",
        "report.html",
        "removed.parquet",
        "cuts.parquet",
        "rejected.parquet",
        "superseded.parquet",
        "contamination.parquet",
        "frequent.parquet",
        "tokenizer",
        "index",
    }
)
"""Names in a Dataset folder that no source may have."""


@dataclass(frozen=True)
class ShardName:
    """File names of shard ``number`` of a source, relative to the source's folder."""

    number: int

    @property
    def mds(self) -> str:
        """Tokens."""
        return f"shard.{self.number:05d}.mds"

    @property
    def segments(self) -> str:
        """Sample hashes and segments."""
        return f"shard.{self.number:05d}.segments"

    @property
    def docs(self) -> str:
        """Documents."""
        return f"shard.{self.number:05d}.docs"


def dtype_name(vocab_size: int) -> str:
    """``uint16`` up to 65,536 vocabulary entries, else ``uint32``."""
    return "uint16" if vocab_size <= _NARROW_VOCAB_SIZE else "uint32"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Little-endian dtype of token ids for a vocabulary of ``vocab_size`` entries."""
    return np.dtype("<u2") if vocab_size <= _NARROW_VOCAB_SIZE else np.dtype("<u4")


def mds_columns(seq_len: int, vocab_size: int) -> dict[str, object]:
    """What MDS says of a shard, in its header and in index.json: one fixed-shape column ``tokens``."""
    return {
        "column_encodings": [f"ndarray:{dtype_name(vocab_size)}:{seq_len}"],
        "column_names": ["tokens"],
        "column_sizes": [seq_len * token_dtype(vocab_size).itemsize],
        "compression": None,
        "format": "mds",
        "hashes": ["xxh3_128"],
        "size_limit": None,
        "version": 2,
    }


def _config(seq_len: int, vocab_size: int) -> bytes:
    return json.dumps(mds_columns(seq_len, vocab_size), sort_keys=True).encode("ascii")


def mds_header_size(num_samples: int, seq_len: int, vocab_size: int) -> int:
    """Bytes before the first token: a multiple of 4096."""
    needed = 8 + 4 * num_samples + len(_config(seq_len, vocab_size))
    return -(-needed // _ALIGNMENT) * _ALIGNMENT


def mds_size(num_samples: int, seq_len: int, vocab_size: int) -> int:
    """Bytes of a whole .mds file."""
    sample_bytes = seq_len * token_dtype(vocab_size).itemsize
    return mds_header_size(num_samples, seq_len, vocab_size) + num_samples * sample_bytes


def mds_header(num_samples: int, seq_len: int, vocab_size: int) -> bytes:
    """The header itself. Its configuration is padded with spaces, which JSON ignores and stock readers never parse."""
    size = mds_header_size(num_samples, seq_len, vocab_size)
    sample_bytes = seq_len * token_dtype(vocab_size).itemsize
    offsets: NDArray[np.uint32] = (size + sample_bytes * np.arange(num_samples + 1, dtype=np.int64)).astype("<u4")
    head = num_samples.to_bytes(4, "little") + offsets.tobytes()
    return head + _config(seq_len, vocab_size).ljust(size - len(head), b" ")


def max_samples(seq_len: int, vocab_size: int, size_bytes: int = MAX_SHARD_BYTES - 1) -> int:
    """Most samples whose .mds file is no longer than ``size_bytes``; 0 if none fits.

    This is what a packer asks to turn a shard size into a number of samples.
    """
    size_bytes = min(size_bytes, MAX_SHARD_BYTES - 1)
    sample_bytes = seq_len * token_dtype(vocab_size).itemsize
    count = max(0, size_bytes // (sample_bytes + 4))
    while count and mds_size(count, seq_len, vocab_size) > size_bytes:
        count -= max(1, (mds_size(count, seq_len, vocab_size) - size_bytes) // (sample_bytes + 4))
    while mds_size(count + 1, seq_len, vocab_size) <= size_bytes:
        count += 1
    return count


def segments_size(num_samples: int, num_segments: int) -> int:
    """Bytes of a whole .segments file."""
    return HEADER_DTYPE.itemsize + 12 * num_samples + 4 + SEGMENT_DTYPE.itemsize * num_segments


def docs_size(num_documents: int) -> int:
    """Bytes of a whole .docs file."""
    return HEADER_DTYPE.itemsize + DOCUMENT_DTYPE.itemsize * num_documents
