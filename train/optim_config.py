"""The ``optimizer:``, ``schedule:`` and ``anneal:`` blocks of a training configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .config_checks import require

__all__ = ["AnnealConfig", "OptimizerConfig", "ScheduleConfig"]


@dataclass(frozen=True)
class OptimizerConfig:
    """The ``optimizer:`` block (AdamW).

    Attributes:
        lr: peak learning rate. betas, eps: Adam's. weight_decay: decoupled, on matrices.
        clip_norm: largest L2 norm of the gradients; null does not clip.
    """

    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        require(
            [
                ("lr", 0 < self.lr < float("inf"), "must be > 0"),
                ("betas", all(0 <= beta < 1 for beta in self.betas), "must lie in [0, 1)"),
                ("eps", self.eps > 0, "must be > 0"),
                ("weight_decay", self.weight_decay >= 0, "must be >= 0"),
                ("clip_norm", self.clip_norm is None or self.clip_norm > 0, "must be > 0 or null"),
            ]
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """The ``schedule:`` block; everything counts positions (samples of the plan), not steps.

    Attributes:
        kind: a row of ``train.schedule.SCHEDULES``.
        warmup_positions: linear warm-up.
        total_positions: where the decay ends; needed by every kind but ``constant``.
        final_fraction: of the peak, at the end. decay_fraction: of the positions after the warm-up (``wsd`` only).
    """

    kind: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    warmup_positions: int = 0
    total_positions: int | None = None
    final_fraction: float = 0.1
    decay_fraction: float = 0.2

    def __post_init__(self) -> None:
        total = self.total_positions
        require(
            [
                ("warmup_positions", self.warmup_positions >= 0, "must be >= 0"),
                ("total_positions", self.kind == "constant" or total is not None, f"{self.kind} needs it"),
                ("total_positions", self.kind != "constant" or total is None, "constant has no end"),
                ("total_positions", total is None or total > self.warmup_positions, "must lie behind the warm-up"),
                ("final_fraction", 0 <= self.final_fraction <= 1, "must lie in [0, 1]"),
                ("decay_fraction", 0 < self.decay_fraction <= 1, "must lie in (0, 1]"),
            ]
        )


@dataclass(frozen=True)
class AnnealConfig:
    """The ``anneal:`` block: a last stage in which the learning rate falls and the mixture changes together.

    It may be added to a run, or changed, as long as it has not begun.

    Attributes:
        start: first position, a multiple of 256. positions: over how many the rate falls.
        weights: of the sources from ``start`` on, as a stage of ``data.mixture``; null: they stay.
        kind: how the rate falls. final_fraction: of the rate at ``start``, at the end and behind it.
    """

    start: int
    positions: int
    weights: Mapping[str, float] | None = None
    kind: Literal["linear", "cosine"] = "linear"
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        weights = {"any": 1.0} if self.weights is None else self.weights
        possible = all(0 <= weight < float("inf") for weight in weights.values()) and any(weights.values())
        require(
            [
                ("weights", possible, "must be finite and >= 0, one of them > 0"),
                ("start", self.start >= 0 and self.start % 256 == 0, "must be a multiple of 256, >= 0"),
                ("positions", self.positions >= 1, "must be >= 1"),
                ("final_fraction", 0 <= self.final_fraction <= 1, "must lie in [0, 1]"),
            ]
        )
