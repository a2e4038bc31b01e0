"""The trainer's benchmarks print what they promise: one JSON list of rows, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rows import row

ROOT = Path(__file__).resolve().parents[1]
KEYS = set(row("it", 1.0, "s"))
SCRIPTS = ["trainer.py", "trainer_reference.py", "trainer_resume.py", "trainer_checkpoints.py", "trainer_parity.py"]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_quick_run_prints_rows(script: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--quick", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout)
    assert rows
    for one in rows:
        assert set(one) == KEYS
        assert one["name"].strip()
        assert isinstance(one["value"], int | float)
        assert one["holds"] in (True, False, None)
        assert (one["holds"] is None) or one["target"]


def test_the_tables_are_those_of_the_issue(capsys: pytest.CaptureFixture[str]) -> None:
    """``--tables`` calls scripts that are there, each with the flags it was given."""
    from benchmarks.trainer import TABLES, table_commands

    assert {name for name, _ in TABLES} == {"parity", "resume", "checkpoints"}
    for command in table_commands(quick=True):
        assert Path(command[1]).is_file()
        assert command[2:] == ["--quick", "--json"]
    assert all(command[2:] == ["--json"] for command in table_commands(quick=False))
