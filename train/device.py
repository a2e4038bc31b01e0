"""The device of a process: the CPU, or the accelerator of its local rank, of which nothing has been executed yet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loader.errors import ConfigError

from .launch import place

__all__ = ["take_device", "to_device"]


def take_device(name: str) -> torch.device:
    """Make the device of ``run.device`` this process's own.

    Raises:
        ConfigError: there is none, or fewer than processes on this machine.
    """
    if name == "cpu":
        return torch.device("cpu")
    count, here = torch.cuda.device_count(), place().local_rank
    if not torch.cuda.is_available() or here >= count:
        raise ConfigError(
            "TR-TRAIN-DEVICE", f"process {here} of this machine finds {count} CUDA devices", "run.device",
            "a device for every process of a machine", "tokenreel doctor CONFIG, or run.device: cpu",
        )  # fmt: skip
    torch.cuda.set_device(here)
    return torch.device("cuda", here)


def to_device(array: Any, device: torch.device) -> Tensor:
    """A numpy array on the device; from pinned memory where that lets the copy run beside the computation."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
