"""Bytes of live tensors while a step runs: every storage that an operation makes is counted until it is freed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):
    """Counts storages made while it is active; what an operation uses inside itself is not seen.

    Args:
        known: tensors that exist already: counted once, from the start.

    Attributes:
        live: bytes now. peak: most bytes so far.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()
        self._kept = list(known)
        for tensor in self._kept:
            self._count(tensor, for_good=True)

    def _count(self, tensor: Tensor, *, for_good: bool = False) -> None:
        storage = tensor.untyped_storage()
        key, size_bytes = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size_bytes
        self.peak = max(self.peak, self.live)
        if not for_good:
            weakref.finalize(storage, self._forget, key, size_bytes)

    def _forget(self, key: int, size_bytes: int) -> None:
        self._seen.discard(key)
        self.live -= size_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return out
