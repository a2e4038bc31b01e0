"""Segments: making them, the bytes of a ``.segments`` file, and the table that reading a batch returns.

Shape letters: N samples, S segments, T tokens of a sample (``seq_len``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from ..errors import DamageError
from .layout import HEADER_DTYPE, PADDING_ROW, SEGMENT_DTYPE, SEGMENT_MAGIC, TABLE_VERSION, segments_size

__all__ = [
    "SegmentArray",
    "SegmentFile",
    "SegmentTable",
    "check_table_header",
    "decode_segments",
    "encode_segments",
    "encode_table_header",
    "make_segments",
    "segment_fault",
]

SegmentArray: TypeAlias = NDArray[np.void]
"""Structured array of ``layout.SEGMENT_DTYPE``."""

_HASH_OFFSET = HEADER_DTYPE.fields["content_hash"][1] if HEADER_DTYPE.fields else 0


def make_segments(
    token_start: ArrayLike,
    document_row: ArrayLike,
    document_token_start: ArrayLike,
    byte_start: ArrayLike,
    byte_count: ArrayLike,
) -> SegmentArray:
    """Segments as rows of ``SEGMENT_DTYPE``, from five arrays of one length (or scalars).

    Padding has ``document_row`` = ``PADDING_ROW`` and zeros in what follows it.

    Raises:
        ValueError: a number is negative or does not fit 32 bits.
    """
    columns = [np.asarray(c) for c in (token_start, document_row, document_token_start, byte_start, byte_count)]
    shape = np.broadcast_shapes(*(c.shape for c in columns), (1,))
    rows_S = np.zeros(shape, SEGMENT_DTYPE)
    for name, column in zip(SEGMENT_DTYPE.names or (), columns, strict=True):
        if column.size and (int(column.min()) < 0 or int(column.max()) > PADDING_ROW):
            raise ValueError(f"{name} must be in [0, 2**32), got {column.min()}..{column.max()}")
        rows_S[name] = column
    return rows_S


@dataclass(frozen=True)
class SegmentTable:
    """The segments of N samples, in the order in which the samples were asked for. All arrays have length S.

    Attributes:
        sample_index_S: which of the N samples, i8, never decreasing.
        source_sample_S: source sample number, i8.
        segment_S: source segment number (counted through the source's shards), i8.
        token_start_S, num_tokens_S: tokens inside the sample, i8.
        shard_S: shard number inside the source, i4.
        document_row_S: row in the shard's .docs, i8; -1 for padding.
        document_id_S: u8; 0 for padding.
        document_token_start_S: tokens of the document before this segment, i8.
        byte_start_S, byte_count_S: bytes in the decoded UTF-8 text of the document, i8.
        file_S: index for ``Dataset.file_path``, i8; -1 for padding.
        record_S, record_start_S: Origin, i8.
        padding_S: bool.
    """

    sample_index_S: NDArray[np.int64]
    source_sample_S: NDArray[np.int64]
    segment_S: NDArray[np.int64]
    token_start_S: NDArray[np.int64]
    num_tokens_S: NDArray[np.int64]
    shard_S: NDArray[np.int32]
    document_row_S: NDArray[np.int64]
    document_id_S: NDArray[np.uint64]
    document_token_start_S: NDArray[np.int64]
    byte_start_S: NDArray[np.int64]
    byte_count_S: NDArray[np.int64]
    file_S: NDArray[np.int64]
    record_S: NDArray[np.int64]
    record_start_S: NDArray[np.int64]
    padding_S: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.token_start_S)

    def take(self, index_S: NDArray[np.int64] | NDArray[np.bool_]) -> SegmentTable:
        """The segments that ``index_S`` (numbers or a mask) picks."""
        return SegmentTable(*(getattr(self, f.name)[index_S] for f in fields(self)))

    @staticmethod
    def join(tables: Sequence[SegmentTable], sample_indices: Sequence[NDArray[np.int64]]) -> SegmentTable:
        """One table out of several: sample i of table k becomes sample ``sample_indices[k][i]``; sorted by sample.

        So a batch that draws on several sources gets one table, whichever order it asked them in.
        """
        columns = [np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(SegmentTable)]
        columns[0] = np.concatenate([index[t.sample_index_S] for t, index in zip(tables, sample_indices, strict=True)])
        order_S = np.argsort(columns[0], kind="stable")
        return SegmentTable(*(c[order_S] for c in columns))


@dataclass(frozen=True)
class SegmentFile:
    """A decoded ``.segments`` file (views into its bytes): hashes of N samples, N + 1 offsets, S segments."""

    sample_hash_N: NDArray[np.uint64]
    segment_offset_N: NDArray[np.uint32]
    segments_S: SegmentArray


def encode_table_header(magic: bytes, body: Sequence[bytes], **values: int) -> bytes:
    """The 64-byte header of a side table over ``body``, with its content hash filled in.

    ``values`` are the other fields of ``layout.HEADER_DTYPE``.
    """
    header = np.zeros(1, HEADER_DTYPE)
    header["magic"] = magic
    header["version"] = TABLE_VERSION
    for name, value in values.items():
        header[name] = value
    digest = xxhash.xxh3_64(header.tobytes())
    for piece in body:
        digest.update(piece)
    header["content_hash"] = digest.intdigest()
    return header.tobytes()


def check_table_header(data: bytes, magic: bytes, place: str, **expected: int) -> None:
    """Check magic, version, fields and content hash of a side table.

    Raises:
        DamageError: any of them differs from what was written.
    """
    if len(data) < HEADER_DTYPE.itemsize or data[:8] != magic:
        raise DamageError("TR-SHARD-FORMAT", "the file does not begin like such a table", place, repr(magic))
    header = np.frombuffer(data, HEADER_DTYPE, 1)[0]
    for name, value in {"version": TABLE_VERSION, **expected}.items():
        if int(header[name]) != value:
            raise DamageError("TR-SHARD-FORMAT", f"header field {name} is {int(header[name])}", place, str(value))
    digest = xxhash.xxh3_64(data[:_HASH_OFFSET])
    digest.update(bytes(8))
    digest.update(memoryview(data)[HEADER_DTYPE.itemsize :])
    if digest.intdigest() != int(header["content_hash"]):
        raise DamageError("TR-SHARD-HASH", "the table does not match its own checksum", place)


def encode_segments(table: SegmentFile, seq_len: int, number: int) -> tuple[bytes, bytes, bytes, bytes]:
    """The bytes of a ``.segments`` file in four pieces, for shard ``number``."""
    body = (
        table.sample_hash_N.astype("<u8").tobytes(),
        table.segment_offset_N.astype("<u4").tobytes(),
        table.segments_S.tobytes(),
    )
    header = encode_table_header(
        SEGMENT_MAGIC,
        body,
        seq_len=seq_len,
        num_samples=len(table.sample_hash_N),
        num_rows=len(table.segments_S),
        max_segments=int(np.diff(table.segment_offset_N.astype(np.int64)).max(initial=0)),
        number=number,
    )
    return header, *body


def segment_fault(table: SegmentFile, seq_len: int, num_documents: int, max_segments: int) -> str | None:
    """Why the numbers of ``table`` cannot be those of a shard, or None: what keeps every later index in range."""
    offset_N, rows_S = table.segment_offset_N, table.segments_S
    if offset_N[0] != 0 or offset_N[-1] != len(rows_S) or (offset_N[1:] <= offset_N[:-1]).any():
        return "segment offsets do not rise from 0 to the number of segments"
    most = int((offset_N[1:] - offset_N[:-1]).max(initial=0))
    if most != max_segments:
        return f"a sample has {most} segments, recorded are at most {max_segments}"
    start_S = np.ascontiguousarray(rows_S["token_start"])
    # starts that rise inside samples and are 0 at their beginnings fall exactly where the next sample begins
    falls = np.flatnonzero(start_S[1:] <= start_S[:-1]) + 1
    if start_S[offset_N[:-1]].any() or (start_S >= seq_len).any() or not np.array_equal(falls, offset_N[1:-1]):
        return "token starts of a sample do not rise from 0 below seq_len"
    beyond = np.flatnonzero(rows_S["document_row"] >= num_documents)
    if not len(beyond):
        return None
    if (rows_S["document_row"][beyond] != PADDING_ROW).any():
        return f"a segment names a document row past the {num_documents} rows of the shard"
    last_S = np.zeros(len(rows_S), np.bool_)
    last_S[offset_N[1:] - 1] = True
    if not last_S[beyond].all():
        return "padding is not the last segment of its sample"
    return None


def decode_segments(data: bytes, num_samples: int, num_segments: int, place: str) -> SegmentFile:
    """Views into the bytes of a ``.segments`` file; sizes are checked, contents are not (see :func:`segment_fault`).

    Raises:
        DamageError: the bytes are fewer or more than the counts need.
    """
    if len(data) != segments_size(num_samples, num_segments):
        raise DamageError("TR-FILE-SIZE", f"the table has {len(data):,} bytes", place)
    start = HEADER_DTYPE.itemsize
    hashes_N = np.frombuffer(data, "<u8", num_samples, start)
    start += hashes_N.nbytes
    offsets_N = np.frombuffer(data, "<u4", num_samples + 1, start)
    start += offsets_N.nbytes
    return SegmentFile(hashes_N, offsets_N, np.frombuffer(data, SEGMENT_DTYPE, num_segments, start))
