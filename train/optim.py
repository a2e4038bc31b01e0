"""AdamW on float32 masters, clipping without a host synchronisation, learning rates that are functions of position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .config import OptimizerConfig, ScheduleConfig

__all__ = ["SCHEDULES", "Norms", "Optimizer", "learning_rate"]


def _constant(progress: float, schedule: ScheduleConfig) -> float:
    del progress, schedule
    return 1.0


def _linear(progress: float, schedule: ScheduleConfig) -> float:
    return 1.0 - (1.0 - schedule.final_fraction) * progress


def _cosine(progress: float, schedule: ScheduleConfig) -> float:
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress))


def _wsd(progress: float, schedule: ScheduleConfig) -> float:
    """Warm-up, stable, decay: constant until the last ``decay_fraction``, then linear."""
    begin = 1.0 - schedule.decay_fraction
    return 1.0 if progress <= begin else _linear((progress - begin) / schedule.decay_fraction, schedule)


SCHEDULES: dict[str, Callable[[float, ScheduleConfig], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
}
"""kind -> factor of the peak for a progress in [0, 1] between the end of the warm-up and ``total_positions``."""


def learning_rate(position: int, peak: float, schedule: ScheduleConfig) -> float:
    """The learning rate of the step whose first surviving position is ``position``.

    Positions do not depend on batch size, rollbacks or skips of other steps, so neither does the schedule.
    """
    if position < schedule.warmup_positions:
        return peak * (position + 1) / schedule.warmup_positions
    if schedule.total_positions is None:
        return peak
    span = max(1, schedule.total_positions - schedule.warmup_positions)
    progress = min(1.0, (position - schedule.warmup_positions) / span)
    return peak * SCHEDULES[schedule.kind](progress, schedule)


@dataclass(frozen=True)
class Norms:
    """Scalars on the device, float32.

    Attributes:
        gradient: L2 norm of all gradients before clipping.
        update: L2 norm of the Adam update (learning rate included, decoupled weight decay left out).
        finite: 1.0 if the update was applied, 0.0 if it was skipped because loss or gradient norm is not finite.
    """

    gradient: Tensor
    update: Tensor
    finite: Tensor


class Optimizer:
    """AdamW; matrices decay, gains do not.

    Args:
        parameters: ``(name, parameter)`` in a fixed order; tied parameters once.
        config: the ``optimizer:`` block.
    """

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], config: OptimizerConfig) -> None:
        self.config = config
        self.named = list(parameters)
        self.parameters = [parameter for _, parameter in self.named]
        groups = [
            {"params": [p for p in self.parameters if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in self.parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
        for parameter in self.parameters:
            # As torch would at the first step; made now so that a checkpoint can be loaded into a fresh optimizer.
            self._adam.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """``(name.field, tensor)`` of the whole state, in a fixed order; loading copies into these tensors."""
        for name, parameter in self.named:
            for field in ("step", "exp_avg", "exp_avg_sq"):
                yield f"{name}.{field}", self._adam.state[parameter][field]

    def zero_gradients(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self, lr: float, loss: Tensor) -> Norms:
        """Clip, update, and measure; skips the update when ``loss`` or the gradient norm is not finite.

        The skip happens on the device (AdamW's ``found_inf``), so no rank waits for the host and all decide alike.
        """
        gradients = [cast(Tensor, parameter.grad) for parameter in self.parameters]
        gradient_norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        finite = (torch.isfinite(gradient_norm) & torch.isfinite(loss)).float()
        if self.config.clip_norm is not None:
            torch._foreach_mul_(gradients, (self.config.clip_norm / (gradient_norm + 1e-6)).clamp(max=1.0))
        adam = cast(Any, self._adam)
        adam.found_inf = 1.0 - finite
        for group in adam.param_groups:
            group["lr"] = lr
        adam.step()
        update_norm = torch.where(finite > 0, self._update_norm(lr), 0.0)
        return Norms(gradient_norm, update_norm, finite)

    def _update_norm(self, lr: float) -> Tensor:
        """lr * || m^ / (sqrt(v^) + eps) ||, from the optimizer's state: needs no copy of the parameters."""
        beta1, beta2 = self.config.betas
        squares = []
        for parameter in self.parameters:
            state = self._adam.state[parameter]
            step = state["step"]
            scale = (1 - beta2**step).sqrt() / (1 - beta1**step)
            ratio = state["exp_avg_sq"].sqrt().add_((1 - beta2**step).sqrt() * self.config.eps)
            torch.div(state["exp_avg"], ratio, out=ratio)
            squares.append(torch.linalg.vector_norm(ratio) * scale)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(squares)) * lr
        return norm
