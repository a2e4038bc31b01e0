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

__all__ = ["SampleGroups", "SegmentRows", "gather_segments", "group_samples", "join_rows"]

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


class SegmentRows:
    """A shard's segments joined with their documents, as one row of 48 bytes each: one look-up a segment.

    Attributes:
        offset_N: first segment of each sample, and the end; i8.
        rows_S: segments; those of padding hold zeros for a document.
        words_SW: the same rows as u8 words: gathering plain integers is faster than gathering structures.
    """

    __slots__ = ("offset_N", "rows_S", "words_SW")

    def __init__(self, offset_N: NDArray[np.int64], rows_S: NDArray[np.void]) -> None:
        self.offset_N = offset_N
        self.rows_S = rows_S
        self.words_SW = rows_S.view(np.uint64).reshape(-1, _ROW_WORDS)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.offset_N.nbytes + self.rows_S.nbytes


@dataclass(frozen=True)
class SampleGroups:
    """The samples of a batch, sorted by shard.

    Attributes:
        sample_N: source sample numbers, as asked for.
        index_G: which of the N each of the G is.
        local_G: sample number inside its shard.
        shards: shards that occur, ascending.
        bounds: the samples of shard ``shards[k]`` are ``bounds[k]:bounds[k + 1]`` of G.
    """

    sample_N: NDArray[np.int64]
    index_G: NDArray[np.int64]
    local_G: NDArray[np.int64]
    shards: list[int]
    bounds: list[int]


def group_samples(sample_N: NDArray[np.int64], start_K: NDArray[np.int64]) -> SampleGroups:
    """Sort samples (that exist) by shard; ``start_K`` = first sample of each shard of the source, and the end."""
    shard_N = np.searchsorted(start_K, sample_N, "right") - 1
    index_G = np.argsort(shard_N, kind="stable")
    shard_G = shard_N[index_G]
    local_G = (sample_N - start_K[shard_N])[index_G]
    borders = (np.flatnonzero(shard_G[1:] != shard_G[:-1]) + 1).tolist()
    bounds = [0, *borders, len(sample_N)] if len(sample_N) else [0]
    return SampleGroups(sample_N, index_G, local_G, shard_G[bounds[:-1]].tolist(), bounds)


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
    groups: SampleGroups, tables: Sequence[SegmentRows], segment_start_K: NDArray[np.int64], seq_len: int
) -> SegmentTable:
    """The table of all segments of a batch, sorted by the samples' place in it.

    ``tables`` = those of ``groups.shards``, ``segment_start_K`` = source segment number of each shard's first segment.
    """
    bounds, local_G = groups.bounds, groups.local_G
    first_G, stop_G = np.empty((2, len(local_G)), np.int64)
    for table, start, stop in zip(tables, bounds, bounds[1:], strict=False):
        mine_G = local_G[start:stop]
        table.offset_N.take(mine_G, out=first_G[start:stop], mode="clip")
        table.offset_N[1:].take(mine_G, out=stop_G[start:stop], mode="clip")
    count_G = stop_G - first_G
    end_G = np.cumsum(count_G)
    ends = [0, *end_G.tolist()]
    # Segment number inside its shard: the sample's first one plus the place inside the sample.
    local_S = np.arange(ends[-1]) + np.repeat(stop_G - end_G, count_G)
    words_SW = np.empty((ends[-1], _ROW_WORDS), np.uint64)
    for table, start, stop in zip(tables, bounds, bounds[1:], strict=False):
        mine = slice(ends[start], ends[stop])
        table.words_SW.take(local_S[mine], axis=0, out=words_SW[mine], mode="clip")
    shard_G = np.repeat(np.array(groups.shards, np.int32), np.diff(bounds))
    index_S, shard_S = np.repeat(groups.index_G, count_G), np.repeat(shard_G, count_G)
    if len(tables) > 1 or (groups.index_G[1:] < groups.index_G[:-1]).any():
        order_S = np.argsort(index_S, kind="stable")
        index_S, shard_S, local_S = index_S[order_S], shard_S[order_S], local_S[order_S]
        words_SW = words_SW.take(order_S, axis=0)
    segment_S = local_S + segment_start_K[shard_S]
    rows_S = words_SW.view(_ROW_DTYPE).reshape(-1)
    return _table(rows_S, groups.sample_N[index_S], index_S, shard_S, segment_S, seq_len)


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
