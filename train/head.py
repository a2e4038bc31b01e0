"""Cross entropy and z-loss fused with the output projection, in pieces, so that the logits never exist whole.

Shape legend: N tokens, n tokens of one piece, D model width, V vocabulary, v this
rank's rows of it.

For a label y with logits z = W h, p = softmax(z), lse = log sum exp z:

    loss = lse - z_y + zeta lse^2
    d loss / d z = p (1 + 2 zeta lse) - onehot(y)

With the vocabulary cut over a group of ranks (Shoeybi et al., 2019, section 3) each rank holds v rows of W: maximum,
sum of exponentials and the label's logit are reduced over the group, everything else stays local. The gradient of the
hidden vectors is then this rank's share of a sum, which whoever cut the vocabulary adds up.

The divisor (labels of the global batch) is known before the step, so the forward pass can form both gradients at once
while the piece is still in the cache; the backward pass only scales them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["IGNORED", "VocabularyCut", "head_loss"]

IGNORED = -100
_PIECE_NUMBERS = 1 << 22  # logits of a piece: 16 MB in float32


@dataclass(frozen=True)
class VocabularyCut:
    """How the head's rows are cut: over which group, this rank's first row, and rows in all."""

    group: dist.ProcessGroup
    start: int
    rows: int


def _piece_length(vocab_size: int) -> int:
    return max(16, _PIECE_NUMBERS // vocab_size)


@dataclass(frozen=True)
class _Targets:
    """The labels of one piece: their places among this rank's rows, and which of them count and lie there."""

    column_n1: Tensor
    kept_n: Tensor
    here_n: Tensor

    @staticmethod
    def of(labels_n: Tensor, rows: int, cut: VocabularyCut | None) -> _Targets:
        kept_n = labels_n != IGNORED
        if cut is None:
            return _Targets(labels_n.clamp(min=0)[:, None], kept_n, kept_n)
        column_n = labels_n - cut.start
        here_n = kept_n & (column_n >= 0) & (column_n < rows)
        return _Targets(column_n.masked_fill(~here_n, 0)[:, None], kept_n, here_n)


def _exponentials(logits_nv: Tensor, targets: _Targets, cut: VocabularyCut | None) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits - maximum) in place, with (sum over V, log partition function, label's logit), each (n,).

    One exponential a logit: shifted by the maximum, in place, and reused as the numerator of p.
    """
    if cut is None:
        top_n, at_label_n = logits_nv.amax(dim=1), logits_nv.gather(1, targets.column_n1)[:, 0]
        sum_n = logits_nv.sub_(top_n[:, None]).exp_().sum(dim=1)
        return sum_n, top_n + sum_n.log(), at_label_n
    least = logits_nv.new_full((len(logits_nv), 1), float("-inf"))
    top_n = torch.cat((logits_nv, least), dim=1).amax(dim=1)  # a rank may hold no row at all
    dist.all_reduce(top_n, op=dist.ReduceOp.MAX, group=cut.group)
    if logits_nv.shape[1]:
        at_label_n = torch.where(targets.here_n, logits_nv.gather(1, targets.column_n1)[:, 0], 0.0)
    else:
        at_label_n = torch.zeros_like(top_n)
    both_2n = torch.stack((logits_nv.sub_(top_n[:, None]).exp_().sum(dim=1), at_label_n))
    dist.all_reduce(both_2n, group=cut.group)
    sum_n, at_label_n = both_2n
    return sum_n, top_n + sum_n.log(), at_label_n


@dataclass(frozen=True)
class _Options:
    z_loss: float
    cut: VocabularyCut | None
    piece_rows: int  # of the whole vocabulary: every rank of a cut must take the same pieces


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_vD: Tensor, labels_N: Tensor, denominator: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor]:
        z_loss, cut = options.z_loss, options.cut
        weight = weight_vD.to(hidden_ND.dtype)
        wants_gradient = hidden_ND.requires_grad or weight_vD.requires_grad
        wants_gradient = wants_gradient or any(ctx.needs_input_grad)
        nll_N = torch.empty(labels_N.shape, dtype=torch.float32, device=hidden_ND.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        hidden_gradient_ND = torch.empty_like(hidden_ND) if wants_gradient else None
        weight_gradient_vD = torch.zeros_like(weight_vD, dtype=torch.float32) if wants_gradient else None
        length = _piece_length(options.piece_rows)
        for start in range(0, labels_N.shape[0], length):
            piece = slice(start, start + length)
            targets = _Targets.of(labels_N[piece], weight_vD.shape[0], cut)
            kept_n = targets.kept_n
            error_nv = torch.mm(hidden_ND[piece], weight.t()).float()
            sum_n, lse_n, at_label_n = _exponentials(error_nv, targets, cut)
            nll_n = torch.where(kept_n, lse_n - at_label_n, 0.0)
            nll_N[piece] = nll_n
            cost_n = nll_n + z_loss * torch.where(kept_n, lse_n.square(), 0.0) if z_loss else nll_n
            total += cost_n.sum()
            if hidden_gradient_ND is None or weight_gradient_vD is None:
                continue
            scale_n = torch.where(kept_n, 1.0 / denominator, 0.0)
            factor_n = scale_n * (1 + 2 * z_loss * lse_n) if z_loss else scale_n
            error_nv.mul_((factor_n / sum_n)[:, None])
            if error_nv.shape[1]:
                hit_n = scale_n if cut is None else torch.where(targets.here_n, scale_n, 0.0)
                error_nv.scatter_add_(1, targets.column_n1, -hit_n[:, None])
            error_nv = error_nv.to(hidden_ND.dtype)
            torch.mm(error_nv, weight, out=hidden_gradient_ND[piece])
            if error_nv.dtype is torch.float32:
                weight_gradient_vD.addmm_(error_nv.t(), hidden_ND[piece])
            else:
                weight_gradient_vD.add_(torch.mm(error_nv.t(), hidden_ND[piece]))
        if hidden_gradient_ND is not None and weight_gradient_vD is not None:
            ctx.save_for_backward(hidden_gradient_ND, weight_gradient_vD)
        ctx.mark_non_differentiable(nll_N)
        ctx.weight_dtype = weight_vD.dtype
        return total / denominator, nll_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient_ND, weight_gradient_vD = ctx.saved_tensors
        scale = gradients[0]
        weight_gradient_vD = (weight_gradient_vD * scale).to(ctx.weight_dtype)
        return hidden_gradient_ND * scale.to(hidden_gradient_ND.dtype), weight_gradient_vD, None, None, None


def head_loss(
    hidden_ND: Tensor,
    weight_vD: Tensor,
    labels_N: Tensor,
    denominator: Tensor,
    z_loss: float,
    cut: VocabularyCut | None = None,
) -> tuple[Tensor, Tensor]:
    """(Cross entropy + z-loss) / denominator of the projection ``hidden @ weight.T``, and each token's loss in nats.

    Args:
        hidden_ND: activations in the compute dtype; equal on all ranks of a cut.
        weight_vD: the projection's rows on this rank, a plain tensor; float32, or the compute dtype.
        labels_N: int64; ``IGNORED`` marks tokens without a label.
        denominator: float32 scalar, labels in the global batch.
        z_loss: weight of the squared log partition function.
        cut: how the rows are cut over ranks; None: ``weight_vD`` holds all of them.

    Returns:
        ``(objective, nll_N)``, equal on all ranks of a cut; only the objective carries a gradient.
    """
    options = _Options(z_loss, cut, weight_vD.shape[0] if cut is None else cut.rows)
    objective, nll_N = _HeadLoss.apply(hidden_ND, weight_vD, labels_N, denominator, options)
    return objective, nll_N
