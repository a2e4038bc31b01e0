"""A save that never ends, as on a mount that hangs: the job ends with an error all the same."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from train.checkpoint import list_checkpoints

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
CHILD = """
import sys, threading
from train import saver
save = saver.save_checkpoint
def hanging(folder, tensors, facts, world):
    if facts.step >= {step}:
        threading.Event().wait({hang_s})
    return save(folder, tensors, facts, world)
saver.save_checkpoint = hanging
sys.argv = ["train.main", "train", {job!r}, {flags}]
import runpy
runpy.run_module("train.main", run_name="__main__")
"""


def start(job: Path, step: int, hang_s: float, *flags: str) -> subprocess.CompletedProcess[str]:
    """One training process by its own entry point; saves from ``step`` on hang."""
    words = ", ".join(repr(flag) for flag in flags)
    code = CHILD.format(step=step, hang_s=hang_s, job=str(job), flags=words)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_job_ends_with_its_error_and_the_older_checkpoints_stay(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    whole = train(write_job(tmp_path, made.path, "whole", output="whole"))
    job = write_job(tmp_path, made.path, checkpoint={"every_steps": 4, "keep_last": 3, "timeout_s": 1.0})
    begin_s = time.monotonic()
    ended = start(job, 8, 10 * LIMIT_S)
    assert time.monotonic() - begin_s < LIMIT_S
    assert ended.returncode == 1
    assert "TR-CHECKPOINT-STUCK: no end after 1 s" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [checkpoint.facts.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")[0]] == [0, 4]
    assert train(job).parameters == whole.parameters


def test_the_error_document_is_whole(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, made.path, checkpoint={"every_steps": 4, "keep_last": 3, "timeout_s": 1.0})
    ended = start(job, 4, 10 * LIMIT_S, "--json")
    assert ended.returncode == json.loads(ended.stdout)["error"]["exit_code"] == 1
    assert json.loads(ended.stdout)["error"]["code"] == "TR-CHECKPOINT-STUCK"


def test_a_slow_save_in_time_is_waited_for(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, made.path, checkpoint={"every_steps": 12, "keep_last": 3, "timeout_s": 100.0})
    ended = start(job, 12, 3.0)
    assert ended.returncode == 0, ended.stderr
    assert [checkpoint.facts.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")[0]] == [0, 12]
