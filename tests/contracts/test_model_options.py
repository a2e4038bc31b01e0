"""The contract of every option of the model: loss and gradients are those of a plain definition in float64.

The reference shares no code with the model but for the frequencies of scaled rotary positions and for which numbers
dropout keeps, which have tests of their own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.synthetic import FakeBatch, fake_batch
from torch import Tensor
from torch.nn.functional import cross_entropy, silu

from train.attention import ATTENTION
from train.dropout import drop, layer_keys
from train.inputs import InputOptions, to_inputs
from train.model import Decoder, ModelShape
from train.model_config import DropoutConfig, ModelConfig, MupConfig, RopeScaling
from train.model_shape import shape_of
from train.precision import PRECISIONS
from train.rope import rotation_of

PLAIN = ModelShape(vocab_size=50, dim=16, layers=2, heads=4, kv_heads=4, ffn=24, seq_len=24)
ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "qk_norm": {"qk_norm": True},
    "z_loss": {"z_loss": 1e-2},
    "gqa": {"kv_heads": 2},
    "mqa": {"kv_heads": 1, "qk_norm": True},
    "tied": {"tied": True},
    "head_width": {"head_width": 6},
    "rope_base": {"rope_base": 500.0},
    "norm_eps": {"norm_eps": 0.1},
    "rope_scaling": {"rope_scaling": RopeScaling("yarn", 4.0, 32)},
    "mup": {"mup": MupConfig(base_dim=8, base_head_dim=2), "z_loss": 1e-2},
    "mup, tied": {"mup": MupConfig(base_dim=8, base_head_dim=2), "tied": True, "qk_norm": True},
    "dropout": {"dropout": DropoutConfig(residual=0.3, attention=0.2, embedding=0.1)},
    "all": {
        "qk_norm": True, "z_loss": 1e-2, "kv_heads": 2, "tied": True, "rope_scaling": RopeScaling("llama3", 2.0, 16),
        "mup": MupConfig(base_dim=32, base_head_dim=16), "dropout": DropoutConfig(residual=0.3, attention=0.2),
    },
}  # fmt: skip


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def turned(x_BTHC: Tensor, positions_BT: Tensor, shape: ModelShape) -> Tensor:
    """Pairs (c, c + C / 2) as complex numbers, turned by their angle."""
    if shape.rope_scaling is None:
        half = torch.arange(shape.head_dim // 2, dtype=torch.float64)
        frequencies, magnitude = shape.rope_base ** (-2 * half / shape.head_dim), 1.0
    else:
        rotation = rotation_of(shape.rope_base, shape.head_dim, shape.rope_scaling)
        frequencies, magnitude = rotation.frequencies_f, rotation.magnitude
    turn = torch.polar(torch.tensor(magnitude).double(), positions_BT.double()[..., None, None] * frequencies)
    left, right = x_BTHC.chunk(2, dim=-1)
    out = torch.complex(left, right) * turn
    return torch.cat((out.real, out.imag), dim=-1)


def kept(shape: ModelShape, batch: FakeBatch, layer: int, site: int, width: int) -> Tensor:
    """What dropout multiplies by."""
    config = shape.dropout
    if config is None:
        return torch.ones(()).double()
    share = config.embedding if layer < 0 else config.attention if site == 0 else config.residual
    key_B2 = layer_keys(config.seed, batch.positions_B, [layer], 3)[0, site]
    return drop(torch.ones(*batch.tokens_BT.shape, width).double(), share, key_B2, torch.arange(24))


def attended(weights: dict[str, Tensor], at: str, x: Tensor, batch: FakeBatch, shape: ModelShape) -> Tensor:
    q, k, v = (
        (x @ weights[f"{at}.attention.{n}.weight"].T).unflatten(-1, (-1, shape.head_dim)) for n in ("q", "k", "v")
    )
    if shape.qk_norm:
        q = norm(q, weights[f"{at}.attention.q_norm.weight"], shape.norm_eps)
        k = norm(k, weights[f"{at}.attention.k_norm.weight"], shape.norm_eps)
    positions = torch.from_numpy(batch.token_positions_BT)
    q, k = turned(q, positions, shape), turned(k, positions, shape)
    shared = shape.heads // shape.kv_heads
    k, v = (torch.stack([z] * shared, dim=3).flatten(2, 3) for z in (k, v))
    scores = torch.einsum("bthc,bshc->bhts", q, k)
    base = None if shape.mup is None else shape.mup.base_head_dim
    scores = scores * (shape.head_dim**-0.5 if base is None else math.sqrt(base) / shape.head_dim)
    segment = torch.from_numpy(batch.segment_of_BT)
    allowed = (segment[:, :, None] == segment[:, None, :]) & torch.ones(24, 24, dtype=torch.bool).tril()
    weight = scores.masked_fill(~allowed[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bhts,bshc->bthc", weight, v).flatten(2)


def reference(weights: dict[str, Tensor], batch: FakeBatch, shape: ModelShape, labels: int) -> Tensor:
    """The objective of the whole model."""
    x = weights["embedding.weight"][torch.from_numpy(batch.tokens_BT).long()]
    x = x * kept(shape, batch, -1, 0, shape.dim)
    for layer in range(shape.layers):
        at = f"blocks.{layer}"
        found = attended(weights, at, norm(x, weights[f"{at}.attention_norm.weight"], shape.norm_eps), batch, shape)
        found = found * kept(shape, batch, layer, 0, shape.heads * shape.head_dim)
        x = x + found @ weights[f"{at}.attention.out.weight"].T * kept(shape, batch, layer, 1, shape.dim)
        y = norm(x, weights[f"{at}.ffn_norm.weight"], shape.norm_eps)
        gate, up = (y @ weights[f"{at}.ffn.{n}.weight"].T for n in ("gate", "up"))
        x = x + (silu(gate) * up) @ weights[f"{at}.ffn.down.weight"].T * kept(shape, batch, layer, 2, shape.dim)
    head = weights["embedding.weight" if shape.tied else "head.weight"]
    logits = norm(x, weights["norm.weight"], shape.norm_eps) @ head.T
    if shape.mup is not None:
        logits = logits * shape.mup.base_dim / shape.dim
    targets = torch.from_numpy(batch.labels_BT).long()
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    partition = logits.logsumexp(-1).square()[targets >= 0].sum()
    return (loss + shape.z_loss * partition) / labels


@pytest.mark.parametrize("attention", ["sdpa_loop", "sdpa_mask"])
@pytest.mark.parametrize("row", list(ROWS))
def test_loss_and_gradients_are_those_of_float64(row: str, attention: str) -> None:
    shape = dataclasses.replace(PLAIN, **ROWS[row])
    model, batch = Decoder(shape, ATTENTION[attention], PRECISIONS["fp32"]).initialize(1), fake_batch(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains of 1 would hide a gain that is left out
            if parameter.ndim == 1:
                parameter.mul_(
                    1 + 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
                )
    exact = {name: parameter.detach().double().requires_grad_() for name, parameter in model.named_parameters()}
    expected = reference(exact, batch, shape, 77)
    expected.backward()
    inputs = to_inputs(batch, InputOptions(torch.device("cpu"), model.backend, torch.float32))  # type: ignore[arg-type]
    objective, _ = model(inputs, torch.tensor(77.0))
    objective.backward()
    assert float(objective.detach()) == pytest.approx(float(expected.detach()), rel=2e-6)
    for name, parameter in model.named_parameters():
        right = exact[name].grad
        assert right is not None
        assert parameter.grad is not None
        assert (parameter.grad.double() - right).abs().max() <= 2e-5 * right.abs().max() + 1e-9, name


def test_every_option_of_the_shape_has_a_row() -> None:
    sizes = {"vocab_size", "dim", "layers", "heads", "ffn", "seq_len"}
    assert {field.name for field in dataclasses.fields(ModelShape)} - sizes == {
        key for row in ROWS.values() for key in row
    }


def test_the_configuration_reaches_the_shape() -> None:
    """Each key of the block that shapes the model, given another value than the default, arrives."""
    given = {
        "dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 96, "head_dim": 32, "qk_norm": True, "z_loss": 1e-4,
        "tied": True, "rope_base": 5e5, "norm_eps": 1e-5, "rope_scaling": RopeScaling("linear", 2.0),
        "dropout": DropoutConfig(residual=0.1), "mup": MupConfig(),
    }  # fmt: skip
    shape = dataclasses.asdict(shape_of(ModelConfig(**given), 100, 64))  # type: ignore[arg-type]
    shape["head_dim"] = shape.pop("head_width")
    expected = {
        key: dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value for key, value in given.items()
    }  # type: ignore[arg-type]
    assert shape == {**expected, "vocab_size": 100, "seq_len": 64}
