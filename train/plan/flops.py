"""What computing activations again costs; the useful operations are ``metrics.flops.token_flops``."""

from __future__ import annotations

from ..metrics.flops import token_flops
from ..model_shape import ModelShape
from .sizes import StepSizes

__all__ = ["recomputed_fraction"]


def recomputed_fraction(model: ModelShape, step: StepSizes) -> float:
    """FLOPs that computing activations again adds, as a fraction of the useful ones; they count in no MFU.

    ``full`` runs every block's forward pass once more; ``selective`` keeps what matrices and attention gave, so what it
    computes again (norms, rotations, products of the gate) is not worth counting.
    """
    if step.recompute != "full":
        return 0.0
    flops = token_flops(model)
    blocks = token_flops(model, head=False)
    return blocks.total / 3 / flops.total
