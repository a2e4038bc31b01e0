"""Activation checkpointing changes what is kept, never a bit of the result; blocks may be compiled."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace

import pytest
import torch
from support.parity import SHAPE, Case, batch_of, run_case
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from train.attention import ATTENTION
from train.config import RunConfig
from train.inputs import InputOptions, to_inputs
from train.model import Decoder
from train.parallel.build import Building, prepare_blocks
from train.parallel.config import ParallelConfig
from train.precision import PRECISIONS
from train.recompute import RECOMPUTE, _policy
from train.world import World


def saved_bytes(recompute: str) -> int:
    """Bytes that the backward pass of one micro-batch finds kept, the parameters left out."""
    shape = replace(SHAPE, dim=64, ffn=256)
    inputs = InputOptions(torch.device("cpu"), ATTENTION["sdpa_mask"], torch.float32)
    model = Decoder(shape, inputs.attention, PRECISIONS["fp32"])
    prepare_blocks(model, Building(ParallelConfig(), inputs, PRECISIONS["fp32"], 3, recompute))
    model.initialize(3)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = batch_of(Case("", {}, {}), 0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        objective, _ = model(to_inputs(batch, inputs), torch.ones(()))  # type: ignore[arg-type]
    del objective
    return sum(kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [name for name in RECOMPUTE if name != "none"])
def test_the_result_is_the_same_to_the_last_bit(recompute: str, precision: str) -> None:
    plain = Case("", {}, {"qk_norm": True}, precision=precision, steps=3, micro_batch=3)
    assert run_case(replace(plain, recompute=recompute), World()) == run_case(plain, World())


def test_every_row_keeps_less_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = functools.partial(checkpoint, respect_saved_tensors_hooks=True)  # or what is kept by choice goes unseen
    monkeypatch.setattr("train.recompute.checkpoint", seen)
    none, selective, full = (saved_bytes(name) for name in ("none", "selective", "full"))
    assert full < 0.5 * selective < selective < 0.95 * none


@pytest.mark.slow
def test_selective_keeps_what_the_fused_kernels_found_too() -> None:
    """Their operators do not exist before their module is imported, which takes five seconds."""
    importlib.import_module("torch.nn.attention.varlen")
    assert _policy(None, torch.ops.torch_attn._varlen_attn.default) is CheckpointPolicy.MUST_SAVE
    assert _policy(None, torch.ops.aten.mul.Tensor) is CheckpointPolicy.PREFER_RECOMPUTE


def test_the_configuration_knows_every_row() -> None:
    for name in RECOMPUTE:
        assert RunConfig(recompute=name).recompute == name  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler looks at everything, and warns of what it sees
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_compiled_blocks_train_alike_and_twice_the_same(recompute: str) -> None:
    plain = Case("", {}, {}, attention="sdpa_mask", steps=5)
    compiled = replace(plain, compile=True, recompute=recompute)
    first, right = run_case(compiled, World()), run_case(plain, World())
    assert first.loss == pytest.approx(right.loss, abs=5e-6)
    assert first.grad_norm == pytest.approx(right.grad_norm, rel=5e-5)
    assert run_case(compiled, World()) == first
