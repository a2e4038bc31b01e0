"""One step: what a label weighs, accumulation, masked batches, and what the packed vector says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.synthetic import FakeBatch, fake_batch

from train.attention import ATTENTION
from train.inputs import InputOptions, micro_batches
from train.model import Decoder, ModelShape
from train.optim import Optimizer
from train.optim_config import OptimizerConfig
from train.precision import PRECISIONS
from train.state import TrainState
from train.step import ReadStep, StepOptions, StepPlan, train_step
from train.world import World

SHAPE = ModelShape(vocab_size=50, dim=16, layers=2, heads=2, kv_heads=2, ffn=24, seq_len=24)
NAMES = ("web", "code", "books")


class Trainee:
    def __init__(self, micro_batch: int | None = None) -> None:
        self.model = Decoder(SHAPE, ATTENTION["sdpa_loop"], PRECISIONS["fp32"]).initialize(0)
        self.optimizer = Optimizer(list(self.model.named_parameters()), OptimizerConfig(lr=1e-2))
        inputs = InputOptions(torch.device("cpu"), self.model.backend, torch.float32)
        self.options = StepOptions(inputs, micro_batch, NAMES, World())

    def step(self, batch: FakeBatch, **options: bool) -> ReadStep:
        plan = StepPlan(int(batch.positions_B[0]), len(batch.positions_B), 1e-2, batch.num_labels)
        state = TrainState((self.model,), self.optimizer)
        return train_step(state, batch, plan, self.options, **options).read()  # type: ignore[arg-type]

    def values(self) -> list[torch.Tensor]:
        state = [tensor for _, tensor in self.optimizer.state_tensors()]
        return [tensor.detach().clone() for tensor in [*self.model.parameters(), *state]]


def test_loss_is_the_sum_over_labels_divided_by_their_number() -> None:
    trainee, batch = Trainee(), fake_batch(0)
    with torch.no_grad():
        from train.inputs import to_inputs

        _, nll_BT = trainee.model(to_inputs(batch, trainee.options.inputs), torch.ones(()))  # type: ignore[arg-type]
    record = trainee.step(batch).record
    counted = batch.labels_BT >= 0
    assert record.label_count == counted.sum() == batch.num_labels
    assert record.loss == pytest.approx(float(nll_BT.double().sum()) / batch.num_labels, rel=1e-6)
    for number, name in enumerate(NAMES):
        rows = batch.source_B == number
        total, count = record.source_loss.get(name, (0.0, 0))
        assert count == counted[rows].sum()
        assert total == pytest.approx(float(nll_BT[torch.from_numpy(rows)].double().sum()), rel=1e-6)


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 5])
def test_accumulation_gives_the_loss_of_the_global_count(micro_batch: int) -> None:
    """Rows carry very different numbers of labels, so a mean of micro-batch means would be far off."""
    whole, parts = Trainee(), Trainee(micro_batch)
    for step in range(4):
        batch = fake_batch(step)
        labels_BT = batch.labels_BT.copy()
        labels_BT[0] = -100
        labels_BT[1, 3:] = -100
        batch = dataclasses.replace(batch, labels_BT=labels_BT)
        first, second = whole.step(batch).record, parts.step(batch).record
        assert second.loss == pytest.approx(first.loss, rel=2e-6)
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=2e-5)


def test_a_batch_without_labels_changes_nothing_and_is_recorded() -> None:
    trainee = Trainee()
    trainee.step(fake_batch(0))
    before, batch = trainee.values(), fake_batch(1)
    empty = dataclasses.replace(batch, labels_BT=np.full_like(batch.labels_BT, -100))
    read = trainee.step(empty)
    assert all(torch.equal(x, y) for x, y in zip(before, trainee.values(), strict=True))
    assert read.record.label_count == 0
    assert read.record.finite
    assert not read.record.source_loss
    assert np.isnan(read.record.loss)
    assert read.record.grad_norm == 0.0
    assert (read.record.first_position, read.record.next_position) == (6, 12)


def test_weights_that_are_not_finite_are_told() -> None:
    trainee = Trainee()
    with torch.no_grad():
        trainee.model.norm.weight[0] = float("nan")
    read = trainee.step(fake_batch(0))
    assert not read.record.finite


def test_the_vector_carries_digest_and_stop_exactly() -> None:
    trainee = Trainee()
    batch = dataclasses.replace(fake_batch(0), token_digest=0xFEDC_BA98_7654_3210)
    assert trainee.step(batch).token_digest == 0xFEDC_BA98_7654_3210
    assert not trainee.step(batch).stop
    assert trainee.step(batch, stop=True).stop


def test_same_steps_same_bits() -> None:
    first, second = Trainee(), Trainee()
    for step in range(3):
        assert first.step(fake_batch(step)) == second.step(fake_batch(step))
    assert all(torch.equal(x, y) for x, y in zip(first.values(), second.values(), strict=True))


def test_micro_batches_cover_in_order() -> None:
    for rows, size in ((7, 3), (6, 3), (1, 5), (4, None)):
        slices = micro_batches(rows, size)
        assert [row for part in slices for row in range(rows)[part]] == list(range(rows))
        assert max(part.stop - part.start for part in slices) <= (size or rows)
