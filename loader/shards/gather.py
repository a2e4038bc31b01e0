"""Gathering the segments of a batch from the tables of its shards, in a handful of array operations a shard.

Shape letters: N samples asked for, S segments, K shards of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import DOCUMENT_DTYPE, PADDING_ROW, SEGMENT_DTYPE
from .segments import SegmentFile, SegmentTable

__all__ = ["ShardPart", "gather_segments"]


@dataclass(frozen=True)
class ShardPart:
    """The samples of a batch that lie in one shard: ``index_N`` of the batch, ``local_N`` in the shard."""

    shard: int
    index_N: NDArray[np.int64]
    local_N: NDArray[np.int64]
    table: SegmentFile
    documents_D: NDArray[np.void]


def gather_segments(
    parts: Sequence[ShardPart],
    sample_N: NDArray[np.int64],
    segment_start_K: NDArray[np.int64],
    seq_len: int,
) -> SegmentTable:
    """The table of all segments of N samples, sorted by the samples' place in the batch.

    ``sample_N`` = source sample numbers, ``segment_start_K`` = source segment number of each shard's first segment.
    """
    count_N = np.zeros(len(sample_N), np.int64)
    first_N = np.zeros(len(sample_N), np.int64)
    for part in parts:
        start_N = part.table.segment_offset_N[part.local_N]
        first_N[part.index_N] = start_N
        count_N[part.index_N] = part.table.segment_offset_N[part.local_N + 1] - start_N
    stop_N = np.cumsum(count_N)
    total = int(stop_N[-1]) if len(stop_N) else 0
    sample_index_S = np.repeat(np.arange(len(sample_N)), count_N)
    # Segment number inside its shard: the sample's first one plus the place inside the sample.
    local_S = np.arange(total) + np.repeat(first_N - stop_N + count_N, count_N)
    rows_S = np.empty(total, SEGMENT_DTYPE)
    documents_S = np.zeros(total, DOCUMENT_DTYPE)
    shard_S = np.empty(total, np.int32)
    part_N = np.zeros(len(sample_N), np.int64)
    for number, part in enumerate(parts):
        part_N[part.index_N] = number
    part_S = part_N[sample_index_S]
    for number, part in enumerate(parts):
        mine_S = np.flatnonzero(part_S == number) if len(parts) > 1 else slice(None)
        rows = part.table.segments_S[local_S[mine_S]]
        rows_S[mine_S] = rows
        shard_S[mine_S] = part.shard
        # Padding names no document: it takes row 0 here, and is blanked below.
        safe = np.where(rows["document_row"] == PADDING_ROW, 0, rows["document_row"])
        if len(part.documents_D):
            documents_S[mine_S] = part.documents_D[safe]
    num_tokens_S = np.diff(rows_S["token_start"].astype(np.int64), append=0)
    num_tokens_S[stop_N - 1] = seq_len - rows_S["token_start"][stop_N - 1].astype(np.int64)
    padding_S = rows_S["document_row"] == PADDING_ROW
    documents_S[padding_S] = np.zeros(1, DOCUMENT_DTYPE)

    def wide(column_S: NDArray[np.void], name: str, padding: int | None = None) -> NDArray[np.int64]:
        values_S = column_S[name].astype(np.int64)
        if padding is not None:
            values_S[padding_S] = padding
        return values_S

    return SegmentTable(
        sample_index_S=sample_index_S,
        source_sample_S=sample_N[sample_index_S],
        segment_S=local_S + segment_start_K[shard_S],
        token_start_S=wide(rows_S, "token_start"),
        num_tokens_S=num_tokens_S,
        shard_S=shard_S,
        document_row_S=wide(rows_S, "document_row", -1),
        document_id_S=documents_S["id"].astype(np.uint64),
        document_token_start_S=wide(rows_S, "document_token_start"),
        byte_start_S=wide(rows_S, "byte_start"),
        byte_count_S=wide(rows_S, "byte_count"),
        file_S=wide(documents_S, "file", -1),
        record_S=wide(documents_S, "record"),
        record_start_S=wide(documents_S, "record_start"),
        padding_S=padding_S,
    )
