"""Gathering the segments of a batch from the tables of its shards: three array operations a shard, the rest at once.

Shape letters: N samples asked for, G the same samples grouped by shard, S segments, K shards of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import PADDING_ROW
from .segments import SegmentFile, SegmentTable

__all__ = ["SegmentRows", "ShardPart", "gather_segments", "join_rows"]

_ROW_DTYPE = np.dtype(
    [
        ("token_start", "<u4"),
        ("document_row", "<u4"),
        ("document_token_start", "<u4"),
        ("byte_start", "<u4"),
        ("byte_count", "<u4"),
        ("file", "<u4"),
        ("id", "<u8"),
        ("record", "<u8"),
        ("record_start", "<u8"),
    ]
)
_ROW_WORDS = _ROW_DTYPE.itemsize // 8


@dataclass(frozen=True)
class SegmentRows:
    """A shard's segments joined with their documents, as one row of 48 bytes each: one look-up a segment.

    Attributes:
        offset_N: first segment of each sample, and the end; i8.
        rows_S: segments; those of padding hold zeros for a document.
    """

    offset_N: NDArray[np.int64]
    rows_S: NDArray[np.void]

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.offset_N.nbytes + self.rows_S.nbytes


@dataclass(frozen=True)
class ShardPart:
    """The samples of a batch that lie in one shard: ``index_N`` of the batch, ``local_N`` in the shard."""

    shard: int
    index_N: NDArray[np.int64]
    local_N: NDArray[np.int64]
    segments: SegmentRows


def join_rows(table: SegmentFile, documents_D: NDArray[np.void]) -> SegmentRows:
    """Join checked tables of one shard."""
    rows_S = np.zeros(len(table.segments_S), _ROW_DTYPE)
    for name in table.segments_S.dtype.names or ():
        rows_S[name] = table.segments_S[name]
    real_S = table.segments_S["document_row"] != PADDING_ROW
    mine_S = documents_D[table.segments_S["document_row"][real_S]]
    for name in documents_D.dtype.names or ():
        rows_S[name][real_S] = mine_S[name]
    return SegmentRows(table.segment_offset_N.astype(np.int64), rows_S)


def gather_segments(
    parts: Sequence[ShardPart],
    sample_N: NDArray[np.int64],
    segment_start_K: NDArray[np.int64],
    seq_len: int,
) -> SegmentTable:
    """The table of all segments of N samples, sorted by the samples' place in the batch.

    ``sample_N`` = source sample numbers, ``segment_start_K`` = source segment number of each shard's first segment.
    """
    first_G, stop_G = np.empty((2, len(sample_N)), np.int64)
    bounds = [0]
    for part in parts:
        start, stop = bounds[-1], bounds[-1] + len(part.local_N)
        part.segments.offset_N.take(part.local_N, out=first_G[start:stop], mode="clip")
        part.segments.offset_N.take(part.local_N + 1, out=stop_G[start:stop], mode="clip")
        bounds.append(stop)
    count_G = stop_G - first_G
    end_G = np.cumsum(count_G)
    total = int(end_G[-1]) if len(end_G) else 0
    # Segment number inside its shard: the sample's first one plus the place inside the sample.
    local_S = np.arange(total) + np.repeat(stop_G - end_G, count_G)
    words_SW = np.empty((total, _ROW_WORDS), np.uint64)
    shard_K = np.empty(len(parts), np.int32)
    ends = [0, *end_G.tolist()]
    for number, part in enumerate(parts):
        shard_K[number] = part.shard
        start, stop = ends[bounds[number]], ends[bounds[number + 1]]
        source_SW = part.segments.rows_S.view(np.uint64).reshape(-1, _ROW_WORDS)
        source_SW.take(local_S[start:stop], axis=0, out=words_SW[start:stop], mode="clip")
    index_G = np.concatenate([part.index_N for part in parts]) if parts else np.zeros(0, np.int64)
    shard_G = np.repeat(shard_K, np.diff(bounds))
    index_S, shard_S = np.repeat(index_G, count_G), np.repeat(shard_G, count_G)
    if len(parts) > 1 or (index_G[1:] < index_G[:-1]).any():
        order_S = np.argsort(index_S, kind="stable")
        index_S, shard_S, local_S = index_S[order_S], shard_S[order_S], local_S[order_S]
        words_SW = words_SW.take(order_S, axis=0)
    segment_S = local_S + segment_start_K[shard_S]
    return _table(words_SW.view(_ROW_DTYPE).reshape(-1), sample_N[index_S], index_S, shard_S, segment_S, seq_len)


def _table(
    rows_S: NDArray[np.void],
    sample_S: NDArray[np.int64],
    index_S: NDArray[np.int64],
    shard_S: NDArray[np.int32],
    segment_S: NDArray[np.int64],
    seq_len: int,
) -> SegmentTable:
    token_start_S = rows_S["token_start"].astype(np.int64)
    stop_S = np.full(len(rows_S), seq_len)
    last_S = np.ones(len(rows_S), np.bool_)
    np.not_equal(index_S[1:], index_S[:-1], out=last_S[:-1])
    np.copyto(stop_S[:-1], token_start_S[1:], where=~last_S[:-1])
    padding_S = rows_S["document_row"] == PADDING_ROW
    document_row_S = rows_S["document_row"].astype(np.int64)
    file_S = rows_S["file"].astype(np.int64)
    document_row_S[padding_S] = -1
    file_S[padding_S] = -1
    return SegmentTable(
        sample_index_S=index_S,
        source_sample_S=sample_S,
        segment_S=segment_S,
        token_start_S=token_start_S,
        num_tokens_S=stop_S - token_start_S,
        shard_S=shard_S,
        document_row_S=document_row_S,
        document_id_S=rows_S["id"].copy(),
        document_token_start_S=rows_S["document_token_start"].astype(np.int64),
        byte_start_S=rows_S["byte_start"].astype(np.int64),
        byte_count_S=rows_S["byte_count"].astype(np.int64),
        file_S=file_S,
        record_S=rows_S["record"].astype(np.int64),
        record_start_S=rows_S["record_start"].astype(np.int64),
        padding_S=padding_S,
    )
