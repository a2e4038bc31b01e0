"""Random losses of power, and that sweeps find code that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_broken import BROKEN
from support.syscalls_driver import run_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone"),
]


@pytest.mark.parametrize(("fault", "seed"), [("some", 1), ("some", 2), ("order", 3)])
def test_random_losses(tmp_path: Path, fault: str, seed: int) -> None:
    report = run_plan(tmp_path, mode="chain", faults=[fault], share=40, seed=seed)
    assert report["problems"] == []
    assert report["missed"] == {"some": []}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_code_is_found(tmp_path: Path, name: str) -> None:
    """Sweeps that cannot fail prove nothing."""
    fault, match, _ = BROKEN[name]
    report = run_plan(tmp_path, mode="chain", faults=[fault], share=6, seed=1, match=match, broken=name)
    assert report["problems"]
