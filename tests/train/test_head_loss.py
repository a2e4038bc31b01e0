"""The fused head against the plain formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from train import head
from train.head import IGNORED, head_loss

N, D, V = 50, 12, 37


def make(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).requires_grad_()
    labels = torch.randint(0, V, (N,), generator=generator)
    labels[::7] = IGNORED
    return hidden, weight, labels


@pytest.mark.parametrize("piece", [16 * V, 17 * V, 10_000 * V], ids=["even", "ragged", "whole"])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, piece: int, z_loss: float) -> None:
    monkeypatch.setattr(head, "_PIECE_NUMBERS", piece)
    hidden, weight, labels = make()
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logits = exact_hidden @ exact_weight.T
    per_token = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    z = torch.where(labels != IGNORED, logits.logsumexp(1) ** 2, 0.0).sum()
    exact = (per_token.sum() + z_loss * z) / 11
    exact.backward()
    objective, nll = head_loss(hidden, weight, labels, torch.tensor(11.0), z_loss)
    (objective * 3).backward()
    torch.testing.assert_close(objective.double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(nll.double(), per_token, rtol=1e-5, atol=1e-5)
    for mine, right in ((hidden, exact_hidden), (weight, exact_weight)):
        assert mine.grad is not None
        assert right.grad is not None
        torch.testing.assert_close(mine.grad.double() / 3, right.grad, rtol=1e-4, atol=1e-6)


def test_bfloat16_keeps_a_float32_weight_gradient() -> None:
    hidden, weight, labels = make(torch.bfloat16)
    objective, _ = head_loss(hidden, weight, labels, torch.tensor(float(N)), 0.0)
    objective.backward()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32
    plain = weight.detach().clone().requires_grad_()
    cross_entropy((hidden.detach().float() @ plain.T), labels, ignore_index=IGNORED, reduction="sum").div(N).backward()
    assert plain.grad is not None
    assert (weight.grad - plain.grad).abs().max() <= 2e-2 * plain.grad.abs().max()


def test_ignored_tokens_have_no_influence() -> None:
    hidden, weight, labels = make()
    before = head_loss(hidden, weight, labels, torch.tensor(5.0), 1e-3)[0]
    changed = hidden.detach().clone()
    changed[labels == IGNORED] = 1e4
    assert torch.equal(head_loss(changed, weight, labels, torch.tensor(5.0), 1e-3)[0], before)


def test_without_gradients_it_only_scores() -> None:
    hidden, weight, labels = make()
    with torch.no_grad():
        objective, nll = head_loss(hidden, weight, labels, torch.tensor(5.0), 0.0)
    assert not objective.requires_grad
    torch.testing.assert_close(objective * 5, nll.sum())
