"""How a training process starts, and the only place in ``train`` that reads environment variables.

``tokenreel train`` replaces itself by ``python -m train.main`` with the variables that torchrun would set, so that one
process and many take the same path. PYTHONSAFEPATH=1 keeps a user's own ``train.py`` from shadowing the package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from loader.errors import RefusedError
from loader.settings import child_environment

__all__ = ["World", "child_command", "exec_training", "training_environment", "under_torchrun", "world"]

_TIMEOUT_S = 600


@dataclass(frozen=True)
class World:
    """The process group.

    Attributes:
        rank: of this process. size: number of processes. attempt: restarts that torchrun has made.
    """

    rank: int = 0
    size: int = 1
    attempt: int = 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum over ranks in place."""
        if dist.is_initialized():
            dist.all_reduce(tensor)

    def sum_int(self, value: int) -> int:
        """Sum of one exact number over ranks."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(tensor)
        return int(tensor)


def under_torchrun() -> bool:
    """Whether torchrun (or our own launcher) set this process's place."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def training_environment(threads: int) -> dict[str, str]:
    """The environment of a lone training process: torchrun's variables for a world of one, and a fixed thread count."""
    single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    # cuBLAS is deterministic only with a fixed workspace; it must be set before the context exists.
    return child_environment(**single, OMP_NUM_THREADS=str(threads), CUBLAS_WORKSPACE_CONFIG=":4096:8")


def child_command(arguments: Sequence[str]) -> list[str]:
    """The command that trains: ``python -m train.main ARGUMENTS``."""
    return [sys.executable, "-m", "train.main", *arguments]


def exec_training(arguments: Sequence[str], threads: int) -> NoReturn:
    """Become the training process: signals, exit code and process id are then its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, child_command(arguments), training_environment(threads))  # noqa: S606 - no shell wanted


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the process group of the environment (a world of one when there is none) and leave it in order.

    Raises:
        RefusedError: more than one process; data parallel training has no parity test yet.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size != 1:
        raise RefusedError(
            "TR-LAUNCH-WORLD", f"{size} processes", expected="one process: parallel training is not there yet"
        )
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    # A world of one needs no port: two runs on one machine cannot collide.
    dist.init_process_group(
        backend, store=HashStore(), rank=rank, world_size=size, timeout=timedelta(seconds=_TIMEOUT_S)
    )
    try:
        yield World(rank, size, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        dist.barrier()  # leaving while a peer still sends aborts it
    finally:
        dist.destroy_process_group()
