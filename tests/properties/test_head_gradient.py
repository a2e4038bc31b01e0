"""The norm of a segment's head gradient: Gram form, vocabulary tiles and autograd agree to 1e-3."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train.spikes.score import gradient_norm_gram, gradient_norm_tiles


@settings(max_examples=30, deadline=None)
@given(
    labels=st.integers(1, 40),
    dim=st.integers(1, 40),
    vocabulary=st.integers(2, 90),
    tile=st.integers(1, 100),
    seed=st.integers(0, 2**31),
)
def test_gram_tiles_and_autograd_agree(labels: int, dim: int, vocabulary: int, tile: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(labels, dim, generator=generator)
    weight = torch.randn(vocabulary, dim, generator=generator, requires_grad=True)
    target = torch.randint(vocabulary, (labels,), generator=generator)
    torch.nn.functional.cross_entropy(hidden @ weight.T, target, reduction="sum").backward()
    assert weight.grad is not None
    errors = (hidden @ weight.detach().T).softmax(1)
    errors[torch.arange(labels), target] -= 1
    want = float(weight.grad.norm())
    assert gradient_norm_gram(errors, hidden) == pytest.approx(want, rel=1e-3, abs=1e-4)
    assert gradient_norm_tiles(errors, hidden, tile) == pytest.approx(want, rel=1e-3, abs=1e-4)
