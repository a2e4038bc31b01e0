"""The numbers that a plan's arithmetic takes beside ``ModelShape``: mesh, step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Kernels", "MeshSizes", "Recompute", "StepSizes"]

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class MeshSizes:
    """Processes along each dimension; world = data x context x tensor x pipeline.

    Attributes:
        data: ranks that read different samples. sharing: how they share the state. replicas: groups of ``hsdp``.
        tensor: ranks that share every matrix. sequence: norms and residuals hold a part of the tokens too.
        vocabulary: embedding and head are cut over the tensor ranks.
        pipeline: ranks in a row. schedule: of the pipeline. stages_per_rank: of schedules with several.
        context: ranks that share the tokens of a sample. context_method: how.
    """

    data: int = 1
    sharing: Literal["ddp", "zero2", "fsdp", "hsdp"] = "fsdp"
    replicas: int = 1
    tensor: int = 1
    sequence: bool = False
    vocabulary: bool = True
    pipeline: int = 1
    schedule: str = "1f1b"
    stages_per_rank: int = 2
    context: int = 1
    context_method: str = "zigzag"

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.data * self.others

    @property
    def others(self) -> int:
        """Processes that see the same samples."""
        return self.context * self.tensor * self.pipeline

    @property
    def sharers(self) -> int:
        """Ranks that hold the same part of the model: data and context together."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Pieces that parameters, gradients and optimizer state are cut into over those ranks."""
        if self.sharing == "ddp":
            return 1
        return max(1, self.sharers // self.replicas)


@dataclass(frozen=True)
class Kernels:
    """What the kernels of a device keep for the backward pass.

    Attributes:
        fused_norm: the norm keeps its input and one number a row; else what autograd keeps of the plain formula: the
            normalised input too.
        expands_heads: keys and values are repeated for the query heads that share them.
        dense_mask: attention reads a T x T mask for each sample of a micro-batch.
        joins_documents: attention runs document by document, and the outputs are joined by a copy.
    """

    fused_norm: bool = True
    expands_heads: bool = False
    dense_mask: bool = False
    joins_documents: bool = False

    @staticmethod
    def of(device: str, attention: str) -> Kernels:
        """Those of a device and a row of ``train.attention.ATTENTION``."""
        plain = attention.startswith("sdpa_")
        return Kernels(device != "cpu", plain, attention == "sdpa_mask", attention == "sdpa_loop")


@dataclass(frozen=True)
class StepSizes:
    """One optimizer step.

    Attributes:
        global_batch: samples, all ranks together. micro_batch: samples of one forward pass of a rank.
        compute_bytes: of a number in the compute dtype: 2 (bf16, fp16) or 4.
        recompute: which activations are computed again in the backward pass.
        kernels: what autograd keeps.
    """

    global_batch: int
    micro_batch: int
    compute_bytes: int = 2
    recompute: Recompute = "none"
    kernels: Kernels = field(default_factory=Kernels)

    def micro_batches(self, data_ranks: int) -> int:
        """Forward passes of a rank in a step."""
        return max(1, -(-self.global_batch // (data_ranks * self.micro_batch)))
