"""Maximal update parametrisation for Adam: which tensor learns how fast (Yang et al., Tensor Programs V, 2022).

Table 8 there, with m = dim / base_dim, feed-forward width and heads growing as the model's width does:

    embedding            initialised, and learns, as at the base width
    matrices of a block  variance of the initial values 1 / fan in, learning rate / m
    head                 initialised, and learns, as at the base width; logits / m
    gains                as at the base width
    attention scores     q k / C instead of q k / sqrt(C)

The last two factors are ``ModelShape.logit_scale`` and ``query_scale``. Decoupled weight decay is per step, not per
learning rate: an optimizer that multiplies it by the learning rate must divide this factor out again.
"""

from __future__ import annotations

import math

from .model_shape import ModelShape

__all__ = ["initial_std", "lr_factor"]

_EMBEDDING_STD = 0.3
_GAIN = 0.5


def lr_factor(name: str, shape: ModelShape) -> float:
    """The learning rate of a parameter as a multiple of the configured one; 1 without muP.

    Args:
        name: as ``Decoder.named_parameters`` has it.
        shape: of the model.
    """
    if shape.mup is None or not _is_block_matrix(name):
        return 1.0
    return shape.mup.base_dim / shape.dim


def _is_block_matrix(name: str) -> bool:
    return name.startswith("blocks.") and not name.endswith("norm.weight")


def initial_std(name: str, fan_in: int, shape: ModelShape) -> float:
    """Standard deviation of a matrix's initial values.

    0.5 / sqrt(fan in); projections back into the residual stream smaller by sqrt(2 x layers); embedding 0.3, but as the
    head's where they are one, or the first logits would grow with the width. Under muP the head has the fan in of the
    base width, as its output is divided by m already.
    """
    if name.startswith("embedding") and not shape.tied:
        return _EMBEDDING_STD
    if name.startswith(("embedding", "head")):
        fan_in = shape.dim if shape.mup is None else shape.mup.base_dim
    std = _GAIN / math.sqrt(fan_in)
    if name.endswith(("attention.out.weight", "ffn.down.weight")):
        std /= math.sqrt(2 * shape.layers)
    return std
