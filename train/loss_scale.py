"""The loss scale of float16: gradients below 6e-8 would round to zero, so the loss is multiplied before they form.

What ``torch.amp.GradScaler`` does (Micikevicius et al., 2018), by its own kernel, but without its per-process view: the
gradient norm that decides is that of all ranks, so all of them skip, and halve the scale, together. Nothing here waits
for the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["LossScale"]

_FIRST = 65536.0
_GROWTH, _BACKOFF, _INTERVAL = 2.0, 0.5, 2000
_LEAST = 1.0


def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


@dataclass(frozen=True)
class LossScale:
    """The scale, which the checkpoint carries; its tensors change in place.

    Attributes:
        value: float32 scalar. streak: steps without overflow since the last change, int32 scalar.
    """

    value: Tensor = field(default_factory=lambda: _scalar(_FIRST, torch.float32))
    streak: Tensor = field(default_factory=lambda: _scalar(0, torch.int32))

    def to(self, device: torch.device) -> LossScale:
        """The same scale on a device."""
        return LossScale(self.value.to(device), self.streak.to(device))

    def state_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """``(name, tensor)``; loading copies into these tensors. Copies of one number each, as every rank holds it."""
        yield "loss_scale.value", self.value
        yield "loss_scale.streak", self.streak

    @torch.no_grad()
    def explains(self, norm: Tensor) -> Tensor:
        """Whether a gradient norm that is not finite may be the scale's doing: below its least value it is not."""
        return ~torch.isfinite(norm) & (self.value > _LEAST)

    @torch.no_grad()
    def update_(self, overflowed: Tensor) -> None:
        """Halve the scale after an overflow (1.0), double it after 2,000 steps without one (0.0)."""
        torch._amp_update_scale_(self.value, self.streak, overflowed, _GROWTH, _BACKOFF, _INTERVAL)
        self.value.clamp_(min=_LEAST)
