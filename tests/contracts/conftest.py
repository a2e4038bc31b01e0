"""Fixtures that several files of this folder share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def stock_turn() -> Iterator[None]:
    """One test at a time, over all test processes: mosaicml-streaming numbers its shared memory by what it finds free,
    and two processes that look at the same moment take the same number (``FileExistsError: /000014_locals``)."""
    with (Path(tempfile.gettempdir()) / f"tokenreel-tests-stock-{os.getuid()}.lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
