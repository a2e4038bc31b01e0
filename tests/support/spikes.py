"""A world for spike tests in which everything is known: two sources of bigram text and the exact bigram model.

Hidden vectors are one-hot tokens and the head holds log P(next | token), so the frozen model predicts clean text as
well as it can be predicted, without any training. Poison is text that no bigram chain wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loader.stream.batch import IGNORED_LABEL, Batch, BatchSegments
from train.spikes.records import FrozenModel, StepRecord

VOCABULARY = 96
SEQ_LEN = 64
SOURCES = ("left", "right", "planted")
_HALF = VOCABULARY // 2

Piece = tuple[int, NDArray[np.int64]]
"""(document id, tokens)."""


def make_batch(step: int, samples: Sequence[tuple[int, Sequence[Piece]]], seq_len: int = SEQ_LEN) -> Batch:
    """A batch from (source, pieces) per sample; the room behind the pieces is padding."""
    n = len(samples)
    tokens = np.zeros((n, seq_len), np.int32)
    labels = np.full((n, seq_len), IGNORED_LABEL, np.int32)
    rows: list[tuple[int, int, int, int, bool]] = []
    for b, (_, pieces) in enumerate(samples):
        at = 0
        for document, piece in pieces:
            stop = at + len(piece)
            tokens[b, at:stop] = piece
            labels[b, at : stop - 1] = piece[1:]
            rows.append((b, at, len(piece), document, False))
            at = stop
        if at < seq_len:
            rows.append((b, at, seq_len - at, 0, True))
    table = np.array([r[:3] for r in rows], np.int64)
    zero = np.zeros(len(rows), np.int64)
    source = np.array([s for s, _ in samples], np.int32)
    sample = np.arange(step * n, (step + 1) * n, dtype=np.int64)
    segments = BatchSegments(
        sample_index_S=table[:, 0],
        token_start_S=table[:, 1],
        num_tokens_S=table[:, 2],
        position_S=sample[table[:, 0]],
        source_S=source[table[:, 0]].astype(np.int64),
        sample_S=sample[table[:, 0]],
        segment_S=np.arange(len(rows), dtype=np.int64),
        shard_S=zero,
        document_id_S=np.array([r[3] for r in rows], np.uint64),
        document_token_start_S=zero,
        byte_start_S=zero,
        byte_count_S=zero,
        file_S=zero,
        record_S=zero,
        record_start_S=zero,
        padding_S=np.array([r[4] for r in rows]),
        masked_S=np.zeros(len(rows), np.bool_),
    )
    return Batch(
        step=step,
        positions_B=sample,
        source_B=source,
        epoch_B=np.zeros(n, np.int64),
        sample_B=sample,
        tokens_BT=tokens,
        labels_BT=labels,
        cu_seqlens_C=np.zeros(n * (max((len(p) for _, p in samples), default=0) + 1) + 1, np.int32),
        max_seqlen=seq_len,
        segments=segments,
        next_position=(step + 1) * n,
        token_digest=0,
        filler=0,
        row_digest_B=np.zeros(n, np.uint64),
    )


@dataclass
class World:
    """Steps ``0 .. bad_from - 1`` are clean, later ones hold poison; also an ``InvestigationContext``.

    Attributes:
        seed: of all text. bad_from: first step with poison. planted: poison is a source of its own, else it hides in
        ``left``. share: share of a bad step's samples that are poison. checkpoints: steps with a checkpoint.
    """

    seed: int = 0
    bad_from: int = 60
    planted: bool = True
    share: float = 0.34
    checkpoints: tuple[int, ...] = (0, 40)
    poison_kinds: tuple[str, ...] = ("noise", "repeat")
    new_domain: bool = False
    loaded: list[int] = field(default_factory=list)

    @cached_property
    def chain(self) -> NDArray[np.float64]:
        """P(next | token); each source stays in its own half of the vocabulary."""
        r = np.random.default_rng(self.seed)
        p = np.zeros((VOCABULARY, VOCABULARY))
        for start in (0, _HALF):
            block = r.dirichlet(np.full(_HALF, 0.08), _HALF)
            p[start : start + _HALF, start : start + _HALF] = block
        return p * 0.98 + 0.02 / VOCABULARY

    def text(self, r: np.random.Generator, source: int, count: int) -> NDArray[np.int64]:
        """Clean tokens of a source."""
        cumulative = self.chain.cumsum(1)
        tokens = [int(r.integers(_HALF)) + _HALF * source]
        for u in r.random(count - 1):
            tokens.append(min(int(np.searchsorted(cumulative[tokens[-1]], u)), VOCABULARY - 1))
        return np.array(tokens, np.int64)

    def poison(self, r: np.random.Generator, kind: str, count: int) -> NDArray[np.int64]:
        """Tokens that no chain wrote."""
        if kind == "noise":
            return r.integers(0, VOCABULARY, count)
        if kind == "repeat":
            return np.full(count, r.integers(VOCABULARY))
        return self.text(r, 1, count)  # a good new domain: clean text under a new name

    def read_batch(self, step: int) -> Batch:
        """See ``InvestigationContext``; a pure function of seed and step."""
        r = np.random.default_rng([self.seed, step])
        samples: list[tuple[int, list[Piece]]] = []
        for b in range(8):
            bad = step >= self.bad_from and b < round(8 * self.share)
            source = (2 if self.planted else 0) if bad else int(r.integers(2))
            pieces: list[Piece] = []
            room = SEQ_LEN
            while room >= 8:
                count = int(min(room, r.integers(8, 48)))
                number = (step * 8 + b) * 100 + len(pieces) + 1
                if bad:
                    kind = "good" if self.new_domain else str(r.choice(self.poison_kinds))
                    pieces.append((number + 10**9, self.poison(r, kind, count)))
                else:
                    pieces.append((number, self.text(r, source, count)))
                room -= count
            samples.append((source, pieces))
        return make_batch(step, samples)

    def most_samples(self, step: int) -> int:
        """See ``InvestigationContext``."""
        return 8

    def agree(self, make: Callable[[], Any]) -> Any:
        """See ``InvestigationContext``; by way of JSON, as between processes."""
        return json.loads(json.dumps(make()))

    def load_frozen(self, step: int) -> FrozenModel | None:
        """See ``InvestigationContext``."""
        known = [c for c in self.checkpoints if c <= step]
        if not known:
            return None
        self.loaded.append(known[-1])
        weight = torch.from_numpy(np.log(self.chain.T)).float()
        return FrozenModel(
            step=known[-1],
            next_position=known[-1] * 8,
            hidden=lambda batch: torch.nn.functional.one_hot(
                torch.from_numpy(batch.tokens_BT.astype(np.int64)), VOCABULARY
            ).float(),
            head_weight_VD=weight,
        )

    def positions_of_steps(self, start: int, stop: int) -> tuple[int, int]:
        """See ``InvestigationContext``."""
        return start * 8, stop * 8

    def source_names(self) -> Sequence[str]:
        """See ``InvestigationContext``."""
        return SOURCES

    def token_bytes(self) -> Sequence[bytes] | None:
        """See ``InvestigationContext``."""
        return [bytes([33 + t % 90, 33 + t // 90]) for t in range(VOCABULARY)]

    def names(self, documents: Sequence[int]) -> Mapping[int, Mapping[str, Any]]:
        """See ``InvestigationContext``."""
        return {d: {"file": "made.jsonl", "record": d} for d in documents}


def step_records(
    count: int,
    seed: int = 0,
    noise: float = 0.02,
    bump: Callable[[int], float] = lambda step: 0.0,
    grad: Callable[[int], float] = lambda step: 1.0,
) -> list[StepRecord]:
    """A falling loss with noise, two sources, 8 positions a step; ``bump`` adds nats, ``grad`` multiplies the norm."""
    r = np.random.default_rng(seed)
    out = []
    for step in range(count):
        base = 2.2 + 3.0 * (step + 30) ** -0.4
        left, right = base - 0.3 + r.normal(0, noise), base + 0.3 + r.normal(0, noise)
        extra = bump(step)
        sums = {"left": ((left + extra) * 1000, 1000), "right": ((right + extra) * 1000, 1000)}
        loss = sum(total for total, _ in sums.values()) / 2000
        norm = float(np.exp(r.normal(0, 0.1))) * grad(step)
        out.append(StepRecord(step, step * 8, step * 8 + 8, loss, norm, 0.01 * norm, 2000, sums, True))
    return out
