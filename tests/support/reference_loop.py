"""A plain training loop that shares no line with ours: transformers' Llama, torch's AdamW, batches of ``open_stream``.

Shape legend: B samples, T tokens of a sample, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers  # lazy: its models are imported when they are first named
from torch import Tensor
from torch.nn.functional import cross_entropy

from loader.stream.batch import Batch
from loader.stream.open import OrderOptions, open_stream
from loader.stream.stream import StreamConfig

__all__ = ["PlainRun", "fresh_llama", "read_llama", "train_plainly", "validation_loss"]


@dataclass(frozen=True)
class PlainRun:
    """What the loop is told.

    Attributes:
        dataset: folder. steps, global_batch: how long, in samples a step. order: seed of the order.
        weights: of the sources; None: the Dataset's own. lr: peak. warmup: positions of linear warm-up; a cosine to a
            tenth at the last position follows.
    """

    dataset: Path
    steps: int
    global_batch: int
    order: int = 17
    weights: Mapping[str, float] | None = None
    lr: float = 3e-3
    warmup: int = 0

    def rate(self, position: int) -> float:
        """The learning rate of the step that begins at ``position``."""
        if position < self.warmup:
            return self.lr * (position + 1) / self.warmup
        total = self.steps * self.global_batch
        done = (position - self.warmup) / (total - self.warmup)
        return self.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)


def fresh_llama(sizes: Mapping[str, int], seed: int) -> transformers.LlamaForCausalLM:
    """A model with random weights: normal, 0.3 for the embedding, 0.5 / sqrt(fan in) for matrices, those that lead back
    into the residual stream smaller by sqrt(2 x layers).

    Args:
        sizes: ``vocab_size``, ``dim``, ``layers``, ``heads``, ``ffn``, ``seq_len``.
    """
    config = transformers.LlamaConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["dim"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["ffn"],
        max_position_embeddings=sizes["seq_len"],
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            std = 0.3 if "embed" in name else 0.5 / math.sqrt(parameter.shape[1])
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= math.sqrt(2 * sizes["layers"])
            parameter.normal_(0.0, std, generator=generator)
    return model


def read_llama(folder: Path) -> transformers.LlamaForCausalLM:
    """The model in a folder, float32."""
    model: transformers.LlamaForCausalLM = transformers.LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model


def _label_losses(model: transformers.LlamaForCausalLM, batch: Batch) -> tuple[Tensor, int]:
    """Sum of the label losses in nats, and how many labels there are."""
    tokens_BT, labels_BT, positions_BT, segment_of_BT = (
        torch.from_numpy(array).long()
        for array in (batch.tokens_BT, batch.labels_BT, batch.token_positions_BT, batch.segment_of_BT)
    )
    causal_TT = torch.ones(tokens_BT.shape[1], tokens_BT.shape[1], dtype=torch.bool).tril()
    mask_B1TT = ((segment_of_BT[:, :, None] == segment_of_BT[:, None, :]) & causal_TT)[:, None]
    found: Any = model(input_ids=tokens_BT, attention_mask=mask_B1TT, position_ids=positions_BT, use_cache=False)
    losses = cross_entropy(found.logits.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=-100, reduction="sum")
    return losses, int((labels_BT != -100).sum())


def _batches(dataset: Path, global_batch: int, order: OrderOptions, steps: int) -> Iterator[Batch]:
    with closing(open_stream(dataset, global_batch, order, StreamConfig())) as stream:
        yield from itertools.islice(stream, steps)


def train_plainly(
    model: transformers.LlamaForCausalLM, run: PlainRun, steps: int | None = None
) -> tuple[list[float], list[int]]:
    """Train ``model`` in place (only the first ``steps`` of the run, if given); the loss of every step in nats, and
    every step's token digest.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    gains = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=run.lr, betas=(0.9, 0.95), eps=1e-8)
    losses, digests = [], []
    order = OrderOptions(run.order, run.weights)
    model.train()
    for step, batch in enumerate(_batches(run.dataset, run.global_batch, order, steps or run.steps)):
        for group in optimizer.param_groups:
            group["lr"] = run.rate(step * run.global_batch)
        total, count = _label_losses(model, batch)
        loss = total / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        digests.append(batch.token_digest)
    return losses, digests


@torch.no_grad()
def validation_loss(model: transformers.LlamaForCausalLM, datasets: Sequence[Path], samples: int) -> float:
    """Nats a label over the first ``samples`` samples of held-out Datasets, read in one fixed order."""
    model.eval()
    total, count = 0.0, 0
    for dataset in datasets:
        for batch in _batches(dataset, 16, OrderOptions(), -(-samples // 16)):
            losses, labels = _label_losses(model, batch)
            total, count = total + float(losses), count + labels
    return total / count
