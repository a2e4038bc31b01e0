"""Batches as torch tensors, and the stream as an ``IterableDataset``. The only module of the loader that imports torch.

from loader.stream.open import open_stream
from loader.torch_adapter import to_torch

with open_stream("data/demo", global_batch=64) as stream:
    for batch in stream:
        tensors = to_torch(batch, "cuda")
        loss = model(tensors.tokens_BT, tensors.labels_BT, tensors.cu_seqlens_C)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .errors import ConfigError
from .stream.batch import Batch
from .stream.stream import Stream

__all__ = ["TensorBatch", "TorchStream", "to_torch"]


@dataclass(frozen=True)
class TensorBatch:
    """A batch on a device; shapes and meaning as in ``stream.batch.Batch``.

    Attributes:
        step: optimizer step.
        tokens_BT, labels_BT: int64; ``-100`` is no label, as ``cross_entropy`` ignores it.
        token_positions_BT, segment_of_BT: int64.
        cu_seqlens_C: int32, fixed length.
        max_seqlen: T.
        source: the batch in numpy, with its segments and documents.
    """

    step: int
    tokens_BT: Tensor
    labels_BT: Tensor
    token_positions_BT: Tensor
    segment_of_BT: Tensor
    cu_seqlens_C: Tensor
    max_seqlen: int
    source: Batch


def to_torch(batch: Batch, device: str | torch.device = "cpu") -> TensorBatch:
    """Copy a batch to ``device``; to a GPU through pinned memory and without waiting for it."""
    target = torch.device(device)

    def move(array: NDArray[np.int32], dtype: torch.dtype) -> Tensor:
        tensor = torch.from_numpy(array).to(dtype, copy=True)
        if target.type == "cuda":
            return tensor.pin_memory().to(target, non_blocking=True)
        return tensor.to(target)

    return TensorBatch(
        step=batch.step,
        tokens_BT=move(batch.tokens_BT, torch.int64),
        labels_BT=move(batch.labels_BT, torch.int64),
        token_positions_BT=move(batch.token_positions_BT, torch.int64),
        segment_of_BT=move(batch.segment_of_BT, torch.int64),
        cu_seqlens_C=move(batch.cu_seqlens_C, torch.int32),
        max_seqlen=batch.max_seqlen,
        source=batch,
    )


class TorchStream(IterableDataset[TensorBatch]):
    """A stream for ``DataLoader(TorchStream(stream), batch_size=None)``; it is batched and prefetched already.

    ``state_dict`` and ``load_state_dict`` are the stream's, as stateful loaders expect them.
    """

    def __init__(self, stream: Stream, device: str | torch.device = "cpu") -> None:
        """``device``: where the tensors go."""
        super().__init__()
        self._stream = stream
        self._device = device

    def __iter__(self) -> Iterator[TensorBatch]:
        """Batches from where the stream stands, without end.

        Raises:
            ConfigError: inside a DataLoader worker process. Threads read ahead already; processes would only repeat
                each other's batches.
        """
        if get_worker_info() is not None:
            raise ConfigError(
                "TR-STREAM-WORKERS", "DataLoader workers", "num_workers", "num_workers=0: threads prefetch"
            )
        for batch in self._stream:
            yield to_torch(batch, self._device)

    def state_dict(self) -> dict[str, Any]:
        """The stream's Cursor."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a Cursor; see ``Stream.load_state_dict``."""
        self._stream.load_state_dict(state)
