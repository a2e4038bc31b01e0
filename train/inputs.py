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

from .attention import AttentionBackend, LayoutOptions
from .device import to_device
from .head import IGNORED

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = ["InputOptions", "ModelInputs", "idle_inputs", "micro_batches", "to_inputs"]


@dataclass(frozen=True)
class ModelInputs:
    """One micro-batch on the device.

    Attributes:
        tokens_BT: int64. labels_BT: int64, -100 ignored. token_positions_BT: int64, restart at every segment.
        layout: what the attention backend prepared from the segment numbers.
        positions_B: positions of the samples in the plan, int64 on the host.
        token_index_T: where this rank's tokens lie in the whole sample, int64 on the host; None: they are all here.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    token_positions_BT: Tensor
    layout: Any
    positions_B: NDArray[np.int64] | None = None
    token_index_T: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class InputOptions:
    """Where inputs go and for which kernel.

    Attributes:
        device, attention, compute: device, attention backend, compute dtype.
        token_index_T: the tokens of each sample that this rank computes (context parallelism); None: all.
    """

    device: torch.device
    attention: AttentionBackend
    compute: torch.dtype
    token_index_T: NDArray[np.int64] | None = None


def _to_device(array_BT: NDArray[Any], options: InputOptions) -> Tensor:
    if options.token_index_T is not None:
        array_BT = array_BT[:, options.token_index_T]
    return to_device(array_BT.astype(np.int64), options.device)


def _layout(batch: Batch) -> LayoutOptions:
    """The loader pads ``cu_seqlens_C`` to the most segments a sample of the run can have: layouts get one shape."""
    num_samples = len(batch.positions_B)
    return LayoutOptions((len(batch.cu_seqlens_C) - 1) // num_samples if num_samples else None)


def to_inputs(batch: Batch, options: InputOptions, rows: slice = slice(None)) -> ModelInputs:
    """The samples ``rows`` of ``batch`` on the device."""
    return ModelInputs(
        _to_device(batch.tokens_BT[rows], options),
        _to_device(batch.labels_BT[rows], options),
        _to_device(batch.token_positions_BT[rows], options),
        options.attention.prepare(batch.segment_of_BT[rows], options.device, options.compute, _layout(batch)),
        batch.positions_B[rows],
        options.token_index_T,
    )


def idle_inputs(batch: Batch, options: InputOptions) -> ModelInputs:
    """One sample without labels, for a rank that has fewer samples than the others: collectives need every rank.

    Its gradient is exactly zero. Position -1 stands for no sample.
    """
    tokens_1T = np.full((1, batch.tokens_BT.shape[1]), 0, dtype=np.int64)
    index_1T = np.arange(tokens_1T.shape[1])[None]
    return ModelInputs(
        _to_device(tokens_1T, options),
        _to_device(np.full_like(tokens_1T, IGNORED), options),
        _to_device(index_1T, options),
        options.attention.prepare(tokens_1T, options.device, options.compute, _layout(batch)),
        np.array([-1], dtype=np.int64),
        options.token_index_T,
    )


def micro_batches(num_samples: int, micro_batch: int | None, most_samples: int | None = None) -> list[slice]:
    """Consecutive slices of at most ``micro_batch`` samples (None: one slice) that cover ``num_samples`` in order.

    Args:
        most_samples: of any rank; slices without samples follow until the rank has as many as that one.
    """
    most = num_samples if most_samples is None else most_samples
    size = max(1, micro_batch or most)
    return [slice(min(start, num_samples), min(start + size, num_samples)) for start in range(0, most, size)]
