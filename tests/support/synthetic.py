"""Batches made of random numbers, for tests of the model and the step that need no Dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FakeBatch", "fake_batch"]


@dataclass(frozen=True)
class FakeBatch:
    """The part of ``loader.stream.batch.Batch`` that a step reads."""

    step: int
    positions_B: NDArray[np.int64]
    source_B: NDArray[np.int32]
    tokens_BT: NDArray[np.int32]
    labels_BT: NDArray[np.int32]
    token_positions_BT: NDArray[np.int32]
    segment_of_BT: NDArray[np.int32]
    next_position: int
    token_digest: int
    cu_seqlens_C: NDArray[np.int32]

    @property
    def num_labels(self) -> int:
        return int((self.labels_BT >= 0).sum())


def fake_batch(step: int, rows: int = 6, seq_len: int = 24, vocab_size: int = 50, masked: float = 0.2) -> FakeBatch:
    """A batch that depends on ``step`` alone: two or three segments a sample, some labels ignored."""
    rng = np.random.default_rng([7, step])
    tokens_BT = rng.integers(0, vocab_size, (rows, seq_len)).astype(np.int32)
    labels_BT = np.roll(tokens_BT, -1, axis=1)
    cuts_B2 = np.sort(rng.integers(1, seq_len, (rows, 2)), axis=1)
    index_T = np.arange(seq_len)
    segment_in_sample_BT = (index_T >= cuts_B2[:, :1]).astype(np.int32) + (index_T >= cuts_B2[:, 1:])
    segment_of_BT = (segment_in_sample_BT + 3 * np.arange(rows)[:, None]).astype(np.int32)
    starts_BT = np.where(np.diff(segment_of_BT, axis=1, prepend=-1) != 0, index_T, 0)
    last_BT = np.diff(segment_of_BT, axis=1, append=-1) != 0
    labels_BT[last_BT | (rng.random((rows, seq_len)) < masked)] = -100
    return FakeBatch(
        step=step,
        positions_B=np.arange(rows, dtype=np.int64) + step * rows,
        source_B=rng.integers(0, 3, rows).astype(np.int32),
        tokens_BT=tokens_BT,
        labels_BT=labels_BT,
        token_positions_BT=(index_T - np.maximum.accumulate(starts_BT, axis=1)).astype(np.int32),
        segment_of_BT=segment_of_BT,
        next_position=(step + 1) * rows,
        token_digest=int(rng.integers(0, 1 << 63)) * 2 + 1,
        cu_seqlens_C=np.zeros(rows * 3 + 1, np.int32),  # its length alone is read
    )
