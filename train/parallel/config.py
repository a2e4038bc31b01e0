"""The ``parallel:`` block: over how many processes each dimension of the mesh goes, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..config_checks import require

__all__ = ["ParallelConfig"]


@dataclass(frozen=True)
class ParallelConfig:
    """The mesh: processes = data x context x tensor x pipeline; ``data`` is what the other three leave.

    It may change at any start: the token stream stays the same, rounding does not.

    Attributes:
        data: how the ranks that read different samples share the state (a row of ``parallel.data.DATA``).
            ``fsdp`` cuts parameters, gradients and optimizer state (ZeRO-3), ``zero2`` keeps the parameters whole
            between forward and backward, ``hsdp`` cuts inside each of ``replicas`` groups, ``ddp`` cuts nothing.
        replicas: of ``hsdp``; divides the data ranks.
        reduce: gradients go over the ranks behind the ``last`` micro-batch of a step, or behind ``each``: more traffic,
            but no rank ever holds a whole gradient.
        prefetch_blocks: blocks whose parameters are gathered ahead of the one that computes.
        tensor: ranks that share every matrix; they divide heads, kv_heads and ffn.
        sequence: with ``tensor``: norms and residuals hold a part of the tokens too (sequence parallel).
        vocabulary: with ``tensor``: embedding and head are cut by vocabulary, the loss with them (loss parallel).
        pipeline: ranks in a row, each with some of the blocks.
        schedule: of the pipeline (a row of ``parallel.pipeline.SCHEDULES``).
        stages_per_rank: of the interleaved schedules.
        context: ranks that share the tokens of every sample.
        context_method: a row of ``parallel.context.CONTEXT_METHODS``.
    """

    data: Literal["ddp", "zero2", "fsdp", "hsdp"] = "fsdp"
    replicas: int = 1
    reduce: Literal["last", "each"] = "last"
    prefetch_blocks: int = 1
    tensor: int = 1
    sequence: bool = False
    vocabulary: bool = True
    pipeline: int = 1
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"] = "1f1b"
    stages_per_rank: int = 2
    context: int = 1
    context_method: Literal["zigzag", "ulysses"] = "zigzag"

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("replicas", "tensor", "pipeline", "stages_per_rank", "context")}
        require(
            [
                *((name, size >= 1, "must be >= 1") for name, size in sizes.items()),
                ("prefetch_blocks", self.prefetch_blocks >= 1, "must be >= 1"),
                ("reduce", self.reduce == "last" or self.pipeline == 1, "a pipeline reduces behind the last one"),
                ("replicas", self.replicas == 1 or self.data == "hsdp", "only hsdp has replicas"),
                ("sequence", not self.sequence or self.tensor > 1, "needs tensor > 1"),
            ]
        )
