"""Recycled memory: never while anything looks at it, always afterwards, never more than the limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loader.stream.buffers import BufferPool

SHAPE = (512, 1024)


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array,
        lambda array: array[3:5],
        lambda array: array.reshape(-1)[7:].reshape(-1, 1)[::3],
        lambda array: array.view(np.uint8)[5:, 2:].T,
        lambda array: np.asarray(memoryview(array[9])),
        lambda array: torch.from_numpy(array)[1:].flatten()[4:],
        lambda array: np.lib.stride_tricks.sliding_window_view(array[0], 4),
    ],
)
def test_memory_stays_while_any_view_lives(view: Callable[[Any], Any]) -> None:
    pool = BufferPool()
    array = pool.empty(SHAPE, np.int32)
    address, held = _address(array), view(array)
    del array
    assert pool.kept_bytes == 0
    assert _address(pool.empty(SHAPE, np.int32)) != address
    del held
    assert pool.kept_bytes > 0
    assert address in {_address(one) for one in [pool.empty(SHAPE, np.int32), pool.empty(SHAPE, np.int32)]}


def test_other_shapes_of_the_same_size_share_memory() -> None:
    pool = BufferPool()
    address = _address(pool.empty(SHAPE, np.int32))
    other = pool.empty((1024, 1024), np.uint16)
    assert (_address(other), other.shape, other.dtype) == (address, (1024, 1024), np.uint16)
    other[:] = 5


def test_no_more_is_kept_than_the_limit() -> None:
    pool = BufferPool(limit_bytes=5 << 20)
    arrays = [pool.empty(SHAPE, np.int32) for _ in range(6)]
    del arrays
    assert pool.kept_bytes == 2 * 512 * 1024 * 4


def test_small_arrays_are_left_to_numpy() -> None:
    pool = BufferPool()
    pool.empty((10, 10), np.int32)
    assert pool.kept_bytes == 0
    assert pool.empty((0, 7), np.int32).shape == (0, 7)


def test_threads_never_share_an_array() -> None:
    pool = BufferPool()
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(60):
            array = pool.empty(SHAPE, np.int32)
            array.fill(number * 1000 + turn)
            held = array[::64]
            del array
            if (held != number * 1000 + turn).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
