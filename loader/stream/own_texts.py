"""Tokens that come from no Dataset, laid out like a batch of one: the same labels, positions and segment borders.

Evaluation reads its questions this way. Legend: B rows, T tokens a row, S segments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .batch import Batch, BatchSegments, _cu_seqlens, _fill_labels

__all__ = ["lay_out"]

_WIDE = (
    "position_S", "source_S", "sample_S", "segment_S", "shard_S", "document_token_start_S", "byte_start_S",
    "byte_count_S", "file_S", "record_S", "record_start_S",
)  # fmt: skip


def lay_out(rows: Sequence[Sequence[NDArray[np.int32]]], seq_len: int, filler: int) -> Batch:
    """Rows of texts as a batch without Origin: each text a segment, the rest of a row padding of ``filler``.

    Args:
        rows: B rows of tokens, each text of one token at least. seq_len: T.

    Raises:
        ValueError: a row is longer than ``seq_len``, or a text is empty.
    """
    tokens_BT = np.full((len(rows), seq_len), filler, np.int32)
    table: list[tuple[int, int, int, bool]] = []  # row, first token, tokens, padding
    for row, texts in enumerate(rows):
        start = 0
        for text in texts:
            if not len(text) or start + len(text) > seq_len:
                raise ValueError(f"row {row}: a text of {len(text)} tokens at {start} of {seq_len}")
            tokens_BT[row, start : start + len(text)] = text
            table.append((row, start, len(text), False))
            start += len(text)
        if start < seq_len:
            table.append((row, start, seq_len - start, True))
    columns = np.array(table, np.int64).reshape(-1, 4)
    zeros_S = np.zeros(len(table), np.int64)
    segments = BatchSegments(
        sample_index_S=columns[:, 0],
        token_start_S=columns[:, 1],
        num_tokens_S=columns[:, 2],
        document_id_S=zeros_S.astype(np.uint64),
        padding_S=columns[:, 3].astype(np.bool_),
        masked_S=zeros_S.astype(np.bool_),
        **dict.fromkeys(_WIDE, zeros_S),
    )
    starts_S = segments.sample_index_S * seq_len + segments.token_start_S
    labels_BT = np.empty_like(tokens_BT)
    _fill_labels(labels_BT.reshape(-1), tokens_BT.reshape(-1), segments, starts_S)
    most = int(np.bincount(columns[:, 0], minlength=1).max())
    zeros_B = np.zeros(len(rows), np.int64)
    return Batch(
        step=-1,
        positions_B=zeros_B,
        source_B=zeros_B.astype(np.int32),
        epoch_B=zeros_B,
        sample_B=zeros_B,
        tokens_BT=tokens_BT,
        labels_BT=labels_BT,
        cu_seqlens_C=_cu_seqlens(starts_S, tokens_BT.size, len(rows) * most + 1),
        max_seqlen=seq_len,
        segments=segments,
        next_position=0,
        token_digest=0,
        filler=filler,
    )
