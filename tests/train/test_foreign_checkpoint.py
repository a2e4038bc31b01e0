"""A checkpoint of another run, copied in, is intact by every hash; it is named, left alone, and not gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.datasets import make_dataset
from support.training import losses, train, write_job

from loader import cli


def test_it_is_named_and_the_runs_own_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = make_dataset(tmp_path).path
    job = write_job(tmp_path, dataset)
    train(job, "steps=10", "output=whole")
    train(job, "steps=4")
    train(job, "steps=8", "output=other", "seed=5")
    foreign = tmp_path / "run" / "checkpoints" / "step_000008"
    shutil.copytree(tmp_path / "other" / "checkpoints" / "step_000008", foreign)
    assert cli.main(["verify", str(tmp_path / "run")]) == 3
    assert "TR-CHECKPOINT-RUN" in capsys.readouterr().out
    said: list[str] = []
    train(job, "steps=10", say=said.append)
    assert [line for line in said if "TR-CHECKPOINT-RUN" in line and str(foreign) in line]
    assert "branch 0, attempt 1: from step 4" in said
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert foreign.is_dir()
