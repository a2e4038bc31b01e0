"""A broken disk (EIO) at every system call on files that a job makes, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import run_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone"),
]


def test_broken_at_every_call(tmp_path: Path) -> None:
    """Exit code, an error that names the file, no half Dataset; the next run goes on from there."""
    report = run_plan(tmp_path, mode="chain", faults=["EIO"], share="all")
    assert report["problems"] == []
    assert report["missed"] == {"EIO": []}
    assert report["visited"]["EIO"] == sum(report["points"].values()) > 2000
