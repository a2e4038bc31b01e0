"""The decoder: shapes, initial values, packing invariance, and each option doing what it says."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from support.synthetic import FakeBatch, fake_batch

from train.attention import ATTENTION, available_backends
from train.inputs import InputOptions, to_inputs
from train.metrics.flops import token_flops
from train.model import Decoder, ModelShape
from train.precision import PRECISIONS

CPU = torch.device("cpu")
SHAPE = ModelShape(vocab_size=50, dim=16, layers=2, heads=4, kv_heads=2, ffn=24, seq_len=24)
ONE = torch.ones(())
AVAILABLE = available_backends(CPU, torch.float32)


def build(shape: ModelShape = SHAPE, precision: str = "fp32", attention: str = "sdpa_loop", seed: int = 1) -> Decoder:
    return Decoder(shape, ATTENTION[attention], PRECISIONS[precision]).initialize(seed)


def inputs(model: Decoder, batch: FakeBatch, rows: slice = slice(None)):  # type: ignore[no-untyped-def]
    return to_inputs(batch, InputOptions(CPU, model.backend, model.precision.compute), rows)  # type: ignore[arg-type]


def test_initial_loss_is_that_of_ignorance() -> None:
    batch = fake_batch(0)
    objective, _ = build()(inputs(build(), batch), torch.tensor(float(batch.num_labels)))
    assert abs(float(objective.detach()) - math.log(50)) < 0.5


def test_parameters_depend_on_seed_and_name_alone() -> None:
    small, deep = build(), build(dataclasses.replace(SHAPE, qk_norm=True))
    for name, parameter in small.named_parameters():
        assert torch.equal(parameter, deep.get_parameter(name)), name
        if parameter.ndim > 1:
            assert not torch.equal(parameter, build(seed=2).get_parameter(name)), name


@pytest.mark.parametrize("attention", AVAILABLE)
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"tied": True, "kv_heads": 4}, {"kv_heads": 1}])
def test_a_packed_segment_equals_the_segment_alone(attention: str, options: dict[str, object]) -> None:
    model = build(dataclasses.replace(SHAPE, **options), attention=attention)  # type: ignore[arg-type]
    batch = fake_batch(3)
    packed_BTD = model.hidden(inputs(model, batch))
    for segment in np.unique(batch.segment_of_BT):
        row, columns = np.nonzero(batch.segment_of_BT == segment)
        take = np.ix_(row[:1], columns)
        alone = dataclasses.replace(
            batch,
            **{
                name: getattr(batch, name)[take]
                for name in ("tokens_BT", "labels_BT", "token_positions_BT", "segment_of_BT")
            },
        )
        torch.testing.assert_close(
            model.hidden(inputs(model, alone))[0], packed_BTD[row[0], columns], rtol=1e-4, atol=1e-5
        )


def test_both_attention_rows_train_alike() -> None:
    batch = fake_batch(1)
    gradients = []
    for attention in AVAILABLE:
        model = build(attention=attention)
        model(inputs(model, batch), torch.tensor(float(batch.num_labels)))[0].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-6)


def test_bfloat16_is_close_and_leaves_float32_masters() -> None:
    batch = fake_batch(2)
    found = []
    for precision in PRECISIONS:
        model = build(precision=precision)
        objective, nll_BT = model(inputs(model, batch), torch.tensor(float(batch.num_labels)))
        objective.backward()
        assert all(
            p.dtype is torch.float32 and p.grad is not None and p.grad.dtype is torch.float32
            for p in model.parameters()
        )
        assert nll_BT.dtype is torch.float32
        found.append(float(objective.detach()))
    assert found[0] == pytest.approx(found[1], rel=5e-3)


def test_z_loss_adds_to_the_objective_only() -> None:
    batch = fake_batch(0)
    plain, with_z = (
        build(dataclasses.replace(SHAPE, z_loss=z))(inputs(build(), batch), torch.tensor(10.0)) for z in (0.0, 0.1)
    )
    assert with_z[0] > plain[0]
    assert torch.equal(with_z[1], plain[1])


def test_tied_weights_are_one_parameter() -> None:
    model = build(dataclasses.replace(SHAPE, tied=True))
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())


def test_positions_matter_inside_a_segment_and_start_at_each() -> None:
    model, batch = build(), fake_batch(0)
    shifted = dataclasses.replace(batch, token_positions_BT=np.minimum(batch.token_positions_BT * 2, 23))
    assert not torch.allclose(model.hidden(inputs(model, batch)), model.hidden(inputs(model, shifted)))


def test_flops_are_six_per_matrix_weight_and_half_the_square_of_attention() -> None:
    model = build()
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim > 1 and name != "embedding.weight")
    assert token_flops(SHAPE).total == 6 * matrices + 6 * SHAPE.layers * SHAPE.seq_len * SHAPE.dim
