"""A full and a broken disk at every system call on files that a job makes, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import run_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone"),
]


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_failed_at_every_call(tmp_path: Path, fault: str) -> None:
    """Exit code, an error that names the file, no half Dataset; the next run goes on from there."""
    report = run_plan(tmp_path, mode="chain", faults=[fault], share="all")
    assert report["problems"] == []
    assert report["missed"] == {fault: []}
    assert report["visited"][fault] == sum(report["points"].values()) > 1500
