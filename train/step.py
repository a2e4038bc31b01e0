"""One optimizer step: forward and backward over micro-batches, clip, update, and one packed vector of what happened.

Shape legend: B samples, T tokens of a sample, S sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from .inputs import InputOptions, ModelInputs, idle_inputs, micro_batches, to_inputs
from .model import Decoder
from .optim import Norms, Optimizer
from .parallel.data import sync_gradients
from .parallel.pipeline import Pipeline
from .spikes.records import StepRecord
from .world import World

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = [
    "HEAD",
    "PackedStep",
    "ReadStep",
    "StepOptions",
    "StepPlan",
    "Trained",
    "compute_gradients",
    "pack_step",
    "train_step",
]

_DIGEST_WORDS = 4  # 16 bits each: their sums over any number of ranks stay exact in float64
HEAD = ("loss_sum", "grad_norm", "update_square", "finite", "stop", "waited_s")
"""What the packed vector begins with."""


class Trained(Protocol):
    """What a step changes: ``state.TrainState`` is one."""

    @property
    def parts(self) -> Sequence[Decoder]:
        """This rank's parts of the model; one without a pipeline."""

    @property
    def optimizer(self) -> Optimizer:
        """Over the parameters of all parts."""

    def complete_gradients(self) -> None:
        """Add up, behind the backward pass, what single ranks saw only a part of."""


@dataclass(frozen=True)
class StepOptions:
    """What is constant over a run's steps.

    Attributes:
        inputs: device, attention backend, compute dtype.
        micro_batch: samples of one forward pass, or None.
        source_names: the plan's sources, S of them.
        world: the process group.
        pipeline: runs the micro-batches where the model is cut into stages.
        reduce_each: gradients go over the ranks behind each micro-batch, not behind the last alone.
    """

    inputs: InputOptions
    micro_batch: int | None
    source_names: tuple[str, ...]
    world: World
    pipeline: Pipeline | None = None
    reduce_each: bool = False


@dataclass(frozen=True)
class PackedStep:
    """A finished step whose numbers still lie in one float64 vector on the device; ``read`` waits for it.

    Attributes:
        batch: this rank's part of the global batch. first_position: of the global batch.
        lr: the learning rate of the step.
        label_count: labels of the global batch; with 0 no update took place.
        vector: loss sum, norms, finite flag, stop flag, waited seconds, token digest words, S loss sums, S label
            counts.
        source_names: the plan's sources.
    """

    batch: Batch
    first_position: int
    lr: float
    label_count: int
    vector: Tensor
    source_names: tuple[str, ...]

    def read(self) -> ReadStep:
        """Bring the vector to the host: the step's only synchronisation."""
        numbers = self.vector.cpu().numpy()
        head = dict(zip(HEAD, numbers[: len(HEAD)].tolist(), strict=True))
        words, rest = np.split(numbers[len(HEAD) :], [_DIGEST_WORDS])
        digest = sum(int(word) << (16 * place) for place, word in enumerate(words.tolist())) % (1 << 64)
        sums, counts = np.split(rest, 2)
        trained = self.label_count > 0
        record = StepRecord(
            step=self.batch.step,
            first_position=self.first_position,
            next_position=self.batch.next_position,
            loss=head["loss_sum"] / self.label_count if trained else float("nan"),
            grad_norm=head["grad_norm"],
            update_norm=math.sqrt(head["update_square"]),
            label_count=self.label_count,
            source_loss={
                name: (loss, int(count))
                for name, loss, count in zip(self.source_names, sums.tolist(), counts.tolist(), strict=True)
                if count
            },
            finite=head["finite"] > 0,
        )
        return ReadStep(record, self.lr, digest, head["stop"] > 0, head["waited_s"])


@dataclass(frozen=True)
class ReadStep:
    """A step on the host.

    Attributes:
        record: what the spike watch sees. lr: learning rate. token_digest: of the global batch.
        stop: some rank was asked to stop. waited_s: for batches, all processes together.
    """

    record: StepRecord
    lr: float
    token_digest: int
    stop: bool
    waited_s: float = 0.0


@dataclass(frozen=True)
class StepPlan:
    """What is known of a step before it begins.

    Attributes:
        first_position: of the global batch. most_samples: of any data rank. lr: learning rate.
        label_count: labels of the global batch; every rank says the same.
    """

    first_position: int
    most_samples: int
    lr: float
    label_count: int


def train_step(
    trained: Trained,
    batch: Batch,
    plan: StepPlan,
    options: StepOptions,
    *,
    stop: bool = False,
    waited_s: float = 0.0,
) -> PackedStep:
    """Train on one batch.

    The loss is the sum over unmasked labels divided by their number in the *global* batch, so neither micro-batches nor
    masks nor the number of ranks change a label's weight. A global batch without labels leaves parameters and optimizer
    as they are.

    Args:
        trained: model and optimizer. batch: this data rank's part of the global batch.
        plan: what holds for the whole step. options: what holds for all steps. stop: this process was asked to stop.
        waited_s: how long this process waited for batches.
    """
    device, world = options.inputs.device, options.world
    nll_B = torch.zeros(len(batch.positions_B), dtype=torch.float64, device=device)
    if plan.label_count:
        norms = _update(trained, batch, plan, options, nll_B)
    else:
        zero = torch.zeros((), device=device)
        norms = Norms(zero, zero, zero + 1)
    vector = pack_step(batch, norms, nll_B, options, (float(stop), waited_s))
    world.sum_(vector)
    return PackedStep(batch, plan.first_position, plan.lr, plan.label_count, vector, options.source_names)


def pack_step(batch: Batch, norms: Norms, nll_B: Tensor, options: StepOptions, said: tuple[float, float]) -> Tensor:
    """This rank's share of the step's numbers, float64: what every rank knows alike comes from the leading one."""
    device, world = options.inputs.device, options.world
    # What a rank has no say in is left out, not multiplied by zero: 0 x inf is NaN.
    nll_B = nll_B if world.scores else torch.zeros_like(nll_B)
    alike = (norms.gradient.double(), norms.finite.double())
    gradient, finite = alike if world.leads else (torch.zeros_like(alike[0]), torch.zeros_like(alike[1]))
    source_B = torch.from_numpy(batch.source_B.astype(np.int64)).to(device, non_blocking=True)
    labels_B = torch.from_numpy((batch.labels_BT >= 0).sum(axis=1) * float(world.counts))
    by_source = torch.zeros(2, len(options.source_names), dtype=torch.float64, device=device)
    by_source.index_add_(1, source_B, torch.stack((nll_B, labels_B.to(device, non_blocking=True))))
    digest = batch.token_digest if world.counts else 0
    words = [(digest >> (16 * place)) & 0xFFFF for place in range(_DIGEST_WORDS)]
    tail = torch.tensor([*said, *map(float, words)], dtype=torch.float64).to(device, non_blocking=True)
    head = torch.stack((nll_B.sum(), gradient, norms.update_square.double(), finite))
    return torch.cat((head, tail, by_source.flatten()))


def _update(trained: Trained, batch: Batch, plan: StepPlan, options: StepOptions, nll_B: Tensor) -> Norms:
    """Forward, backward and update; the samples' loss sums go into ``nll_B``."""
    compute_gradients(trained, batch, plan, options, nll_B)
    norms = trained.optimizer.step(plan.lr, nll_B.sum())
    trained.optimizer.zero_gradients()
    return norms


def compute_gradients(trained: Trained, batch: Batch, plan: StepPlan, options: StepOptions, nll_B: Tensor) -> None:
    """Forward and backward; the samples' loss sums go into ``nll_B``."""
    # Filled, not copied: a copy from the host would wait for the device.
    denominator = torch.full((), float(plan.label_count), device=options.inputs.device)
    if trained.optimizer.scale is not None:
        denominator = denominator / trained.optimizer.scale.value  # scales the loss before its gradients form
    trained.optimizer.zero_gradients()
    rows = micro_batches(len(batch.positions_B), options.micro_batch, plan.most_samples)
    inputs = [
        to_inputs(batch, options.inputs, some) if some.stop > some.start else idle_inputs(batch, options.inputs)
        for some in rows
    ]
    if options.pipeline is not None:
        nll = options.pipeline.run(inputs, denominator)
    else:
        nll = _accumulate(trained.parts[0], inputs, denominator, options.reduce_each)
    for some, nll_BT in zip(rows, nll, strict=False):
        nll_B[some] = nll_BT[: some.stop - some.start].double().sum(dim=1)
    trained.complete_gradients()


def _accumulate(model: Decoder, inputs: Sequence[ModelInputs], denominator: Tensor, reduce_each: bool) -> list[Tensor]:
    nll = []
    for number, some in enumerate(inputs):
        sync_gradients(model, reduce_each or number == len(inputs) - 1)
        objective, nll_BT = model(some, denominator)
        objective.backward()
        nll.append(nll_BT)
    return nll
