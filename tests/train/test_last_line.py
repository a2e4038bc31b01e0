"""The last line of ``train`` speaks of the run, also where this process had nothing to do."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.training import losses, write_job

from loader.cli import main
from loader.run_folder import RunPaths
from loader.settings import child_environment
from train.loop import RunResult
from train.summary import summary, summary_text

STEPS = 6


def trained(path: Path, *words: str) -> str:
    """What the verb prints on stdout, in this process: as the one of a world, which takes no other's place."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
            patch.setenv(name, value)
        assert main(["train", str(path), "--quiet", *words]) == 0
    return out.getvalue()


def trained_apart(path: Path) -> str:
    """What it prints in a process of its own, three seconds of which are imports."""
    command = [sys.executable, "-m", "train.main", "train", str(path), "--quiet"]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that was rolled back once."""
    folder = tmp_path_factory.mktemp("last")
    made = make_dataset(folder, DatasetSpec(seq_len=32))
    path = write_job(folder, made.path, steps=STEPS, checkpoint={"every_steps": 2, "keep_last": 9})
    assert trained_apart(path).startswith(f"finished: {STEPS} steps, branch 0, loss ")
    assert main(["rollback", str(folder / "run"), "--to", "3"]) == 0
    trained(path)
    return path


def test_a_finished_run_says_its_own_loss_and_rollbacks(job: Path) -> None:
    loss = losses(job.parent / "run")[-1]
    assert trained(job) == f"finished: {STEPS} steps, branch 1, loss {loss:.4f}, 1 rollback in all\n"
    facts = json.loads(trained(job, "--json"))
    assert (facts["run_loss"], facts["run_rollbacks"], facts["asked_steps"]) == (loss, 1, STEPS)
    assert (facts["loss"], facts["rollbacks"]) == (None, 0), "this process did nothing"
    assert facts["run"] == str(job.parent / "run")


def test_a_run_past_the_steps_asked_for_says_so(job: Path) -> None:
    first, second = trained(job, "--set", "steps=4").splitlines()
    assert first.startswith(f"nothing to do: the run is at step {STEPS}, already past steps: 4; branch 1, loss ")
    assert second == (
        f"next: more than {STEPS} steps to go on, or tokenreel rollback {job.parent / 'run'} --to STEP to go back"
    )


def test_a_process_that_did_steps_says_its_own_loss(job: Path) -> None:
    facts = summary(RunResult("stopped", 5, 1, 0, 1.25, "0" * 64), RunPaths(job.parent / "run"), STEPS)
    assert summary_text(facts) == "stopped: 5 steps, branch 1, loss 1.2500, 1 rollback in all"
