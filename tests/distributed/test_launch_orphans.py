"""A launcher that is killed leaves no process that trains on unwatched: they save and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.training import write_job

from loader.files import is_running
from loader.run_folder import RunPaths, lock_run, read_events

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 400


def _children(launcher: int) -> list[int]:
    listings = Path(f"/proc/{launcher}/task").glob("*/children")
    return sorted(int(word) for listing in listings for word in listing.read_text().split())


def _until(done: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_they_save_and_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, made.path, steps=1_000_000, run={"processes": 2})
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "loader.cli", "train", str(job), "--quiet"]
    with open(tmp_path / "said", "wb") as said:
        launcher = subprocess.Popen(words, env=variables, stdout=said, stderr=said)
    children: list[int] = []
    try:
        _until((tmp_path / "run" / "checkpoints" / "step_000004").is_dir)
        children = _children(launcher.pid)
        assert len(children) == 2
        launcher.kill()
        launcher.wait()
        _until(lambda: not any(map(is_running, children)))
    finally:
        launcher.kill()
        for child in children:
            if is_running(child):
                os.kill(child, signal.SIGKILL)
    paths = RunPaths(tmp_path / "run")
    last = read_events(paths)[-1]
    assert last["kind"] == "stopped"
    assert (paths.checkpoints / f"step_{last['step']:06d}" / "COMMIT.json").is_file()
    with lock_run(paths):
        pass
