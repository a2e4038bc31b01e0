"""The contract of every row of ``ATTENTION``: right values and gradients, and nothing leaks between documents.

Legend as in train/attention.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from train.attention import ATTENTION, choose_attention, segment_borders

B, H, K, T, C = 3, 4, 2, 40, 8
CPU = torch.device("cpu")
SEGMENT_OF_BT = np.stack([np.zeros(T, int), np.repeat([1, 2, 3], [1, 29, 10]), np.repeat([4, 5], [38, 2])])
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 2e-2)}


def draw(dtype: torch.dtype, heads: int = K, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, H, T, C), (B, heads, T, C), (B, heads, T, C)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, in float64."""
    segment_of = torch.from_numpy(SEGMENT_OF_BT)
    allowed = (segment_of[:, None, :, None] == segment_of[:, None, None, :]) & torch.ones(T, T, dtype=torch.bool).tril()
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) / C**0.5
    return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v


def run(name: str, qkv: list[Tensor], dtype: torch.dtype) -> Tensor:
    backend = ATTENTION[name]
    return backend.attend(*qkv, backend.prepare(SEGMENT_OF_BT, CPU, dtype))


@pytest.mark.parametrize("heads", [H, K, 1])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(ATTENTION))
def test_values_and_gradients_are_those_of_float64(name: str, dtype: torch.dtype, heads: int) -> None:
    qkv = draw(dtype, heads)
    exact = [x.detach().double().requires_grad_() for x in qkv]
    weights = torch.randn(B, H, T, C, generator=torch.Generator().manual_seed(9))
    out, expected = run(name, qkv, dtype), dense(*exact)
    (out.float() * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    value_error, gradient_error = TOLERANCE[dtype]
    assert (out.double() - expected).abs().max() <= value_error
    for mine, right in zip(qkv, exact, strict=True):
        assert mine.grad is not None
        assert right.grad is not None
        assert (mine.grad.double() - right.grad).abs().max() <= gradient_error * right.grad.abs().max()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", list(ATTENTION))
def test_nothing_leaks_between_segments(name: str, dtype: torch.dtype) -> None:
    """Everything of one segment replaced: outputs and gradients of all others keep every bit."""
    first, other = draw(dtype), draw(dtype, seed=1)
    for segment in range(6):
        inside = torch.from_numpy(segment == SEGMENT_OF_BT)[:, None, :, None]
        second = [
            torch.where(inside, x.detach() * 50, y.detach()).requires_grad_() for x, y in zip(other, first, strict=True)
        ]
        outs = [run(name, qkv, dtype) for qkv in (first, second)]
        assert torch.equal(*(out.masked_fill(inside, 0) for out in outs))
        for out, qkv in zip(outs, (first, second), strict=True):
            for x in qkv:
                x.grad = None
            (out.masked_fill(inside, 0).float() ** 2).sum().backward()
        for x, y in zip(first, second, strict=True):
            assert x.grad is not None
            assert y.grad is not None
            assert torch.equal(x.grad, y.grad)
            assert not x.grad.masked_select(inside.expand_as(x.grad)).any()


@pytest.mark.parametrize("name", list(ATTENTION))
def test_nothing_is_seen_of_the_future(name: str) -> None:
    first = draw(torch.float32)
    second = [x.detach().clone() for x in first]
    for x in second:
        x[:, :, 20:] += 1.0
    assert torch.equal(*(run(name, qkv, torch.float32)[:, :, :20] for qkv in (first, second)))


@pytest.mark.parametrize("name", list(ATTENTION))
def test_a_segment_does_not_depend_on_its_neighbours_in_the_batch(name: str) -> None:
    qkv = [x.detach() for x in draw(torch.float32)]
    backend = ATTENTION[name]
    whole = run(name, qkv, torch.float32)
    for row in range(B):
        rows = slice(row, row + 1)
        layout = backend.prepare(SEGMENT_OF_BT[rows], CPU, torch.float32)
        alone = backend.attend(*(x[rows] for x in qkv), layout)
        torch.testing.assert_close(alone, whole[rows], rtol=0, atol=1e-6)


def test_borders() -> None:
    assert segment_borders(SEGMENT_OF_BT) == [[0, 40], [0, 1, 30, 40], [0, 38, 40]]


def test_the_default_is_available_and_a_named_row_is_taken() -> None:
    assert choose_attention(None, CPU, 256).available(CPU)
    assert choose_attention("sdpa_mask", CPU, 256).name == "sdpa_mask"
    assert {backend.name for backend in ATTENTION.values()} == set(ATTENTION)
