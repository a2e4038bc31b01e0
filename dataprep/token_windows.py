"""A packed window as samples: token ids, segments with their byte ranges, rows of the document table.

Legend: D documents of the window, T their stored tokens (in samples: tokens of a sample), P pieces, S segments,
N samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError, RefusedError
from loader.shards.layout import DOCUMENT_DTYPE, PADDING_ROW
from loader.shards.segments import SegmentArray, make_segments
from loader.shards.writer import ShardWriter

from .cut_segments import PieceRanges, SegmentColumns, split_at_gaps
from .kernels.pack import gather_tokens
from .pack import PackedWindow
from .token_facts import TokenFacts
from .token_store import ByteSums, StoredDocuments

__all__ = ["MOST_BYTES", "MOST_TOKENS", "WindowSamples", "make_window", "stream_lengths"]

MOST_TOKENS = (1 << 31) - 1
"""Tokens of a document, BOS and EOS included: packing counts them in int32."""
MOST_BYTES = (1 << 32) - 1
"""Bytes of a document's text: segments count them in u4."""


@dataclass(frozen=True)
class WindowSamples:
    """What a window adds to a shard; ``segments_S`` counts documents from 0, and each sample's padding comes last.

    Attributes:
        documents_D: rows of ``DOCUMENT_DTYPE``.
        tokens_NT: token ids.
        segments_S: rows of ``SEGMENT_DTYPE``.
        counts_N: segments of each sample.
    """

    documents_D: NDArray[np.void]
    tokens_NT: NDArray[Any]
    segments_S: SegmentArray
    counts_N: NDArray[np.int64]

    def add_to(self, writer: ShardWriter) -> None:
        """Add everything to a shard."""
        first_row = writer.add_documents(self.documents_D)
        segments_S = self.segments_S
        if first_row:
            segments_S = segments_S.copy()
            segments_S["document_row"][segments_S["document_row"] != PADDING_ROW] += np.uint32(first_row)
        writer.add_samples(self.tokens_NT, segments_S, self.counts_N)


def stream_lengths(documents: StoredDocuments, facts: TokenFacts, source: str) -> NDArray[np.int64]:
    """Tokens of each document's stream: BOS, its own, EOS.

    Raises:
        RefusedError: ``TR-DOCUMENT-LONG``: a document of 2^31 tokens or more, or of 4 GiB of text or more.
    """
    rows_D = documents.rows_D
    wrong_D = (rows_D["num_tokens"] > MOST_TOKENS - facts.num_borders) | (
        rows_D["num_bytes"] + rows_D["cut_bytes"] > MOST_BYTES
    )
    if wrong_D.any():
        document = int(np.argmax(wrong_D))
        tokens, size = int(rows_D["num_tokens"][document]), int(rows_D["num_bytes"][document])
        raise RefusedError(
            "TR-DOCUMENT-LONG",
            f"a document of {tokens:,} tokens, {size:,} bytes of text: a Dataset cannot say where its pieces lie",
            f"source {source!r}, {documents.place(document)}",
            "fewer than 2^31 tokens, and less than 4 GiB of text",
            "split the document, or leave it out",
        )
    lengths_D: NDArray[np.int64] = rows_D["num_tokens"].astype(np.int64) + facts.num_borders
    return lengths_D


def make_window(
    documents: StoredDocuments, packed: PackedWindow, stored_T: NDArray[Any], facts: TokenFacts, seq_len: int
) -> WindowSamples:
    """The samples of a packed window.

    Args:
        documents: of the window.
        packed: their packing.
        stored_T: their tokens as stored, one document after the other, without BOS and EOS.
        facts: of the tokens.
        seq_len: tokens of a sample.

    Raises:
        DamageError: an id is outside the vocabulary.
    """
    ids_T = np.ascontiguousarray(stored_T["id"]) if facts.paired else stored_T
    _check_ids(ids_T, documents, facts)
    own = _own_ranges(documents, packed, facts)
    tokens_NT = np.full((packed.num_samples, seq_len), facts.pad_id, ids_T.dtype)
    pieces = np.stack([packed.sample_P, packed.token_start_P, packed.num_tokens_P, own.start_P, own.flags_P], axis=1)
    border_ids = np.array([facts.bos_id or 0, facts.eos_id or 0], np.int64)
    gather_tokens(tokens_NT, pieces.astype(np.int64), ids_T, border_ids)
    pieces_P = PieceRanges(
        sample_P=packed.sample_P.astype(np.int64),
        token_start_P=packed.token_start_P.astype(np.int64),
        document_P=packed.document_P.astype(np.int64),
        document_token_start_P=packed.document_token_start_P.astype(np.int64),
        num_tokens_P=packed.num_tokens_P.astype(np.int64),
        base_P=own.document_start_P,
        start_P=own.start_P,
        stop_P=own.stop_P,
        begins_P=own.flags_P & 1,
    )
    columns = split_at_gaps(pieces_P, documents.gaps(), ByteSums(stored_T, facts).before)
    return WindowSamples(_document_rows(documents), tokens_NT, *_with_padding(columns, packed, seq_len))


def _check_ids(ids_T: NDArray[Any], documents: StoredDocuments, facts: TokenFacts) -> None:
    if len(ids_T) and int(ids_T.max()) >= facts.vocab_size:
        token = int(np.argmax(ids_T >= facts.vocab_size))
        stop_D = np.cumsum(documents.rows_D["num_tokens"].astype(np.int64))
        document = int(np.searchsorted(stop_D, token, side="right"))
        raise DamageError(
            "TR-TOKEN-ID",
            f"token id {int(ids_T[token])} is outside the vocabulary",
            documents.place(document),
            f"ids below {facts.vocab_size}",
            "remove the work folder and run again",
        )


def _document_rows(documents: StoredDocuments) -> NDArray[np.void]:
    rows_D = np.zeros(len(documents.rows_D), DOCUMENT_DTYPE)
    for name in ("id", "record", "record_start"):
        rows_D[name] = documents.rows_D[name]
    rows_D["file"] = documents.file_D
    return rows_D


@dataclass(frozen=True)
class _OwnRanges:
    """Each piece's own tokens [start, stop) in the window's token array, without BOS and EOS; where its document's
    begin; and whether it begins with BOS (1) and ends with EOS (2)."""

    document_start_P: NDArray[np.int64]
    start_P: NDArray[np.int64]
    stop_P: NDArray[np.int64]
    flags_P: NDArray[np.int64]


def _own_ranges(documents: StoredDocuments, packed: PackedWindow, facts: TokenFacts) -> _OwnRanges:
    num_tokens_D = documents.rows_D["num_tokens"].astype(np.int64)
    start_D = np.cumsum(num_tokens_D) - num_tokens_D
    bos, eos = int(facts.bos_id is not None), int(facts.eos_id is not None)
    own_P = num_tokens_D[packed.document_P]
    stop_P = packed.document_token_start_P + packed.num_tokens_P
    begins_P = packed.document_token_start_P == 0
    ends_P = stop_P == own_P + bos + eos
    own_start_P = np.clip(packed.document_token_start_P - bos, 0, own_P)
    own_stop_P = np.clip(stop_P - bos, 0, own_P)
    flags_P = begins_P * bos + ends_P * (2 * eos)
    base_P = start_D[packed.document_P]
    return _OwnRanges(base_P, base_P + own_start_P, base_P + own_stop_P, flags_P)


def _with_padding(
    columns: SegmentColumns, packed: PackedWindow, seq_len: int
) -> tuple[SegmentArray, NDArray[np.int64]]:
    """Segments with each sample's padding as its last one, and the number of segments of each sample."""
    segments_S = make_segments(
        columns.token_start_S,
        columns.document_S,
        columns.document_token_start_S,
        columns.byte_start_S,
        columns.byte_count_S,
    )
    filled_N = np.bincount(packed.sample_P, packed.num_tokens_P, packed.num_samples).astype(np.int64)
    short_N = np.flatnonzero(filled_N < seq_len)
    padding = make_segments(filled_N[short_N], np.full(len(short_N), PADDING_ROW, np.int64), 0, 0, 0)
    sample_S = np.concatenate([columns.sample_S, short_N])
    order_S = np.argsort(sample_S, kind="stable")
    joined_S: SegmentArray = np.concatenate([segments_S, padding[: len(short_N)]])[order_S]
    return joined_S, np.bincount(sample_S, minlength=packed.num_samples)
