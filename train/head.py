"""Cross entropy and z-loss fused with the output projection, in pieces, so that the logits never exist whole.

Shape legend: N tokens, n tokens of one piece, D model width, V vocabulary.

For a label y with logits z = W h, p = softmax(z), lse = log sum exp z:

    loss = lse - z_y + zeta lse^2
    d loss / d z = p (1 + 2 zeta lse) - onehot(y)

The divisor (labels of the global batch) is known before the step, so the forward pass can form both gradients at once
while the piece is still in the cache; the backward pass only scales them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["IGNORED", "head_loss"]

IGNORED = -100
_PIECE_NUMBERS = 1 << 22  # logits of a piece: 16 MB in float32


def _piece_length(vocab_size: int) -> int:
    return max(16, _PIECE_NUMBERS // vocab_size)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, denominator: Tensor, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        weight = weight_VD.to(hidden_ND.dtype)
        wants_gradient = hidden_ND.requires_grad or weight_VD.requires_grad
        wants_gradient = wants_gradient or any(ctx.needs_input_grad)
        nll_N = torch.empty(labels_N.shape, dtype=torch.float32, device=hidden_ND.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        hidden_gradient_ND = torch.empty_like(hidden_ND) if wants_gradient else None
        weight_gradient_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if wants_gradient else None
        length = _piece_length(weight_VD.shape[0])
        for start in range(0, labels_N.shape[0], length):
            piece = slice(start, start + length)
            labels_n = labels_N[piece]
            kept_n = labels_n != IGNORED
            targets_n1 = labels_n.clamp(min=0)[:, None]
            logits_nV = torch.mm(hidden_ND[piece], weight.t()).float()
            # One exponential a logit: shifted by the maximum, in place, and reused as the numerator of p.
            top_n, at_label_n = logits_nV.amax(dim=1), logits_nV.gather(1, targets_n1)[:, 0]
            error_nV = logits_nV.sub_(top_n[:, None]).exp_()
            sum_n = error_nV.sum(dim=1)
            lse_n = top_n + sum_n.log()
            nll_n = torch.where(kept_n, lse_n - at_label_n, 0.0)
            nll_N[piece] = nll_n
            cost_n = nll_n + z_loss * torch.where(kept_n, lse_n.square(), 0.0) if z_loss else nll_n
            total += cost_n.sum()
            if hidden_gradient_ND is None or weight_gradient_VD is None:
                continue
            scale_n = torch.where(kept_n, 1.0 / denominator, 0.0)
            factor_n = scale_n * (1 + 2 * z_loss * lse_n) if z_loss else scale_n
            error_nV.mul_((factor_n / sum_n)[:, None]).scatter_add_(1, targets_n1, -scale_n[:, None])
            error_nV = error_nV.to(hidden_ND.dtype)
            torch.mm(error_nV, weight, out=hidden_gradient_ND[piece])
            if error_nV.dtype is torch.float32:
                weight_gradient_VD.addmm_(error_nV.t(), hidden_ND[piece])
            else:
                weight_gradient_VD.add_(torch.mm(error_nV.t(), hidden_ND[piece]))
        if hidden_gradient_ND is not None and weight_gradient_VD is not None:
            ctx.save_for_backward(hidden_gradient_ND, weight_gradient_VD)
        ctx.mark_non_differentiable(nll_N)
        return total / denominator, nll_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient_ND, weight_gradient_VD = ctx.saved_tensors
        scale = gradients[0]
        return hidden_gradient_ND * scale.to(hidden_gradient_ND.dtype), weight_gradient_VD * scale, None, None, None


def head_loss(
    hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, denominator: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """(Cross entropy + z-loss) / denominator of the projection ``hidden @ weight.T``, and each token's loss in nats.

    Args:
        hidden_ND: activations in the compute dtype.
        weight_VD: the projection, float32.
        labels_N: int64; ``IGNORED`` marks tokens without a label.
        denominator: float32 scalar, labels in the global batch.
        z_loss: weight of the squared log partition function.

    Returns:
        ``(objective, nll_N)``; only the objective carries a gradient.
    """
    objective, nll_N = _HeadLoss.apply(hidden_ND, weight_VD, labels_N, denominator, z_loss)
    return objective, nll_N
