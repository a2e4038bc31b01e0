"""Scaled rotary positions against transformers, and what each rule is for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers  # lazy: its models are imported when they are first named

from train.model_config import RopeScaling
from train.rope import ROPE_SCALINGS, rotation_of

SIZES = [(10000.0, 64, 2048), (500000.0, 128, 8192), (1000000.0, 80, 4096)]
RULES: dict[str, tuple[RopeScaling, dict[str, Any]]] = {
    "linear": (RopeScaling("linear", 4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        RopeScaling("llama3", 8.0, 2048, low_freq_factor=1.0, high_freq_factor=4.0),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "yarn": (RopeScaling("yarn", 16.0, 2048), {"rope_type": "yarn", "factor": 16.0}),
    "yarn, every option": (
        RopeScaling("yarn", 4.0, 2048, beta_fast=20.0, beta_slow=2.0, truncate=False, attention_factor=1.25),
        {
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False,
            "attention_factor": 1.25,
        },
    ),
}  # fmt: skip


def stock(base: float, head_dim: int, context: int, scaling: dict[str, Any]) -> tuple[torch.Tensor, float]:
    if scaling["rope_type"] in ("llama3", "yarn"):
        scaling = {**scaling, "original_max_position_embeddings": 2048}
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        rope_theta=base,
        max_position_embeddings=context,
        rope_scaling=scaling,
    )
    return transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))


def test_every_rule_has_a_row() -> None:
    assert {scaling.kind for scaling, _ in RULES.values()} | {"ntk"} == ROPE_SCALINGS.keys()


@pytest.mark.parametrize(("base", "head_dim", "context"), SIZES)
@pytest.mark.parametrize("rule", list(RULES))
def test_values_are_those_of_transformers(rule: str, base: float, head_dim: int, context: int) -> None:
    scaling, theirs = RULES[rule]
    expected, magnitude = stock(base, head_dim, context, theirs)
    found = rotation_of(base, head_dim, scaling)
    torch.testing.assert_close(found.frequencies_f, expected.double(), rtol=1e-5, atol=0)
    assert found.magnitude == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize(("base", "head_dim", "context"), SIZES)
def test_ntk_is_their_dynamic_rule_at_a_length(base: float, head_dim: int, context: int) -> None:
    """With factor 1 it raises the base by how many times longer the sample is; ours does so for every sample."""
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        rope_theta=base,
        max_position_embeddings=context,
        rope_scaling={"rope_type": "dynamic", "factor": 1.0},
    )
    expected, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["dynamic"](
        config, torch.device("cpu"), seq_len=4 * context
    )
    found = rotation_of(base, head_dim, RopeScaling("ntk", 4.0)).frequencies_f
    torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("rule", ["ntk", "llama3", "yarn"])
def test_the_fastest_turn_stays_and_the_slowest_is_divided(rule: str) -> None:
    plain = rotation_of(10000.0, 128, None).frequencies_f
    scaled = rotation_of(10000.0, 128, RopeScaling(rule, 8.0, 2048)).frequencies_f  # type: ignore[arg-type]
    assert float(scaled[0] / plain[0]) == pytest.approx(1.0)
    assert float(scaled[-1] / plain[-1]) == pytest.approx(1 / 8)
    assert torch.all(scaled.diff() < 0)


def test_yarn_sharpens_attention_as_the_paper_says() -> None:
    assert rotation_of(1e4, 64, RopeScaling("yarn", 16.0, 2048)).magnitude == 0.1 * math.log(16) + 1
    assert rotation_of(1e4, 64, RopeScaling("yarn", 1.0, 2048)).magnitude == 1.0


@pytest.mark.parametrize("rule", list(ROPE_SCALINGS))
def test_factor_one_changes_nothing(rule: str) -> None:
    scaling = RopeScaling(rule, 1.0, 2048)  # type: ignore[arg-type]
    torch.testing.assert_close(
        rotation_of(1e4, 64, scaling).frequencies_f, rotation_of(1e4, 64, None).frequencies_f, rtol=1e-12, atol=0
    )


def test_a_block_that_cannot_be_meant_is_refused() -> None:
    for kind, key in (("yarn", "original_context"), ("llama3", "original_context")):
        with pytest.raises(ValueError, match=key):
            RopeScaling(kind, 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="attention_factor"):
        RopeScaling("linear", 2.0, attention_factor=1.1)
    with pytest.raises(ValueError, match="factor"):
        RopeScaling("linear", 0.5)
