"""Number formats: what the matrix products compute in. Master weights, gradients and optimizer state stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

__all__ = ["PRECISIONS", "Precision"]


@dataclass(frozen=True)
class Precision:
    """One way to compute.

    Attributes:
        name: the key in the configuration.
        compute: dtype of activations and matrix products. Parameters are float32 under every entry: AdamW on low
            precision weights raises the loss floor, because small updates round away.
    """

    name: str
    compute: torch.dtype

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context in which forward passes run; a no-op for float32."""
        if self.compute is torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.compute)


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", torch.float32),
    "bf16": Precision("bf16", torch.bfloat16),
}
