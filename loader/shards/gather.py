"""Gathering the segments of a batch from the tables of its shards: a few array operations a shard, the rest at once.

Shape letters: N samples asked for, G the same samples grouped by shard, S segments, K shards of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import DOCUMENT_DTYPE, PADDING_ROW, SEGMENT_DTYPE
from .segments import SegmentFile, SegmentTable

__all__ = ["SampleGroups", "ShardTables", "gather_segments", "group_samples"]

_SEGMENT_WORDS = SEGMENT_DTYPE.itemsize // 4
_DOCUMENT_WORDS = DOCUMENT_DTYPE.itemsize // 4
_DOCUMENT_ROW_WORD = 1  # of a segment's five


class ShardTables:
    """The side tables of a shard as they were read and checked: joined for the segments of a batch alone.

    A batch reads a few hundred of a shard's 65,536 segments at once, so joining all of them when a shard is first
    touched would cost more than all else that a first batch needs.

    Attributes:
        table: hashes, offsets and segments.
        documents_D: documents.
        segments_SW, documents_DW: their rows as u4 words: gathering plain integers is faster than structures.
    """

    __slots__ = ("documents_D", "documents_DW", "segments_SW", "table")

    def __init__(self, table: SegmentFile, documents_D: NDArray[np.void]) -> None:
        self.table = table
        self.documents_D = documents_D
        self.segments_SW = table.segments_S.view(np.uint32).reshape(-1, _SEGMENT_WORDS)
        self.documents_DW = documents_D.view(np.uint32).reshape(-1, _DOCUMENT_WORDS)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        table = self.table
        sizes = (table.sample_hash_N, table.segment_offset_N, table.segments_S, self.documents_D)
        return sum(array.nbytes for array in sizes)


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


def gather_segments(
    groups: SampleGroups, tables: Sequence[ShardTables], segment_start_K: NDArray[np.int64], seq_len: int
) -> SegmentTable:
    """The table of all segments of a batch, sorted by the samples' place in it.

    ``tables`` = those of ``groups.shards``, ``segment_start_K`` = source segment number of each shard's first segment.
    """
    bounds, local_G = groups.bounds, groups.local_G
    offset_2G = np.empty((2, len(local_G)), np.uint32)
    for tabled, start, stop in zip(tables, bounds, bounds[1:], strict=False):
        mine_G, offset_N = local_G[start:stop], tabled.table.segment_offset_N
        offset_N.take(mine_G, out=offset_2G[0, start:stop], mode="clip")
        offset_N[1:].take(mine_G, out=offset_2G[1, start:stop], mode="clip")
    first_G, stop_G = offset_2G.astype(np.int64)
    count_G = stop_G - first_G
    end_G = np.cumsum(count_G)
    ends = [0, *end_G.tolist()]
    # Segment number inside its shard: the sample's first one plus the place inside the sample.
    local_S = np.arange(ends[-1]) + np.repeat(stop_G - end_G, count_G)
    segments_SW = np.empty((ends[-1], _SEGMENT_WORDS), np.uint32)
    documents_SW = np.empty((ends[-1], _DOCUMENT_WORDS), np.uint32)
    for tabled, start, stop in zip(tables, bounds, bounds[1:], strict=False):
        mine = slice(ends[start], ends[stop])
        tabled.segments_SW.take(local_S[mine], axis=0, out=segments_SW[mine], mode="clip")
        if len(tabled.documents_DW):  # a shard may be padding alone
            # padding names no row and gets the last one, until _table blanks it
            rows_S = segments_SW[mine, _DOCUMENT_ROW_WORD]
            tabled.documents_DW.take(rows_S, axis=0, out=documents_SW[mine], mode="clip")
    shard_G = np.repeat(np.array(groups.shards, np.int32), np.diff(bounds))
    index_S, shard_S = np.repeat(groups.index_G, count_G), np.repeat(shard_G, count_G)
    if len(tables) > 1 or (groups.index_G[1:] < groups.index_G[:-1]).any():
        order_S = np.argsort(index_S, kind="stable")
        index_S, shard_S, local_S = index_S[order_S], shard_S[order_S], local_S[order_S]
        segments_SW, documents_SW = segments_SW.take(order_S, axis=0), documents_SW.take(order_S, axis=0)
    place = _Places(groups.sample_N[index_S], index_S, shard_S, local_S + segment_start_K[shard_S])
    return _table(place, segments_SW.view(SEGMENT_DTYPE).reshape(-1), documents_SW, seq_len)


@dataclass(frozen=True)
class _Places:
    """Where the segments of a batch lie; columns as in ``segments.SegmentTable``."""

    source_sample_S: NDArray[np.int64]
    sample_index_S: NDArray[np.int64]
    shard_S: NDArray[np.int32]
    segment_S: NDArray[np.int64]


def _table(place: _Places, rows_S: NDArray[np.void], documents_SW: NDArray[np.uint32], seq_len: int) -> SegmentTable:
    token_start_S = rows_S["token_start"].astype(np.int64)
    index_S = place.sample_index_S
    stop_S = np.full(len(rows_S), seq_len)
    last_S = np.ones(len(rows_S), np.bool_)
    np.not_equal(index_S[1:], index_S[:-1], out=last_S[:-1])
    np.copyto(stop_S[:-1], token_start_S[1:], where=~last_S[:-1])
    padding_S = rows_S["document_row"] == PADDING_ROW
    padding = np.flatnonzero(padding_S)
    documents_SW[padding] = 0
    documents_S = documents_SW.view(DOCUMENT_DTYPE).reshape(-1)
    document_row_S = rows_S["document_row"].astype(np.int64)
    file_S = documents_S["file"].astype(np.int64)
    document_row_S[padding] = -1
    file_S[padding] = -1
    return SegmentTable(
        sample_index_S=index_S,
        source_sample_S=place.source_sample_S,
        segment_S=place.segment_S,
        token_start_S=token_start_S,
        num_tokens_S=stop_S - token_start_S,
        shard_S=place.shard_S,
        document_row_S=document_row_S,
        document_id_S=documents_S["id"].copy(),
        document_token_start_S=rows_S["document_token_start"].astype(np.int64),
        byte_start_S=rows_S["byte_start"].astype(np.int64),
        byte_count_S=rows_S["byte_count"].astype(np.int64),
        file_S=file_S,
        record_S=documents_S["record"].astype(np.int64),
        record_start_S=documents_S["record_start"].astype(np.int64),
        padding_S=padding_S,
    )
