"""kill -9 of the whole tree at every system call on files that a job makes, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import run_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone"),
]


def test_killed_at_every_call(tmp_path: Path) -> None:
    """Also between the moves of Index, validation and training Dataset, which appear whole and in this order."""
    report = run_plan(tmp_path, mode="chain", faults=["kill"], share="all")
    assert report["problems"] == []
    assert report["missed"] == {"kill": []}
    assert report["visited"]["kill"] == sum(report["points"].values()) > 2000
    windows = report["windows"]
    assert set(windows) == {"", "out-index", "out-index out-validation", "out-index out-validation out"}
    assert min(windows.values()) >= 4


def test_outputs_that_are_gone_are_made_again(tmp_path: Path) -> None:
    """Each choice of Index, validation and training Dataset."""
    report = run_plan(tmp_path, mode="lost")
    assert report["problems"] == []
    assert report["attempts"] == 1 + 8
