"""Loss of power at any system call of a job: only what was synced survives for sure, the rest as it happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import run_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone"),
]


def test_without_power_at_every_call(tmp_path: Path) -> None:
    """The hardest loss: nothing survives that was not synced."""
    report = run_plan(tmp_path, mode="chain", faults=["least"], share="all")
    assert report["problems"] == []
    assert report["missed"] == {"least": []}
    assert report["visited"]["least"] == sum(report["points"].values()) > 2000
