"""The state of a run on its way from a living replica to one that comes: plain numbers over torchft's process group.

torchft's own transports unpickle what a peer sends; here a header of JSON says which tensors follow, and nothing in it
is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

__all__ = ["StateTransport"]

_TAG = 0


class StateTransport:
    """torchft's ``CheckpointTransport``, which it asks by name and not by class.

    Args:
        group: torchft's process group, configured for the replicas of the step.

    Limits: CPU tensors; sending ends before the step begins, so nothing is copied.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def metadata(self) -> str:
        """Nothing: the group knows the way."""
        return ""

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Mapping[str, Any], timeout: timedelta
    ) -> None:
        """Send the state of ``step`` to each of ``dst_ranks``.

        Args:
            state_dict: ``user.default.facts`` and ``torchft`` are JSON-able, ``user.default.tensors`` name -> tensor.

        Raises:
            RuntimeError: a receiver is gone.
        """
        del timeout  # the group has its own
        own = state_dict["user"]["default"]
        tensors: dict[str, Tensor] = own["tensors"]
        head = {
            "step": step,
            "torchft": state_dict["torchft"],
            "facts": own["facts"],
            "tensors": [[name, str(one.dtype).removeprefix("torch."), [*one.shape]] for name, one in tensors.items()],
        }
        data = torch.frombuffer(bytearray(json.dumps(head).encode("utf-8")), dtype=torch.uint8)
        for rank in dst_ranks:
            self._send(torch.tensor([len(data)], dtype=torch.int64), rank)
            self._send(data, rank)
            for one in tensors.values():
                self._send(one.detach().contiguous().reshape(-1).view(torch.uint8), rank)

    def _send(self, tensor: Tensor, rank: int) -> None:
        if tensor.numel():
            self._group.send([tensor], rank, _TAG).wait()

    def _receive(self, tensor: Tensor, rank: int) -> Tensor:
        if tensor.numel():
            self._group.recv([tensor], rank, _TAG).wait()
        return tensor

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:
        """What :meth:`send_checkpoint` sent.

        Raises:
            RuntimeError: the sender is gone, or sends another step or another kind of tensor.
        """
        del metadata, timeout
        size = int(self._receive(torch.zeros(1, dtype=torch.int64), src_rank))
        head = json.loads(self._receive(torch.empty(size, dtype=torch.uint8), src_rank).numpy().tobytes())
        if head["step"] != step:
            raise RuntimeError(f"the state of step {head['step']} came, that of {step} was promised")
        tensors = {}
        for name, kind, shape in head["tensors"]:
            dtype = getattr(torch, kind, None)
            if not isinstance(dtype, torch.dtype):
                raise RuntimeError(f"{name} is of no known kind: {kind}")
            whole = torch.empty(shape, dtype=dtype)
            self._receive(whole.reshape(-1).view(torch.uint8), src_rank)
            tensors[name] = whole
        return {"user": {"default": {"facts": head["facts"], "tensors": tensors}}, "torchft": head["torchft"]}

    def disallow_checkpoint(self) -> None:
        """Nothing: the state was sent when ``send_checkpoint`` returned."""

    def shutdown(self, wait: bool = True) -> None:
        """Nothing is held."""
