"""Held-out perplexity of every source of the validation Datasets. It reads the model and touches nothing.

Legend: N samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from loader.errors import RefusedError
from loader.run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan
from loader.sources import Sources, open_sources
from loader.stream.batch import read_positions

from ..inputs import InputOptions, to_inputs
from ..model import Decoder

if TYPE_CHECKING:
    from loader.shards.dataset import Dataset

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
            raise RefusedError(
                "TR-EVALUATE-DATASET", f"another {what} than the training data", sources.place, f"{getattr(ours, what)}"
            )
    return HeldOut(sources, samples, rows)


def _samples_of(held_out: HeldOut, name: str) -> int:
    return min(held_out.samples, int(np.sum(held_out.sources.shard_samples(name))))


@torch.no_grad()
def perplexity(model: Decoder, held_out: HeldOut, options: InputOptions) -> dict[str, SourceScore]:
    """Score a fixed selection of each source's samples: a pure function of the Datasets and the model's weights."""
    from loader.order.skips import SkipList

    one = torch.ones((), device=options.device)
    scores: dict[str, SourceScore] = {}
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
        loss_sum, num_labels = 0.0, 0
        for start in range(0, count, held_out.rows):
            batch = read_positions(plan, held_out.sources, np.arange(start, min(start + held_out.rows, count)))
            _, nll_BT = model(to_inputs(batch, options), one)
            loss_sum += float(nll_BT.double().sum())
            num_labels += batch.num_labels
        scores[name] = SourceScore(loss_sum, num_labels)
    return scores


def mean_loss(scores: dict[str, SourceScore]) -> float:
    """Mean over the sources of their losses, each source alike, nats; NaN without any."""
    losses = [score.loss for score in scores.values() if score.num_labels]
    return sum(losses) / len(losses) if losses else math.nan
