"""The launch path: the same command alone and under torchrun, safe from a user's own files, signals and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.training import write_job

from loader.errors import ConfigError
from train.launch import Place, child_command, place, training_environment, under_torchrun
from train.parallel.config import ParallelConfig
from train.world import join_world

TIMEOUT_S = 240


def clean_environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "PYTHONSAFEPATH")}
    return {**kept, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=pipe, stderr=pipe, text=True)


def test_a_users_own_train_py_is_not_run_and_a_signal_saves(tmp_path: Path) -> None:
    """One start of the real command: exec, a shadowing file in the working folder, SIGTERM, exit code, resume."""
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, made.path, steps=100_000, checkpoint={"every_steps": 50, "keep_last": 2})
    for name in ("train.py", "loader.py", "xxhash.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')\n")
    process = start(tmp_path, "-P", "-m", "loader.cli", "train", str(job), "--json", "--quiet")
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "run" / "checkpoints" / "step_000000").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, error
    result = json.loads(out)
    assert result["outcome"] == "stopped"
    assert 0 < result["step"] < 100_000
    assert (tmp_path / "run" / "checkpoints" / f"step_{result['step']:06d}" / "COMMIT.json").exists()


@pytest.mark.slow
def test_torchrun_takes_the_same_path(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, made.path, steps=3)
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "train.main", "train", str(job), "--json"]
    process = start(tmp_path, *words)
    out, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, error
    assert json.loads(out)["step"] == 3


def test_a_world_of_one_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert place() == Place(0, 1, 0)
    assert not under_torchrun()
    with join_world("cpu") as world:
        assert (world.rank, world.size, world.begin_sum(7)()) == (0, 1, 7)
        assert (world.leads, world.counts, world.scores) == (True, True, True)
        assert world.share(lambda: {"a": [1]}) == world.gather({"a": [1]}) == {"a": [1]}
    with pytest.raises(ConfigError, match="TR-PARALLEL-MESH"), join_world("cpu", ParallelConfig(tensor=2)):
        pass
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert place() == Place(1, 2, 3)
    assert under_torchrun()


@pytest.mark.parametrize(
    "given", [{"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "0"}, {"RANK": "0", "WORLD_SIZE": "2"}]
)
def test_an_environment_that_is_no_place_is_refused_by_name(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="TR-LAUNCH-ENVIRONMENT"), join_world("cpu"):
        pass


def test_the_child_is_safe_and_has_its_threads() -> None:
    environment = training_environment(3)
    assert (environment["PYTHONSAFEPATH"], environment["OMP_NUM_THREADS"], environment["WORLD_SIZE"]) == ("1", "3", "1")
    assert child_command(["train", "x"])[1:] == ["-m", "train.main", "train", "x"]
