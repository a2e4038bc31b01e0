"""What a checkpoint weighs: parameters and both AdamW moments in float32, and a step counter for each tensor."""

from __future__ import annotations

from dataclasses import dataclass

from ..model_shape import ModelShape
from .parameters import count_parameters

__all__ = ["Checkpoints", "checkpoint_bytes", "num_tensors"]

_BYTES_A_PARAMETER = 12
_STEP_BYTES = 4


def num_tensors(model: ModelShape) -> int:
    """Parameters as tensors: seven matrices and two norms a block (four with QK-norm), tables, the last norm."""
    return model.layers * (11 if model.qk_norm else 9) + (2 if model.tied else 3)


def checkpoint_bytes(model: ModelShape) -> int:
    """Bytes of the tensors of one checkpoint, whatever the mesh; DCP's index and our record are small beside them."""
    return _BYTES_A_PARAMETER * count_parameters(model).total + _STEP_BYTES * num_tensors(model)


@dataclass(frozen=True)
class Checkpoints:
    """What a run writes.

    Attributes:
        size_bytes: of one. every_steps: between two. steps: of the run.
        retained: the last ones, those of single days and of the watch over spikes; pinned ones come on top.
    """

    size_bytes: int
    every_steps: int
    steps: int
    retained: int

    @property
    def count(self) -> int:
        """Saved over the run: before the first step, every so many, and behind the last."""
        return 1 + -(-self.steps // self.every_steps)

    @property
    def kept(self) -> int:
        """On disk at once, the one being written included."""
        return min(self.count, self.retained + 1)

    @property
    def disk_bytes(self) -> int:
        """Needed at once."""
        return self.kept * self.size_bytes

    @property
    def written_bytes(self) -> int:
        """Over the run."""
        return self.count * self.size_bytes
