"""A step of the plan as arrays: pure functions of (plan, sources, step). Stream and look-up call :func:`read_batch`.

Tensors of a data rank's part of the global batch. Labels are shifted inside a segment: the label of a token is the next
token of the same segment, so a segment's last token has none. Masked segments keep their places, but every token of
them is overwritten by the filler and has no label; padding has no labels either.

Legend: B samples of this rank, T tokens a sample, S segments of those samples (padding included), C = B * most segments
a sample can have + 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import RefusedError
from .buffers import BufferPool

if TYPE_CHECKING:
    from ..order.plan import Plan, SampleRefs
    from ..shards.segments import SegmentTable
    from ..sources import Sources

__all__ = [
    "IGNORED_LABEL",
    "Batch",
    "BatchSegments",
    "RowSpan",
    "rank_span",
    "read_batch",
    "read_positions",
    "read_segments",
    "read_tokens",
    "slice_batch",
]

IGNORED_LABEL = -100
_POOL = BufferPool()
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BatchSegments:
    """Segments of the samples of a batch, in batch order; one array entry a segment.

    Attributes:
        sample_index_S: row of the batch.
        token_start_S, num_tokens_S: half-open token range inside that row.
        position_S, source_S, sample_S: plan position, index into the plan's sources, source sample number.
        segment_S: number of the segment inside its source, shard-major, as skip entries name it.
        shard_S: shard number inside its source.
        document_id_S: u8; 0 for padding.
        document_token_start_S: tokens of the document that lie before this segment.
        byte_start_S, byte_count_S: range in the decoded UTF-8 text of the document.
        file_S, record_S, record_start_S: Origin; ``file_S`` is a line of the Dataset's files.txt.
        padding_S: no document. masked_S: the skip list takes it out of training (bool, never for padding).
    """

    sample_index_S: _Ints
    token_start_S: _Ints
    num_tokens_S: _Ints
    position_S: _Ints
    source_S: _Ints
    sample_S: _Ints
    segment_S: _Ints
    shard_S: _Ints
    document_id_S: NDArray[np.uint64]
    document_token_start_S: _Ints
    byte_start_S: _Ints
    byte_count_S: _Ints
    file_S: _Ints
    record_S: _Ints
    record_start_S: _Ints
    padding_S: NDArray[np.bool_]
    masked_S: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.sample_index_S)

    def take(self, index: NDArray[Any] | slice) -> BatchSegments:
        """The segments that ``index`` (integers, booleans or a slice) selects."""
        return BatchSegments(**{column.name: getattr(self, column.name)[index] for column in fields(self)})


@dataclass(frozen=True)
class Batch:
    """What one data rank trains on in one step.

    Attributes:
        step: optimizer step.
        positions_B, source_B, epoch_B, sample_B: plan position, source (index into ``plan``'s sources), epoch of the
            source, source sample number.
        tokens_BT: int32, masked segments overwritten by the filler.
        labels_BT: int32, ``IGNORED_LABEL`` where there is none.
        cu_seqlens_C: int32, starts of the segments in the flattened rows, then the total, repeated to a fixed length.
        max_seqlen: T, a constant.
        segments: the segments.
        next_position: first position that the step leaves unconsumed (of the global batch).
        token_digest: sum of ``row_digest_B`` mod 2^64; the sums of all data ranks add up (mod 2^64) to the same number
            for every number of ranks.
        filler: the token that masked segments hold.
        row_digest_B: u8, position-keyed xxh3-64 of a row's tokens, segment borders and masks.
    """

    step: int
    positions_B: _Ints
    source_B: NDArray[np.int32]
    epoch_B: _Ints
    sample_B: _Ints
    tokens_BT: NDArray[np.int32]
    labels_BT: NDArray[np.int32]
    cu_seqlens_C: NDArray[np.int32]
    max_seqlen: int
    segments: BatchSegments
    next_position: int
    token_digest: int
    filler: int
    row_digest_B: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    @cached_property
    def token_positions_BT(self) -> NDArray[np.int32]:
        """0, 1, ... from each segment's first token; int32, made at first use (a device makes them from cu_seqlens)."""
        starts_S = self.segments.sample_index_S * self.max_seqlen + self.segments.token_start_S
        positions = np.repeat(starts_S.astype(np.int32), self.segments.num_tokens_S)
        np.subtract(np.arange(len(positions), dtype=np.int32), positions, out=positions)
        return positions.reshape(self.tokens_BT.shape)

    @cached_property
    def segment_of_BT(self) -> NDArray[np.int32]:
        """Index into ``segments``; int32, made at first use. Tokens attend to each other only if theirs agree."""
        numbers_S = np.arange(len(self.segments), dtype=np.int32)
        return np.repeat(numbers_S, self.segments.num_tokens_S).reshape(self.tokens_BT.shape)

    @property
    def num_labels(self) -> int:
        """Labels of this part that count in the loss."""
        return int(np.count_nonzero(self.labels_BT != IGNORED_LABEL))

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Another name of ``cu_seqlens_C``, as attention kernels call it."""
        return self.cu_seqlens_C


@dataclass(frozen=True)
class RowSpan:
    """Rows ``[start, stop)`` of a global batch."""

    start: int
    stop: int


def rank_span(num_rows: int, data_rank: int, num_data_ranks: int) -> RowSpan:
    """The rows of data rank r of R: ``[floor(r B / R), floor((r + 1) B / R))``.

    Raises:
        ValueError: no such rank.
    """
    if not 0 <= data_rank < num_data_ranks:
        raise ValueError(f"data rank {data_rank} of {num_data_ranks}")
    return RowSpan(data_rank * num_rows // num_data_ranks, (data_rank + 1) * num_rows // num_data_ranks)


def read_batch(plan: Plan, sources: Sources, step: int, data_rank: int = 0, num_data_ranks: int = 1) -> Batch:
    """The part of ``step`` that one data rank trains on.

    Raises:
        DamageError: a sample or a table on disk is damaged; file and sample are named.
    """
    positions_N = plan.step_positions(step)
    span = rank_span(len(positions_N), data_rank, num_data_ranks)
    batch = read_positions(plan, sources, positions_N[span.start : span.stop])
    return replace(batch, step=step, next_position=int(plan.next_position(step)))


def read_tokens(plan: Plan, sources: Sources, positions_B: _Ints) -> NDArray[np.unsignedinteger[Any]]:
    """tokens_BT at surviving positions as they are stored (u2 or u4), each sample verified: no labels, no segments, and
    nothing masked. For throughput tests and tools; training reads :func:`read_batch`.

    Raises:
        DamageError: as :func:`read_batch`.
    """
    return _tokens(sources, plan.samples(np.asarray(positions_B, np.int64)))


def _tokens(sources: Sources, refs: SampleRefs) -> NDArray[np.unsignedinteger[Any]]:
    tokens_BT = _POOL.empty((len(refs), sources.seq_len), sources.dtype)
    for source, rows in _rows_by_source(refs):
        sources.read_samples_into(source, refs.sample_N[rows], tokens_BT, rows)
    return tokens_BT


def read_positions(plan: Plan, sources: Sources, positions_B: _Ints) -> Batch:
    """The samples at any surviving positions, in the order given; ``step`` is -1, ``next_position`` the last one + 1.

    Raises:
        DamageError: as :func:`read_batch`.
    """
    positions_B = np.asarray(positions_B, np.int64)
    refs = plan.samples(positions_B)
    segments = _segments_of(plan, sources, positions_B, refs)
    num_rows, seq_len = len(positions_B), sources.seq_len
    if num_rows * seq_len >= 1 << 31:
        raise RefusedError(
            "TR-BATCH-SIZE",
            f"{num_rows} samples of {seq_len} tokens",
            "batch of one data rank",
            "less than 2^31 tokens",
        )
    stored_BT = _tokens(sources, refs)
    starts_S = segments.sample_index_S * seq_len + segments.token_start_S
    _fill(stored_BT, segments, starts_S, sources.filler)
    row_digest_B = _row_digests(positions_B, stored_BT, segments)
    tokens_BT, labels_BT = _POOL.empty(stored_BT.shape, np.int32), _POOL.empty(stored_BT.shape, np.int32)
    np.copyto(tokens_BT, stored_BT, casting="unsafe")  # a vocabulary has fewer than 2^31 entries
    _fill_labels(labels_BT.reshape(-1), stored_BT.reshape(-1), segments, starts_S)
    return Batch(
        step=-1,
        positions_B=positions_B,
        source_B=np.asarray(refs.source_N, np.int32),
        epoch_B=np.asarray(refs.epoch_N, np.int64),
        sample_B=np.asarray(refs.sample_N, np.int64),
        tokens_BT=tokens_BT,
        labels_BT=labels_BT,
        cu_seqlens_C=_cu_seqlens(starts_S, tokens_BT.size, num_rows * sources.max_segments + 1),
        max_seqlen=seq_len,
        segments=segments,
        next_position=int(positions_B[-1]) + 1 if num_rows else 0,
        token_digest=_sum(row_digest_B),
        row_digest_B=row_digest_B,
        filler=sources.filler,
    )


def read_segments(plan: Plan, sources: Sources, positions_B: _Ints) -> BatchSegments:
    """The segments that :func:`read_positions` would return, without reading a token.

    Raises:
        DamageError: a segment or document table on disk is damaged.
    """
    positions_B = np.asarray(positions_B, np.int64)
    return _segments_of(plan, sources, positions_B, plan.samples(positions_B))


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Rows ``[start, stop)`` as a batch of their own: a micro-batch. Its token digest is the rows' own sum."""
    num_rows, seq_len = batch.tokens_BT.shape
    start, stop = min(start, num_rows), min(stop, num_rows)
    first, last = np.searchsorted(batch.segments.sample_index_S, [start, stop])
    segments = batch.segments.take(slice(int(first), int(last)))
    segments = replace(segments, sample_index_S=segments.sample_index_S - start)
    tokens_BT, labels_BT = batch.tokens_BT[start:stop], batch.labels_BT[start:stop]
    most = (len(batch.cu_seqlens_C) - 1) // num_rows if num_rows else 0
    starts_S = segments.sample_index_S * seq_len + segments.token_start_S
    return replace(
        batch,
        positions_B=batch.positions_B[start:stop],
        source_B=batch.source_B[start:stop],
        epoch_B=batch.epoch_B[start:stop],
        sample_B=batch.sample_B[start:stop],
        tokens_BT=tokens_BT,
        labels_BT=labels_BT,
        cu_seqlens_C=_cu_seqlens(starts_S, tokens_BT.size, (stop - start) * most + 1),
        segments=segments,
        token_digest=_sum(batch.row_digest_B[start:stop]),
        row_digest_B=batch.row_digest_B[start:stop],
    )


def _row_digests(positions_B: _Ints, stored_BT: NDArray[Any], segments: BatchSegments) -> NDArray[np.uint64]:
    """u8 a row: xxh3-64(tokens as stored, masks applied; seed = xxh3-64(segments; seed = position)), where a segment is
    its token start, below 2^31, times two, plus one if it has no labels. Little-endian."""
    digest = xxhash.xxh3_64_intdigest
    silent_S = segments.masked_S | segments.padding_S
    marks = np.ascontiguousarray(2 * segments.token_start_S + silent_S, "<u4").data
    stored_BT = np.ascontiguousarray(stored_BT, stored_BT.dtype.newbyteorder("<"))
    borders = np.searchsorted(segments.sample_index_S, np.arange(len(positions_B) + 1)).tolist()
    rows = zip(positions_B.tolist(), stored_BT, itertools.pairwise(borders), strict=True)
    digests = [digest(stored_T.data, digest(marks[start:stop], position)) for position, stored_T, (start, stop) in rows]
    return np.array(digests, np.uint64)


def _sum(row_digest_B: NDArray[np.uint64]) -> int:
    return int(np.add.reduce(row_digest_B, dtype=np.uint64))


def _rows_by_source(refs: SampleRefs) -> list[tuple[int, _Ints]]:
    """(source, rows of the batch that come from it), rows ascending."""
    source_B = np.asarray(refs.source_N)
    return [(int(source), np.flatnonzero(source_B == source)) for source in np.unique(source_B)]


def _segments_of(plan: Plan, sources: Sources, positions_B: _Ints, refs: SampleRefs) -> BatchSegments:
    parts: list[BatchSegments] = []
    for source, rows in _rows_by_source(refs):
        table = sources.segments_of(source, refs.sample_N[rows])
        parts.append(_part(table, source, rows, positions_B, np.asarray(refs.sample_N, np.int64)))
    segments = parts[0] if len(parts) == 1 else _concatenate(parts)
    if len(parts) > 1:  # the segments of one source are in batch order already
        segments = segments.take(np.argsort(segments.sample_index_S, kind="stable"))
    masked_S = plan.mask_of(
        segments.position_S, segments.source_S, segments.sample_S, segments.segment_S, segments.document_id_S
    )
    return replace(segments, masked_S=masked_S & ~segments.padding_S)


def _part(table: SegmentTable, source: int, rows: _Ints, positions_B: _Ints, sample_B: _Ints) -> BatchSegments:
    """A Dataset's segment table of some rows of the batch, with the rows' coordinates added."""
    row_S = rows[table.sample_index_S]
    wide = {
        name: np.asarray(getattr(table, name), np.int64)
        for name in ("token_start_S", "num_tokens_S", "segment_S", "shard_S", "document_token_start_S", "byte_start_S",
                     "byte_count_S", "file_S", "record_S", "record_start_S")
    }  # fmt: skip
    return BatchSegments(
        sample_index_S=row_S,
        position_S=positions_B[row_S],
        source_S=np.full(len(row_S), source, np.int64),
        sample_S=sample_B[row_S],
        document_id_S=np.asarray(table.document_id_S, np.uint64),
        padding_S=np.asarray(table.padding_S, np.bool_),
        masked_S=np.zeros(len(row_S), np.bool_),
        **wide,
    )


def _concatenate(parts: Sequence[BatchSegments]) -> BatchSegments:
    types: dict[str, type[Any]] = {"document_id_S": np.uint64, "padding_S": np.bool_, "masked_S": np.bool_}
    return BatchSegments(
        **{
            column.name: np.concatenate([getattr(part, column.name) for part in parts])
            if parts
            else np.empty(0, types.get(column.name, np.int64))
            for column in fields(BatchSegments)
        }
    )


def _token_index(starts_S: _Ints, counts_S: _Ints) -> _Ints:
    """Flat indices of all tokens of the segments that start at ``starts_S``."""
    ends_S = np.cumsum(counts_S)
    return np.repeat(starts_S - (ends_S - counts_S), counts_S) + np.arange(ends_S[-1] if len(ends_S) else 0)


def _fill(tokens_BT: NDArray[Any], segments: BatchSegments, starts_S: _Ints, filler: int) -> None:
    """Overwrite masked segments in place, so that the model cannot see what it must not train on."""
    if segments.masked_S.any():
        index = _token_index(starts_S[segments.masked_S], segments.num_tokens_S[segments.masked_S])
        tokens_BT.reshape(-1)[index] = filler


def _fill_labels(labels: NDArray[np.int32], stored: NDArray[Any], segments: BatchSegments, starts_S: _Ints) -> None:
    """Labels of the flattened rows: the next token, nothing at a segment's end, nothing at all where it is silent."""
    if labels.size:
        np.copyto(labels[:-1], stored[1:], casting="unsafe")
        labels[starts_S + segments.num_tokens_S - 1] = IGNORED_LABEL
    silent_S = segments.masked_S | segments.padding_S
    if silent_S.any():
        labels[_token_index(starts_S[silent_S], segments.num_tokens_S[silent_S])] = IGNORED_LABEL


def _cu_seqlens(starts_S: _Ints, total: int, length: int) -> NDArray[np.int32]:
    cu_seqlens_C = np.full(length, total, np.int32)
    cu_seqlens_C[: len(starts_S)] = starts_S
    return cu_seqlens_C
