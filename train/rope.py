"""Frequencies of the rotary positions (Su et al., 2021) and their scaling for long contexts, in float64.

The rules give the values of ``ROPE_INIT_FUNCTIONS`` in transformers, which computes them in float32.

Shape legend: C numbers of a head, f = C / 2 frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .model_config import RopeScaling

__all__ = ["ROPE_SCALINGS", "Rotation", "ntk_base", "rotation_of"]


@dataclass(frozen=True)
class Rotation:
    """What rotates: angle = token position x frequency, radians, float64; cosine and sine are multiplied by
    ``magnitude``."""

    frequencies_f: Tensor
    magnitude: float = 1.0


def _plain(base: float, head_dim: int) -> Tensor:
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def _linear(base: float, head_dim: int, scaling: RopeScaling) -> Rotation:
    return Rotation(_plain(base, head_dim) / scaling.factor)


def _ntk(base: float, head_dim: int, scaling: RopeScaling) -> Rotation:
    return Rotation(_plain(ntk_base(base, head_dim, scaling.factor), head_dim))


def ntk_base(base: float, head_dim: int, factor: float) -> float:
    """The base at which the lowest frequency is divided by ``factor`` and the highest stays."""
    return float(base * factor ** (head_dim / (head_dim - 2))) if head_dim > 2 else base


def _llama3(base: float, head_dim: int, scaling: RopeScaling) -> Rotation:
    assert scaling.original_context is not None
    frequencies_f = _plain(base, head_dim)
    turns_f = scaling.original_context * frequencies_f / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_f = ((turns_f - low) / (high - low)).clamp(0.0, 1.0)
    return Rotation(frequencies_f * (kept_f + (1 - kept_f) / scaling.factor))


def _yarn(base: float, head_dim: int, scaling: RopeScaling) -> Rotation:
    """Sections 3.2 to 3.4 of the paper: ramp over the index of the frequency, and attention's temperature."""
    context = scaling.original_context
    assert context is not None

    def index_of(turns: float) -> float:
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    frequencies_f = _plain(base, head_dim)
    index_f = torch.arange(len(frequencies_f), dtype=torch.float64)
    divided_f = ((index_f - first) / (last - first)).clamp(0.0, 1.0)
    magnitude = scaling.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return Rotation(frequencies_f * (1 - divided_f + divided_f / scaling.factor), magnitude)


ROPE_SCALINGS: dict[str, Callable[[float, int, RopeScaling], Rotation]] = {
    "linear": _linear,
    "ntk": _ntk,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""``model.rope_scaling.kind`` -> rule: (base, C, block) -> rotation."""


def rotation_of(base: float, head_dim: int, scaling: RopeScaling | None) -> Rotation:
    """The rotation of heads of ``head_dim`` numbers; ``scaling`` None: the plain one."""
    if scaling is None:
        return Rotation(_plain(base, head_dim))
    return ROPE_SCALINGS[scaling.kind](base, head_dim, scaling)
