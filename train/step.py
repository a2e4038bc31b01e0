"""One optimizer step: forward and backward over micro-batches, clip, update, and one packed vector of what happened.

Shape legend: B samples, T tokens of a sample, S sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .inputs import InputOptions, micro_batches, to_inputs
from .model import Decoder
from .optim import Norms, Optimizer
from .spikes.records import StepRecord
from .world import World

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = ["PackedStep", "ReadStep", "StepOptions", "train_step"]

_DIGEST_WORDS = 4  # 16 bits each: their sums over any number of ranks stay exact in float64
_HEAD = ("loss_sum", "grad_norm", "update_norm", "finite", "stop")


@dataclass(frozen=True)
class StepOptions:
    """What is constant over a run's steps.

    Attributes:
        inputs: device, attention backend, compute dtype.
        micro_batch: samples of one forward pass, or None.
        source_names: the plan's sources, S of them.
        world: the process group.
    """

    inputs: InputOptions
    micro_batch: int | None
    source_names: tuple[str, ...]
    world: World


@dataclass(frozen=True)
class PackedStep:
    """A finished step whose numbers still lie in one float64 vector on the device; ``read`` waits for it.

    Attributes:
        batch: this rank's part of the global batch.
        lr: the learning rate of the step.
        label_count: labels of the global batch; with 0 no update took place.
        vector: loss sum, norms, finite flag, stop flag, token digest words, S loss sums, S label counts.
        source_names: the plan's sources.
    """

    batch: Batch
    lr: float
    label_count: int
    vector: Tensor
    source_names: tuple[str, ...]

    def read(self) -> ReadStep:
        """Bring the vector to the host: the step's only synchronisation."""
        numbers = self.vector.cpu().numpy()
        head = dict(zip(_HEAD, numbers[: len(_HEAD)].tolist(), strict=True))
        words, rest = np.split(numbers[len(_HEAD) :], [_DIGEST_WORDS])
        digest = sum(int(word) << (16 * place) for place, word in enumerate(words.tolist())) % (1 << 64)
        sums, counts = np.split(rest, 2)
        trained = self.label_count > 0
        record = StepRecord(
            step=self.batch.step,
            first_position=int(self.batch.positions_B[0]),
            next_position=self.batch.next_position,
            loss=head["loss_sum"] / self.label_count if trained else float("nan"),
            grad_norm=head["grad_norm"],
            update_norm=head["update_norm"],
            label_count=self.label_count,
            source_loss={
                name: (loss, int(count))
                for name, loss, count in zip(self.source_names, sums.tolist(), counts.tolist(), strict=True)
                if count
            },
            finite=bool(head["finite"] == self.world_size),
        )
        return ReadStep(record, self.lr, digest, head["stop"] > 0)

    world_size: int = 1


@dataclass(frozen=True)
class ReadStep:
    """A step on the host.

    Attributes:
        record: what the spike watch sees. lr: learning rate. token_digest: of the global batch.
        stop: some rank was asked to stop.
    """

    record: StepRecord
    lr: float
    token_digest: int
    stop: bool


def train_step(
    model: Decoder, optimizer: Optimizer, batch: Batch, lr: float, options: StepOptions, *, stop: bool = False
) -> PackedStep:
    """Train on one batch.

    The loss is the sum over unmasked labels divided by their number in the *global* batch, so neither micro-batches nor
    masks change a label's weight. A global batch without labels leaves parameters and optimizer as they are.
    """
    device = options.inputs.device
    label_count = options.world.sum_int(batch.num_labels)
    num_sources = len(options.source_names)
    nll_B = torch.zeros(len(batch.positions_B), dtype=torch.float64, device=device)
    if label_count:
        norms = _update(model, optimizer, (batch, lr, label_count), options, nll_B)
    else:
        zero = torch.zeros((), device=device)
        norms = Norms(zero, zero, zero + 1)
    source_B = torch.from_numpy(batch.source_B.astype(np.int64)).to(device, non_blocking=True)
    labels_B = torch.from_numpy((batch.labels_BT >= 0).sum(axis=1).astype(np.float64)).to(device, non_blocking=True)
    by_source = torch.zeros(2, num_sources, dtype=torch.float64, device=device)
    by_source.index_add_(1, source_B, torch.stack((nll_B, labels_B)))
    words = [(batch.token_digest >> (16 * place)) & 0xFFFF for place in range(_DIGEST_WORDS)]
    tail = torch.tensor([float(stop), *map(float, words)], dtype=torch.float64).to(device, non_blocking=True)
    head = torch.stack((nll_B.sum(), norms.gradient.double(), norms.update.double(), norms.finite.double()))
    vector = torch.cat((head, tail, by_source.flatten()))
    options.world.sum_(vector)
    return PackedStep(batch, lr, label_count, vector, options.source_names, options.world.size)


def _update(
    model: Decoder, optimizer: Optimizer, work: tuple[Batch, float, int], options: StepOptions, nll_B: Tensor
) -> Norms:
    """Forward, backward and update; the samples' loss sums go into ``nll_B``."""
    batch, lr, label_count = work
    denominator = torch.tensor(float(label_count), device=options.inputs.device)
    optimizer.zero_gradients()
    for rows in micro_batches(len(batch.positions_B), options.micro_batch):
        objective, nll_BT = model(to_inputs(batch, options.inputs, rows), denominator)
        objective.backward()
        nll_B[rows] = nll_BT.double().sum(dim=1)
    norms = optimizer.step(lr, nll_B.sum())
    optimizer.zero_gradients()
    return norms
