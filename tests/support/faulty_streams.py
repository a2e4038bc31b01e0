"""Reading a stream up to the fault that a test put in its way."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from loader.errors import TokenreelError
from loader.stream.batch import Batch
from loader.stream.stream import Stream

__all__ = ["run_into"]


def run_into(stream: Stream, steps: int, is_right: Callable[[int, Batch], bool]) -> TokenreelError:
    """Read until the stream raises, soon, at the step where it stands; every batch before must be the right one."""
    start = time.monotonic()
    for step in range(steps):
        try:
            batch = next(stream)
        except TokenreelError as error:
            assert time.monotonic() - start < 10
            assert stream.next_step == step
            return error
        assert is_right(step, batch)
    pytest.fail("the fault was not seen")
