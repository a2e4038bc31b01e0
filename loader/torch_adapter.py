"""Batches as torch tensors, the stream as a dataset of a DataLoader. The only module of the loader that imports torch.

from loader.stream.open import open_stream
from loader.torch_adapter import to_torch

with open_stream("data/demo", global_batch=64) as stream:
    for batch in stream:
        tensors = to_torch(batch, "cuda")
        loss = model(tensors.tokens_BT, tensors.labels_BT, tensors.cu_seqlens_C)

B samples of this rank, T tokens a sample, C borders of segments (``stream.batch``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .errors import ConfigError, DamageError
from .order.weights import POSITION_LIMIT
from .stream.arguments import integer_problems, refuse
from .stream.batch import Batch, read_positions
from .stream.stream import Stream

__all__ = ["SampleDataset", "TensorBatch", "TorchStream", "to_torch"]

_TENSORS = ("tokens_BT", "labels_BT", "token_positions_BT", "segment_of_BT", "cu_seqlens_C")


@dataclass(frozen=True)
class TensorBatch:
    """A batch on a device; shapes and meaning as in ``stream.batch.Batch``. The tensors are the reader's own.

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
    """Copy a batch to ``device``; to a GPU from pinned memory and without waiting for it, on the current CUDA stream.

    torch gives pinned memory away again only when the copies out of it are done.
    """
    target = torch.device(device)
    pinned = target.type == "cuda"

    def move(array: NDArray[np.int32], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(array.shape, dtype=dtype, pin_memory=pinned)
        tensor.copy_(torch.from_numpy(array))
        return tensor.to(target, non_blocking=pinned)

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


def _refuse_workers() -> None:
    if get_worker_info() is not None:
        raise ConfigError("TR-STREAM-WORKERS", "DataLoader workers", "num_workers", "num_workers=0: threads prefetch")


class TorchStream(IterableDataset[TensorBatch]):
    """A stream for ``DataLoader(TorchStream(stream), batch_size=None)``; it is batched and prefetched already.

    On a GPU the next batch is copied on a CUDA stream of its own while the last one is computed with. ``state_dict``
    and ``load_state_dict`` are those of a torchdata ``Stateful``: they stand behind the batch handed out last, whatever
    is on its way.
    """

    def __init__(self, stream: Stream, device: str | torch.device = "cpu") -> None:
        """``device``: where the tensors go."""
        super().__init__()
        self._stream = stream
        self._device = torch.device(device)
        self._next_step = stream.next_step
        self._ahead: deque[TensorBatch] = deque()
        on_gpu = self._device.type == "cuda"
        self._copying = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[TensorBatch]:
        """Batches from where it stands, to the end of the plan.

        Raises:
            ConfigError: inside a DataLoader worker process. Threads read ahead already; processes would only repeat
                each other's batches.
        """
        _refuse_workers()
        while (tensors := self._take()) is not None:
            self._next_step = tensors.step + 1
            yield tensors

    def _take(self) -> TensorBatch | None:
        if self._copying is None:
            batch = next(self._stream, None)
            return None if batch is None else to_torch(batch, self._device)
        while len(self._ahead) < 2 and (batch := next(self._stream, None)) is not None:
            with torch.cuda.stream(self._copying):
                self._ahead.append(to_torch(batch, self._device))
        if not self._ahead:
            return None
        tensors, current = self._ahead.popleft(), torch.cuda.current_stream(self._device)
        current.wait_stream(self._copying)
        for name in _TENSORS:  # their memory must not be given away while this stream works with it
            getattr(tensors, name).record_stream(current)
        return tensors

    def state_dict(self) -> dict[str, Any]:
        """The Cursor behind the batch handed out last."""
        return self._stream.state_dict(self._next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a Cursor; see ``Stream.load_state_dict``. An iterator that is under way goes on from there."""
        self._stream.load_state_dict(state)
        self._next_step = self._stream.next_step
        self._ahead.clear()

    def __getstate__(self) -> object:
        """A worker process started by spawn would need this: refused like any other."""
        raise ConfigError("TR-STREAM-WORKERS", "DataLoader workers", "num_workers", "num_workers=0: threads prefetch")


class SampleDataset(IterableDataset[dict[str, Tensor]]):
    """One sample at a time, for trainers that collate themselves: what Composer and llm-foundry ask of a dataset.

    ``DataLoader(dataset, batch_size=B)`` gives this rank's part of the global batch, in order, for ``global_batch = B x
    ranks``. An epoch is ``epoch_size`` positions of the plan, rounded down to whole steps; the next ``iter`` goes on
    with the next one. A DataLoader does not tell its ``batch_size``: any other than ``batch_size`` here cuts steps
    apart, and with ``drop_last`` loses the rest of every epoch; ``state_dict`` refuses to stand inside a step.
    """

    def __init__(self, stream: Stream, epoch_size: int | None = None) -> None:
        """``epoch_size``: positions; default: as many as the Datasets have samples.

        Raises:
            ConfigError: the global batch changes, cannot be shared evenly, or an epoch is shorter than a step.
        """
        super().__init__()
        if epoch_size is not None:
            refuse("SampleDataset", integer_problems("epoch_size", epoch_size, 1, POSITION_LIMIT))
        ranks, stages = stream.config.num_data_ranks, stream.plan.schedule.stages
        self.global_batch = stages[0].global_batch
        self.batch_size = self.global_batch // ranks
        if len(stages) > 1 or self.global_batch % ranks:
            expected = f"one batch size that {ranks} ranks share evenly"
            raise ConfigError("TR-STREAM-EPOCH", f"global batch {self.global_batch}", "batch", expected)
        self.size = sum(int(stream.sources.shard_samples(name).sum()) for name in stream.sources.names)
        self.epoch_steps = (self.size if epoch_size is None else epoch_size) // self.global_batch
        if self.epoch_steps < 1:
            raise ConfigError(
                "TR-STREAM-EPOCH", "an epoch shorter than a step", "epoch_size", f">= {self.global_batch}"
            )
        self._stream = stream
        self._began = self._next_step = stream.next_step

    @property
    def num_samples(self) -> int:
        """Positions of an epoch over all ranks."""
        return self.epoch_steps * self.global_batch

    def __len__(self) -> int:
        """Samples of an epoch that this rank gets."""
        return self.epoch_steps * self.batch_size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """The sample at a surviving position of the plan: ``tokens``, ``labels``, ``position_ids``, ``segment_ids``,
        each int64 of length T.

        Raises:
            IndexError: no position of a plan.
            DamageError: it is damaged on disk.
        """
        if not 0 <= index < POSITION_LIMIT:
            raise IndexError(f"no position {index}: from 0, below 2^36")
        batch = read_positions(self._stream.plan, self._stream.sources, np.array([index], np.int64))
        return self._samples(replace(batch, step=0))[0]

    @staticmethod
    def _samples(batch: Batch) -> list[dict[str, Tensor]]:
        tensors = to_torch(batch)
        segment_BT = tensors.segment_of_BT - tensors.segment_of_BT[:, :1]
        columns = {
            "tokens": tensors.tokens_BT,
            "labels": tensors.labels_BT,
            "position_ids": tensors.token_positions_BT,
            "segment_ids": segment_BT,
        }
        return [{name: column[row] for name, column in columns.items()} for row in range(len(segment_BT))]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The samples of the rest of the epoch, step by step; of an epoch in which the plan ends, the whole steps.

        Raises:
            ConfigError: inside a DataLoader worker process, as ``TorchStream``; or the plan has ended, which a trainer
                that counts epochs would take for an epoch, again and again.
        """
        _refuse_workers()
        if self._next_step >= self._stream.plan.num_steps:
            expected = f"at most {self._stream.plan.num_steps} steps"
            raise ConfigError("TR-STREAM-ENDED", "the plan has ended", f"step {self._next_step}", expected)
        stop = (self._next_step // self.epoch_steps + 1) * self.epoch_steps
        while self._next_step < stop and (batch := next(self._stream, None)) is not None:
            self._next_step = batch.step + 1
            yield from self._samples(batch)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """The state behind ``num_samples`` samples of all ranks, counted from the beginning of the epoch, or else from
        where this process began or resumed; JSON-able.

        Raises:
            ConfigError: that is inside a step, or was not reached.
        """
        refuse("state_dict", integer_problems("num_samples", num_samples, 0, POSITION_LIMIT))
        steps, inside = divmod(num_samples, self.global_batch)
        if inside:
            expected = f"a multiple of {self.global_batch}"
            raise ConfigError("TR-STREAM-EPOCH", f"{num_samples} samples", "state_dict", expected)
        step = self._began + steps
        if from_beginning:
            step = self._next_step // self.epoch_steps * self.epoch_steps + steps
            step -= self.epoch_steps if step > self._next_step else 0  # the next epoch was begun, or is about to be
        epoch, done = divmod(step, self.epoch_steps)
        return {
            "epoch": epoch,
            "sample_in_epoch": done * self.global_batch,
            "cursor": self._stream.state_dict(step),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a state of :meth:`state_dict`, on any number of ranks.

        Raises:
            DamageError: it is no such state.
            RefusedError: it belongs to other data, another order or other skips.
        """
        if not isinstance(state, Mapping) or "cursor" not in state:
            expected = "what SampleDataset.state_dict gave"
            raise DamageError("TR-CURSOR-DAMAGED", "this is no state of a SampleDataset", None, expected)
        self._stream.load_state_dict(state["cursor"])
        self._began = self._next_step = self._stream.next_step
