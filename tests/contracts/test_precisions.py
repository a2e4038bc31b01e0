"""Every row of the table of number formats: close to float32 while it trains, masters and reductions float32."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from support.parity import Case, batch_of, build, run_case
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from loader.errors import ConfigError
from train.attention import ATTENTION
from train.inputs import to_inputs
from train.loss_scale import LossScale
from train.model import Decoder
from train.parallel.tensor import cut_model
from train.precision import PRECISIONS, use_float8
from train.world import World

# |loss - float32's loss| over ten steps, nats (DESIGN 13, issue 6)
TOLERANCE = {"fp32": 0.0, "bf16": 5e-3, "fp16": 2e-3, "fp8": 3e-2}
SIZES = {"vocab_size": 64}


def case(precision: str, **changes: object) -> Case:
    if precision == "fp8":
        pytest.importorskip("torchao", reason="fp8 needs torchao")
    return replace(Case("", {}, SIZES, precision=precision), **changes)  # type: ignore[arg-type]


def test_every_row_has_its_tolerance() -> None:
    assert set(TOLERANCE) == set(PRECISIONS)


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_training_stays_close_to_float32(precision: str) -> None:
    found, right = run_case(case(precision), World()), run_case(case("fp32"), World())
    assert found.loss == pytest.approx(right.loss, abs=max(TOLERANCE[precision], 1e-12))
    if precision != "fp32":
        assert found.loss != right.loss


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_masters_gradients_and_state_are_float32(precision: str) -> None:
    one = case(precision)
    state, inputs = build(one, World())
    objective, nll_BT = state.model(to_inputs(batch_of(one, 0), inputs), torch.ones(()))  # type: ignore[arg-type]
    objective.backward()
    tensors = [*state.model.parameters(), *(p.grad for p in state.model.parameters()), nll_BT]
    assert {tensor.dtype for tensor in tensors if tensor is not None} == {torch.float32}
    assert {tensor.dtype for name, tensor in state.optimizer.state_tensors() if "streak" not in name} == {torch.float32}


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_products_really_run_in_the_format(precision: str) -> None:
    one = case(precision)
    (state, inputs), (exact, _) = build(one, World()), build(case("fp32"), World())
    batch = to_inputs(batch_of(one, 0), inputs)  # type: ignore[arg-type]
    with state.model.precision.autocast(inputs.device):
        rounded_BTD = state.model.hidden(batch)
    assert rounded_BTD.dtype is torch.bfloat16
    error = ((rounded_BTD.float() - exact.model.hidden(batch)).norm() / rounded_BTD.float().norm()).detach()
    assert {"bf16": 1e-4, "fp8": 1e-2}[precision] < float(error) < {"bf16": 2e-2, "fp8": 0.2}[precision]


def test_float8_wants_multiples_of_16_of_what_a_rank_holds() -> None:
    """The whole matrices fit; the eight rows of the keys on one of two ranks do not."""
    pytest.importorskip("torchao", reason="fp8 needs torchao")
    one = case("fp8", model={"kv_heads": 2})
    model = Decoder(one.shape(), ATTENTION[one.attention], PRECISIONS["fp8"])
    use_float8(model.blocks, torch.device("cpu"))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        cut_model(model, init_device_mesh("cpu", (2,)), vocabulary=True)
        with pytest.raises(ConfigError, match=r"attention\.k is 8 x 32 here") as caught:
            use_float8(model.blocks, torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    assert (caught.value.code, caught.value.place) == ("TR-PRECISION-SIZES", "precision")


def test_a_scale_too_large_skips_until_it_fits() -> None:
    one = case("fp16", loss_scale=2.0**40, steps=40)
    state, _ = build(one, World())
    before = state.digest()
    found = run_case(one, World())
    skipped = sum(not math.isfinite(norm) for norm in found.grad_norm)
    assert 10 < skipped < 35
    assert all(math.isfinite(norm) for norm in found.grad_norm[skipped:])
    assert [norm == 0 for norm in found.update_norm] == [True] * skipped + [False] * (40 - skipped)
    assert found.parameters != before


def test_the_scale_grows_and_never_falls_below_one() -> None:
    scale = LossScale(torch.tensor(2.0))
    for _ in range(2000):
        scale.update_(torch.tensor(0.0))
    assert float(scale.value) == 4.0
    for _ in range(5):
        scale.update_(torch.tensor(1.0))
    assert float(scale.value) == 1.0
    assert not scale.explains(torch.tensor(math.inf))
    assert LossScale().explains(torch.tensor(math.inf))
    assert not LossScale().explains(torch.tensor(1.0))
