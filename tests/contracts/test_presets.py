"""The contract of every row of ``PRESETS``: the field's sizes, and a model that really has as many parameters."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from train.attention import ATTENTION
from train.model import Decoder
from train.model_config import PRESETS, ModelConfig
from train.model_shape import shape_of
from train.precision import PRECISIONS


class Row(NamedTuple):
    """Parameters without vocabulary, and what the field recommends: lr, tokens of a batch, context."""

    parameters: int
    lr: float
    batch_tokens: tuple[int, int]
    context: int


ROWS = {
    "tiny": Row(639_872, 3e-3, (2_000, 8_000), 256),
    "125M": Row(84_953_856, 6e-4, (500_000, 500_000), 2048),
    "1.3B": Row(1_214_351_360, 2e-4, (1_000_000, 1_000_000), 2048),
    "7B": Row(6_476_271_616, 3e-4, (2_000_000, 4_000_000), 4096),
    "70B": Row(68_452_360_192, 1.5e-4, (4_000_000, 4_000_000), 8192),
}


def meta_model(config: ModelConfig, vocab_size: int) -> Decoder:
    """The model without memory for its numbers."""
    with torch.device("meta"):
        return Decoder(shape_of(config, vocab_size, 64), ATTENTION["sdpa_loop"], PRECISIONS["fp32"])


def count(model: Decoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_preset_has_its_row() -> None:
    assert PRESETS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", list(ROWS))
def test_sizes_and_advice(name: str) -> None:
    preset, row = PRESETS[name], ROWS[name]
    assert preset.block_parameters() == row.parameters
    assert (preset.lr, preset.batch_tokens, preset.context) == row[1:]


@pytest.mark.parametrize("name", list(ROWS))
@pytest.mark.parametrize("options", [{}, {"tied": True}, {"qk_norm": True}], ids=["untied", "tied", "qk_norm"])
def test_the_model_has_as_many_parameters(name: str, options: dict[str, bool]) -> None:
    config = ModelConfig(preset=name, **options)  # type: ignore[arg-type]
    assert count(meta_model(config, 32_000)) == config.sizes().num_parameters(32_000, **options)


def test_published_totals() -> None:
    """As their makers count them, with a vocabulary of 32,000."""
    assert PRESETS["7B"].num_parameters(32_000) == 6_738_415_616
    assert PRESETS["70B"].num_parameters(32_000) == 68_976_648_192
    assert PRESETS["1.3B"].num_parameters(32_000) == 1_345_423_360
    assert PRESETS["125M"].num_parameters(50_257, tied=True) == pytest.approx(125e6, rel=0.02)


@pytest.mark.parametrize("name", list(ROWS))
def test_sizes_cut_evenly_over_eight_cards(name: str) -> None:
    """Every width is a multiple of 128, which fast kernels and eight tensor ranks want; the tiny one serves the CPU."""
    sizes = PRESETS[name]
    assert sizes.dim % 128 == sizes.ffn % 128 == 0
    assert sizes.head_width * sizes.heads == sizes.dim
