"""From a loader batch (numpy, host) to what the model reads (torch, device), cut into micro-batches.

Shape legend: B samples of a micro-batch, T tokens of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .attention import AttentionBackend

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = ["InputOptions", "ModelInputs", "micro_batches", "to_inputs"]


@dataclass(frozen=True)
class ModelInputs:
    """One micro-batch on the device.

    Attributes:
        tokens_BT: int64. labels_BT: int64, -100 ignored. token_positions_BT: int64, restart at every segment.
        layout: what the attention backend prepared from the segment numbers.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    token_positions_BT: Tensor
    layout: Any


@dataclass(frozen=True)
class InputOptions:
    """Where inputs go and for which kernel: device, attention backend, compute dtype."""

    device: torch.device
    attention: AttentionBackend
    compute: torch.dtype


def _to_device(array_BT: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array_BT.astype(np.int64)).to(device, non_blocking=True)


def to_inputs(batch: Batch, options: InputOptions, rows: slice = slice(None)) -> ModelInputs:
    """The samples ``rows`` of ``batch`` on the device."""
    segment_of_BT = batch.segment_of_BT[rows]
    return ModelInputs(
        _to_device(batch.tokens_BT[rows], options.device),
        _to_device(batch.labels_BT[rows], options.device),
        _to_device(batch.token_positions_BT[rows], options.device),
        options.attention.prepare(segment_of_BT, options.device, options.compute),
    )


def micro_batches(num_samples: int, micro_batch: int | None) -> list[slice]:
    """Consecutive slices of at most ``micro_batch`` samples (None: one slice) that cover ``num_samples`` in order."""
    size = micro_batch or num_samples
    return [slice(start, min(start + size, num_samples)) for start in range(0, num_samples, max(1, size))]
