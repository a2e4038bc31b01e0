"""A machine is lost around a rollback: what lies in the object store is enough to roll back on another one, to the same
bits.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.bumps import BumpedWatch, spec, spikes
from support.datasets import make_dataset
from support.object_store import FaultProxy, S3Server
from support.remote_datasets import QUICK, proxy
from support.training import losses, train, write_job

from loader.run_folder import RunPaths, read_events
from loader.run_verify import verify_run
from loader.runs import read_branches, read_skips
from train import loop, remote_checkpoints, upload
from train.back import roll_back
from train.checkpoint import Checkpoint, list_checkpoints
from train.checkpoint_config import CheckpointConfig
from train.remote_checkpoints import list_remote
from train.upload import Uploader

__all__ = ["proxy"]
STEPS = 24


_begin = Uploader.begin


def begin_and_wait(uploader: Uploader, checkpoint: Checkpoint, window_start: int | None = None) -> None:
    """Of several checkpoints that wait the newest goes first: where each must be in the store, the steps wait."""
    _begin(uploader, checkpoint, window_start)
    uploader.finish(None)


@pytest.fixture
def job(tmp_path: Path, s3_server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spike at step 19, whose window begins at 17; saves at 0, 6, 12, 18."""
    monkeypatch.setattr(loop, "SpikeWatch", BumpedWatch)
    monkeypatch.setattr(BumpedWatch, "worse", {0: (19, 20, 21)})
    monkeypatch.setattr(BumpedWatch, "broken", {})
    for module in (upload, remote_checkpoints):
        monkeypatch.setattr(module, "Transfer", lambda **options: QUICK)
    monkeypatch.setattr(Uploader, "begin", begin_and_wait)
    bucket = f"lost-{tmp_path.name.replace('_', '-')}"[:60].rstrip("-")
    s3_server.put(bucket, {"made": b""})
    made = make_dataset(tmp_path, spec())
    checkpoint = {"every_steps": 6, "keep_last": 4, "upload": f"s3://{bucket}/runs"}
    data = {"datasets": ["data"], "batch": [{"start": 0, "global_batch": 8}]}
    return write_job(tmp_path, made.path, steps=STEPS, spikes=spikes(), checkpoint=checkpoint, data=data)


def whole(job: Path, **changes: str) -> Any:
    """The same run on a machine that is not lost, without a store."""
    return train(job, "output=whole", "checkpoint.upload=null", *(f"{key}={value}" for key, value in changes.items()))


def test_the_checkpoint_to_go_back_to_comes_from_the_store(job: Path) -> None:
    """Lost in front of the alarm: the newest checkpoint is brought back at the start, the one before the window when it
    is asked for."""
    expected, root = whole(job), job.parent / "run"
    train(job, "steps=19")
    shutil.rmtree(root)
    said: list[str] = []
    found = train(job, say=said.append)
    assert [line for line in said if "taken up from" in line]
    assert (found.parameters, found.branch, found.rollbacks) == (expected.parameters, 1, 1)
    assert [one.from_step for one in read_branches(RunPaths(root))] == [0, 12]
    assert read_skips(RunPaths(root)) == read_skips(RunPaths(job.parent / "whole"))
    assert losses(root) == losses(job.parent / "whole")
    assert "step_000012" in {path.name for path in (root / "checkpoints" / "pinned").iterdir()}
    assert not verify_run(root)


def test_the_store_keeps_what_an_open_alarm_will_ask_for(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost inside the alarm, where three are kept: the uploads behind the restart must not remove the one before it."""
    monkeypatch.setattr(BumpedWatch, "worse", {0: range(19, 23)})
    few = ("checkpoint.every_steps=1", "checkpoint.keep_last=3", "spikes.patience=4")
    root = job.parent / "run"
    expected = train(job, "output=few", "checkpoint.upload=null", *few)
    assert (expected.branch, expected.rollbacks) == (1, 1)
    train(job, "steps=20", *few)  # the alarm is at 19, its question at 22, its window begins at 17
    assert {path.name for path in (root / "checkpoints" / "pinned").iterdir()} == {"step_000017.alarm"}
    shutil.rmtree(root)
    found = train(job, *few)
    assert (found.parameters, found.branch, found.rollbacks) == (expected.parameters, 1, 1)
    assert [one.from_step for one in read_branches(RunPaths(root))] == [0, 17]


def test_a_checkpoint_of_the_branch_that_was_left_is_not_gone_on_from(job: Path) -> None:
    """An upload that ended behind the rollback tells of the new branch, whose steps its checkpoint does not hold."""
    root = job.parent / "run"
    paths = RunPaths(root)
    train(job, "steps=19")
    assert roll_back(root, 13, lambda line: None)["step"] == 12
    last = list_checkpoints(paths.checkpoints)[0][-1]
    url = str(CheckpointConfig(upload=upload_of(job)).upload)
    again = Uploader(url, paths, CheckpointConfig(upload=url, keep_last=9), lambda line: None, QUICK)
    run_id = next(iter(path.split("/")[0] for path in (file.path for file in again._store.list("")) if "/" in path))
    for one in list_remote(list(again._store.list(run_id)), run_id):
        if one.name == last.path.name:
            for file in one.files:
                again._store.delete(file.path)
    again.begin(last)
    again.finish(None)
    assert [event["kind"] for event in again.take_events()] == ["checkpoint_uploaded"]
    shutil.rmtree(root)
    found = train(job, "spikes.enabled=false")
    assert (found.outcome, found.branch) == ("finished", 1)
    resumed = [event for event in read_events(paths) if event["kind"] == "resume"]
    assert (resumed[-1]["branch"], resumed[-1]["step"], resumed[-1]["checkpoint"]) == (1, 12, "step_000012")
    expected = train(job, "output=plain", "checkpoint.upload=null", "spikes.enabled=false")
    assert found.parameters == expected.parameters


def upload_of(job: Path) -> str:
    import yaml

    return str(yaml.safe_load(job.read_text())["checkpoint"]["upload"])
