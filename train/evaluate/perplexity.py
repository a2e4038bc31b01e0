"""Held-out perplexity of every source of the validation Datasets. It reads the model and touches nothing.

Legend: N samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loader.errors import RefusedError
from loader.run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan
from loader.sources import Sources, open_sources
from loader.stream.batch import IGNORED_LABEL, read_positions

from ..inputs import InputOptions
from ..model import Decoder
from .share import ALONE, Share, undisturbed

if TYPE_CHECKING:
    from loader.order.plan import Plan
    from loader.shards.dataset import Dataset
    from loader.stream.batch import Batch

__all__ = ["HeldOut", "SourceScore", "mean_loss", "open_held_out", "perplexity"]

_ORDER_SEED = 0


@dataclass(frozen=True)
class SourceScore:
    """Held-out loss of one source: sum of nats, labels, and their quotient's exponential."""

    loss_sum: float
    num_labels: int

    @property
    def loss(self) -> float:
        """Nats a label; NaN without labels."""
        return self.loss_sum / self.num_labels if self.num_labels else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))


@dataclass(frozen=True)
class HeldOut:
    """Opened validation Datasets and how many samples of each source to read."""

    sources: Sources
    samples: int
    rows: int


def open_held_out(datasets: list[Dataset], training: Sources, samples: int, rows: int) -> HeldOut | None:
    """The validation Datasets as one; None when there are none.

    Args:
        datasets: opened.
        training: the run's own sources; vocabulary, tokenizer and sample length must be equal.
        samples: of each source. rows: samples of one forward pass.

    Raises:
        RefusedError: another tokenizer, vocabulary or sample length than the training data.
    """
    if not datasets:
        return None
    sources = open_sources(datasets)
    ours, theirs = training.datasets[0].manifest, sources.datasets[0].manifest
    for what in ("seq_len", "vocab_size", "tokenizer"):
        if getattr(ours, what) != getattr(theirs, what):
            here, there = (_said(getattr(one, what)) for one in (theirs, ours))
            raise RefusedError(
                "TR-EVALUATE-DATASET", f"{what} {here}: another one than the training data's", sources.place, there,
                "build it with the training data: holdout:, or with their tokenizer loaded from DATASET/tokenizer",
            )  # fmt: skip
    return HeldOut(sources, samples, rows)


def _said(value: Any) -> str:
    """A tokenizer's record by its digest alone."""
    return str(value.get("digest", "none") if isinstance(value, Mapping) else value)


def _samples_of(held_out: HeldOut, name: str) -> int:
    return min(held_out.samples, int(np.sum(held_out.sources.shard_samples(name))))


def perplexity(
    model: Decoder, held_out: HeldOut, options: InputOptions, share: Share = ALONE
) -> dict[str, SourceScore]:
    """Score a fixed selection of each source's samples: a pure function of the Datasets and the model's weights.

    Every process calls the model equally often; which one scored a sample enters no sum.

    Args:
        share: the rows of this process; all processes return the same scores.
    """
    from loader.order.skips import SkipList

    scores: dict[str, SourceScore] = {}
    with undisturbed(model):
        for name in held_out.sources.names:
            count = _samples_of(held_out, name)
            if not count:
                continue
            data = DataConfig(
                datasets=("held out",),
                batch=(BatchStageConfig(0, held_out.rows),),
                seed=_ORDER_SEED,
                mixture=(MixtureStageConfig(0, {name: 1.0}),),
            )
            plan = build_plan(data, held_out.sources, SkipList(()))
            loss_N, labels_N = torch.zeros(2, count, dtype=torch.float64, device=options.device)
            rows = min(held_out.rows, -(-count // share.size))
            for own in share.own(count, rows):
                batch = _own_rows(plan, held_out.sources, own, rows)
                nll_BT = share.forward(model, batch, options)
                loss_N[own.start : own.stop] = nll_BT.double().sum(dim=1)[: len(own)]
                labels_B = (batch.labels_BT != IGNORED_LABEL).sum(axis=1)[: len(own)]
                labels_N[own.start : own.stop] = torch.from_numpy(labels_B).to(options.device)
            loss_sum = float(share.total(loss_N, losses=True).sum())
            scores[name] = SourceScore(loss_sum, round(float(share.total(labels_N).sum())))
    return scores


def _own_rows(plan: Plan, sources: Sources, own: range, rows: int) -> Batch:
    """The samples at positions ``own``, filled up to ``rows`` by some without labels."""
    positions = np.arange(own.start, own.stop)
    batch = read_positions(plan, sources, np.concatenate([positions, np.zeros(rows - len(own), np.int64)]))
    if len(own) < rows:
        batch.labels_BT[len(own) :] = IGNORED_LABEL
    return batch


def mean_loss(scores: dict[str, SourceScore]) -> float:
    """Mean over the sources of their losses, each source alike, nats; NaN without any."""
    losses = [score.loss for score in scores.values() if score.num_labels]
    return sum(losses) / len(losses) if losses else math.nan
