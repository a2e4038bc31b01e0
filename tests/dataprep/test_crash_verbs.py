"""The verbs beside ``build`` that write: every accident at every system call on files that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import run_plan
from support.syscalls_jobs import JOBS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone"),
]

FAULTS = ("kill", "ENOSPC", "EIO", "least")
EXPORTS = sorted(name for name in JOBS if name.startswith("export-"))


@pytest.mark.parametrize("job", EXPORTS)
def test_exports_at_every_call(tmp_path: Path, job: str) -> None:
    """All of the output or nothing, the same bytes from the next run, nothing left beside it."""
    report = run_plan(tmp_path, mode="chain", job=job, faults=FAULTS, share="all")
    assert report["problems"] == []
    assert report["missed"] == {fault: [] for fault in FAULTS}
    points = sum(report["points"].values())
    assert report["visited"] == dict.fromkeys(FAULTS, points)
    assert points > 25
    assert set(report["windows"]) == {"", "out"}


@pytest.mark.parametrize("job", sorted(JOBS.keys() - {"build", *EXPORTS}))
def test_tokens_packed_anew_at_every_call(tmp_path: Path, job: str) -> None:
    """The same, with stages in between, which the test of ``build`` covers with further faults."""
    report = run_plan(tmp_path, mode="chain", job=job, faults=["kill", "ENOSPC"], share="all")
    assert report["problems"] == []
    assert report["missed"] == {"kill": [], "ENOSPC": []}
    points = sum(report["points"].values())
    assert report["visited"] == {"kill": points, "ENOSPC": points}
    assert set(report["windows"]) == {"", "out"}


@pytest.mark.parametrize("job", sorted(JOBS.keys() - {"build", *EXPORTS}))
def test_tokens_packed_anew_at_each_kind_of_call(tmp_path: Path, job: str) -> None:
    report = run_plan(tmp_path, mode="chain", job=job, faults=["EIO", "least", "some"], share="each")
    assert report["problems"] == []
    assert report["missed"] == {"each": []}
    assert report["visited_kinds"] == report["kinds"]
