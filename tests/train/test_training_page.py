"""What docs/training.md tells users to type: exported variables as our own launcher sets them, pins made by hand."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import train, write_job

from train.launch import training_environment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("page"), DatasetSpec(documents={"web": 20}, seq_len=32))


def test_under_torchrun_is_exported_what_our_launcher_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = dict(re.findall(r"^export (\w+)=(\S+)", PAGE, re.MULTILINE))
    for name in exported:
        monkeypatch.delenv(name, raising=False)
    found = training_environment(1)
    torchrun = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    ours = {name: value for name, value in found.items() if os.environ.get(name) != value}
    assert exported == {name: value for name, value in ours.items() if name not in {*torchrun, "PYTHONPATH"}}


def test_a_pin_by_hand_keeps_a_checkpoint_until_it_is_removed(made: MadeDataset, tmp_path: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in PAGE.splitlines() if "RUN/checkpoints/pinned" in line]
    make, touch, remove = (line.replace("RUN", "run").replace("step_000100", "step_000004") for line in lines)
    checkpoint = {"every_steps": 4, "keep_last": 1, "keep_daily": 0}
    path = write_job(tmp_path, made.path, steps=4, checkpoint=checkpoint)

    def kept(*words: str) -> list[str]:
        train(path, *words)
        return sorted(one.name for one in (tmp_path / "run" / "checkpoints").glob("step_*"))

    assert kept() == ["step_000004"]
    for line in (make, touch):
        subprocess.run(line.split(), cwd=tmp_path, check=True)
    assert kept("steps=12") == ["step_000004", "step_000012"]
    subprocess.run(remove.split(), cwd=tmp_path, check=True)
    assert kept("steps=16") == ["step_000016"]
