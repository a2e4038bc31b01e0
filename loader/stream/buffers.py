"""Arrays whose memory is used again once nobody looks at it: fresh pages can cost more than filling them.

An array from the pool is an ordinary array. Its memory returns when it and every view of it are gone, whoever held
them: views keep the array object alive through their ``base``, and a finalizer of that object gives the memory back.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["BufferPool"]

_SMALL_BYTES = 1 << 18


class BufferPool:
    """Recycles the memory of large arrays; threads may share it.

    Args:
        limit_bytes: most memory kept for later; what comes back above it is freed.
    """

    def __init__(self, limit_bytes: int = 1 << 28) -> None:
        self._limit_bytes = limit_bytes
        self._begin()
        begin = weakref.WeakMethod(self._begin)
        # A thread may hold the lock while another one forks: in the child nobody would ever give it back.
        os.register_at_fork(after_in_child=lambda: (again := begin()) and again())

    def _begin(self) -> None:
        self._kept_bytes = 0
        self._free: dict[int, list[memoryview]] = defaultdict(list)
        self._lock = threading.RLock()  # a finalizer may run while this very thread holds it

    @property
    def kept_bytes(self) -> int:
        """Memory that waits to be used again."""
        return self._kept_bytes

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array with arbitrary contents, like ``np.empty``."""
        kind = np.dtype(dtype)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if size_bytes < _SMALL_BYTES:
            return np.empty(shape, kind)
        with self._lock:
            memory = self._free[size_bytes].pop() if self._free.get(size_bytes) else None
            self._kept_bytes -= 0 if memory is None else size_bytes
        if memory is None:
            memory = np.empty(size_bytes, np.uint8).data
        # Over a memoryview, not over the array behind it: numpy would let views skip this object and point at that one.
        array = np.frombuffer(memory, kind)
        finalizer = weakref.finalize(array, self._give_back, memory)
        finalizer.atexit = False
        return array.reshape(shape)

    def _give_back(self, memory: memoryview) -> None:
        with self._lock:
            if self._kept_bytes + memory.nbytes <= self._limit_bytes:
                self._free[memory.nbytes].append(memory)
                self._kept_bytes += memory.nbytes
