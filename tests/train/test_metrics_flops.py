"""The closed form of FLOPs a token against torch's counter on real models, and attention against its own products."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.synthetic import fake_batch
from torch.utils.flop_counter import FlopCounterMode

from train.attention import ATTENTION
from train.hardware import ACCELERATORS
from train.inputs import InputOptions, to_inputs
from train.metrics.flops import Peak, device_peak, model_flops_utilisation, token_flops
from train.model import Decoder, ModelShape, Part
from train.precision import PRECISIONS

SEQ_LEN, ROWS, VOCAB_SIZE = 32, 4, 120
BASE = ModelShape(vocab_size=VOCAB_SIZE, dim=32, layers=3, heads=4, kv_heads=4, ffn=80, seq_len=SEQ_LEN)
SHAPES = {
    "plain": BASE,
    "grouped queries": dataclasses.replace(BASE, kv_heads=1),
    "tied": dataclasses.replace(BASE, tied=True),
    "normalised queries and keys, z-loss": dataclasses.replace(BASE, qk_norm=True, z_loss=1e-4),
    "wide": dataclasses.replace(BASE, dim=64, heads=8, kv_heads=2, ffn=40, layers=1),
}
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm"}


def in_place(_sum: torch.Size, left: torch.Size, right: torch.Size, **_options: object) -> int:
    """``addmm_``, which torch's counter passes over; it has ``addmm``."""
    return 2 * left[0] * left[1] * right[1]


def counted(shape: ModelShape, part: Part | None = None) -> float:
    """FLOPs a token of forward and backward in products with weights, as torch counts them while it computes.

    Attention's own products are left out: on the CPU they lie in one fused operation, which is not always counted.
    """
    model = Decoder(shape, ATTENTION["sdpa_mask"], PRECISIONS["fp32"], part).initialize(0)
    options = InputOptions(torch.device("cpu"), model.backend, torch.float32)
    batch = fake_batch(0, ROWS, SEQ_LEN, VOCAB_SIZE)
    hidden = None
    if part is not None and not part.first:
        hidden = torch.randn(ROWS, SEQ_LEN, shape.dim, requires_grad=True)
    inputs = to_inputs(batch, options)  # type: ignore[arg-type]
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place}) as counter:
        objective, _ = model(inputs, torch.tensor(float(batch.num_labels)), hidden)
        objective.sum().backward()
    by_operation = counter.get_flop_counts()["Global"]
    products = {key: value for key, value in by_operation.items() if str(key).split(".")[-1] in PRODUCTS}
    assert products
    return sum(products.values()) / (ROWS * SEQ_LEN)


@pytest.mark.parametrize("name", SHAPES)
def test_matrices_are_what_torch_counts(name: str) -> None:
    assert token_flops(SHAPES[name]).matrices == pytest.approx(counted(SHAPES[name]), rel=0.01)


@pytest.mark.parametrize(("first", "last"), [(True, False), (False, True), (False, False)])
def test_a_part_of_a_pipeline_is_what_torch_counts(first: bool, last: bool) -> None:
    part = Part(range(2), first=first, last=last)
    assert token_flops(BASE, blocks=2, head=last).matrices == pytest.approx(counted(BASE, part), rel=0.01)


@pytest.mark.parametrize("name", SHAPES)
def test_attention_is_the_causal_half_of_its_products(name: str) -> None:
    shape = SHAPES[name]
    sizes = (ROWS, shape.heads, SEQ_LEN, shape.head_dim)
    q, k, v = (torch.randn(sizes, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        scores = torch.matmul(q, k.transpose(-1, -2))
        torch.matmul(scores.softmax(-1), v).sum().backward()
    square = shape.layers * counter.get_total_flops() / (ROWS * SEQ_LEN)
    assert token_flops(shape).attention == pytest.approx(square / 2, rel=0.01)


def test_a_token_costs_six_times_its_matrices_and_the_causal_half_of_attention() -> None:
    for shape in SHAPES.values():
        model = Decoder(shape, ATTENTION["sdpa_loop"], PRECISIONS["fp32"])
        matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim > 1 and name != "embedding.weight")
        matrices += shape.vocab_size * shape.dim if shape.tied else 0  # the head multiplies, tied or not
        square = 12 * shape.layers * shape.seq_len * shape.heads * shape.head_dim
        assert token_flops(shape).total == 6 * matrices + square / 2


def test_a_part_is_a_part() -> None:
    """Stages add up to the model."""
    stages = [token_flops(BASE, blocks=1, head=False), token_flops(BASE, blocks=2, head=True)]
    assert sum(stage.total for stage in stages) == token_flops(BASE).total
    assert token_flops(BASE, head=False).matrices == 6 * 3 * (4 * 32 * 32 + 3 * 32 * 80)


def test_utilisation_is_a_share_of_all_devices() -> None:
    peak = device_peak("NVIDIA H100 80GB HBM3", "bf16")
    assert peak is not None
    assert peak.flops_per_s == ACCELERATORS["h100"].peak["bf16"]
    assert "h100" in peak.name
    rate = 0.4 * 8 * peak.flops_per_s / 1e9
    assert model_flops_utilisation(rate, 1e9, 8, peak) == pytest.approx(0.4)


def test_peaks_nobody_knows() -> None:
    assert device_peak("Intel Xeon", "fp32") is None
    assert device_peak("Tesla V100-SXM2-32GB", "bf16") is None
    assert device_peak("Intel Xeon", "fp32", given_tflops=1.5) == Peak("1.5 TFLOP/s as configured", 1.5e12)
    given = device_peak("NVIDIA H100 80GB HBM3", "bf16", given_tflops=700.0)
    assert given is not None
    assert given.flops_per_s == 700e12
