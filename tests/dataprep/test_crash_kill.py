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
    report = run_plan(tmp_path, mode="chain", faults=["kill"], share="all")
    assert report["problems"] == []
    assert report["missed"] == {"kill": []}
    assert report["visited"]["kill"] == sum(report["points"].values()) > 1500
