"""The process group of a training run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from loader.errors import RefusedError

from .launch import place

__all__ = ["World", "join_world"]

_TIMEOUT_S = 600


@dataclass(frozen=True)
class World:
    """The process group.

    Attributes:
        rank: of this process. size: number of processes.
        saving: a group of its own for checkpoints that are written beside the training, or None outside of one.
    """

    rank: int = 0
    size: int = 1
    saving: dist.ProcessGroup | None = None

    def sum_(self, tensor: Tensor) -> None:
        """Sum over ranks in place; nothing in a world of one, where it would only wake gloo's threads."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def sum_int(self, value: int) -> int:
        """Sum of one exact number over ranks."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(tensor)
        return int(tensor)


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """Join the process group of the environment (a world of one when there is none) and leave it in order.

    Raises:
        RefusedError: more than one process; data parallel training has no parity test yet.
    """
    here = place()
    if here.size != 1:
        raise RefusedError(
            "TR-LAUNCH-WORLD", f"{here.size} processes", expected="one process: parallel training is not there yet"
        )
    hook = sys.excepthook  # torch puts its own in front at every call
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    # A world of one needs no port: two runs on one machine cannot collide.
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group(backend, store=HashStore(), rank=here.rank, world_size=here.size, timeout=timeout)
    try:
        saving = dist.new_group(backend="gloo")
        yield World(here.rank, here.size, saving if isinstance(saving, dist.ProcessGroup) else None)
        dist.barrier()  # leaving while a peer still sends aborts it
    finally:
        sys.excepthook = hook
        dist.destroy_process_group()
