"""AdamW on float32 masters: clipping and skipping without a host synchronisation, every rank its own part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .loss_scale import LossScale
from .optim_config import OptimizerConfig
from .parallel.shards import local, own_gradient, rewrap

__all__ = ["Norms", "Optimizer", "Shared"]


@dataclass(frozen=True)
class Norms:
    """Scalars on the device, float32, equal on every rank.

    Attributes:
        gradient: L2 norm of all gradients before clipping.
        update_square: square of the L2 norm of the Adam update of this rank's part of the parameters, such that the
            sum over ranks is that of all (learning rate included, decoupled weight decay left out).
        finite: 0.0 if loss or gradient norm is not finite, so that the update was skipped. Under a loss scale an
            overflow that the scale explains is skipped as well, but is no such step: 1.0.
    """

    gradient: Tensor
    update_square: Tensor
    finite: Tensor


@dataclass(frozen=True)
class Shared:
    """How parameters lie on the ranks.

    Attributes:
        sum_: adds a tensor up over all ranks in place.
        copies: (name, parameter) -> on how many ranks each part of it lies.
    """

    sum_: Callable[[Tensor], None] = lambda tensor: None
    copies: Callable[[str, Tensor], int] = lambda name, parameter: 1


class Optimizer:
    """AdamW; matrices decay, gains do not. Every rank updates its own part of each parameter.

    Args:
        parameters: ``(name, parameter)`` in a fixed order; tied parameters once.
        config: the ``optimizer:`` block.
        shared: how the parameters lie on the ranks; None: they are all here.
        factor: name -> learning rate as a multiple of the configured one (``train.mup``).
        scale: what the loss was multiplied with, or None.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        config: OptimizerConfig,
        shared: Shared | None = None,
        factor: Callable[[str], float] = lambda name: 1.0,
        scale: LossScale | None = None,
    ) -> None:
        self.config, self._shared, self.scale = config, shared, scale
        self.named = list(parameters)
        self.parameters = [parameter for _, parameter in self.named]
        # A plain tensor over the same memory: the update needs no collective, and no dispatch of DTensor.
        self._own = [local(parameter).detach() if shared else parameter for parameter in self.parameters]
        copies = (shared or Shared()).copies
        weights = [1.0 / copies(name, parameter) for name, parameter in self.named]
        self._weights = torch.tensor(weights, dtype=torch.float64).to(self._own[0].device)
        self._factors = [factor(name) for name, _ in self.named]
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for own, times in zip(self._own, self._factors, strict=True):
            # Decay is a share of a parameter a step at the configured rate, whatever the parameter's own rate.
            decay = config.weight_decay / times if own.ndim > 1 else 0.0
            groups.setdefault((decay, times), []).append(own)
        listed = [{"params": own, "weight_decay": decay, "times": times} for (decay, times), own in groups.items()]
        self._adam = torch.optim.AdamW(listed, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
        for parameter in self._own:
            # As torch would at the first step; made now so that a checkpoint can be loaded into a fresh optimizer.
            self._adam.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """``(name.field, tensor)`` of the whole state, in a fixed order; loading copies into these tensors."""
        for (name, parameter), own in zip(self.named, self._own, strict=True):
            state = self._adam.state[own]
            yield f"{name}.step", state["step"]
            for field in ("exp_avg", "exp_avg_sq"):
                yield f"{name}.{field}", rewrap(state[field], parameter)
        if self.scale is not None:
            yield from self.scale.state_tensors()

    def zero_gradients(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None
        for own in self._own:
            own.grad = None

    @torch.no_grad()
    def step(self, lr: float, loss: Tensor) -> Norms:
        """Clip, update, and measure; skips the update when a ``loss`` or the gradient norm is not finite.

        The skip happens on the device (AdamW's ``found_inf``), so no rank waits for the host and all decide alike.

        Args:
            lr: learning rate. loss: scalar, this rank's share of the sum of losses.
        """
        gradients = [own_gradient(parameter) for parameter in self.parameters]
        if self.scale is not None:
            torch._foreach_mul_(gradients, self.scale.value.reciprocal())
        gradient_norm, loss_finite = self._judge(gradients, loss)
        finite = (loss_finite & torch.isfinite(gradient_norm)).float()
        if self.config.clip_norm is not None:
            torch._foreach_mul_(gradients, (self.config.clip_norm / (gradient_norm + 1e-6)).clamp(max=1.0))
        for own, gradient in zip(self._own, gradients, strict=True):
            own.grad = gradient
        adam = cast(Any, self._adam)
        adam.found_inf = 1.0 - finite
        for group in adam.param_groups:
            group["lr"] = lr * group["times"]
        adam.step()
        square = torch.where(finite > 0, self._squares(self._updates(lr)), 0.0)
        if self.scale is None:
            return Norms(gradient_norm, square, finite)
        explained = (loss_finite & self.scale.explains(gradient_norm)).float()
        self.scale.update_(1.0 - finite)
        return Norms(gradient_norm, square, finite + explained)

    def _judge(self, gradients: list[Tensor], loss: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of all gradients, and whether the losses of all ranks are finite."""
        if self._shared is None:
            return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))), torch.isfinite(loss)
        both = torch.stack((self._squares(torch._foreach_norm(gradients)), loss.double()))
        self._shared.sum_(both)
        return both[0].sqrt().float(), torch.isfinite(both[1])

    def _squares(self, norms: Sequence[Tensor]) -> Tensor:
        """Sum of squares of norms, in float64, each counted once over all ranks."""
        return torch.dot(torch.stack(list(norms)).double().square(), self._weights)

    def _updates(self, lr: float) -> list[Tensor]:
        """lr * || m^ / (sqrt(v^) + eps) || a parameter, from the optimizer's state: no copy of the parameters."""
        beta1, beta2 = self.config.betas
        norms = []
        for parameter, times in zip(self._own, self._factors, strict=True):
            state = self._adam.state[parameter]
            step = state["step"]
            scale = (1 - beta2**step).sqrt() / (1 - beta1**step)
            ratio = state["exp_avg_sq"].sqrt().add_((1 - beta2**step).sqrt() * self.config.eps)
            torch.div(state["exp_avg"], ratio, out=ratio)
            norms.append(torch.linalg.vector_norm(ratio) * scale * (lr * times))
        return norms
