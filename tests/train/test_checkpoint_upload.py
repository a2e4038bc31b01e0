"""Copies of checkpoints in an object store: complete or not there, kept as retention says, and enough to go on from on
a machine that has nothing else; a store that fails never stops the training.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.object_store import Fault, FaultProxy, S3Server
from support.remote_datasets import QUICK, proxy, through
from support.training import ledger, losses, train, write_job

from loader.errors import DamageError, JobError, RefusedError
from loader.run_folder import RunPaths, create_run, read_events
from train import remote_checkpoints, upload
from train.checkpoint import (
    CheckpointFacts,
    list_checkpoints,
    load_tensors,
    pin,
    pin_for_alarm,
    save_checkpoint,
    unpin_alarms,
    verify_checkpoint,
)
from train.checkpoint_config import CheckpointConfig
from train.keeper import Keeper
from train.remote_checkpoints import fetch_newest
from train.upload import Uploader

__all__ = ["proxy"]
DAY_S = 86_400.0


def run_in(folder: Path, run_id: str = "abcd") -> RunPaths:
    paths = RunPaths(folder)
    create_run(paths, {"run_id": run_id, "datasets": []}, {"version": 1})
    return paths


def save(paths: RunPaths, step: int, time_s: float = 0.0) -> Any:
    facts = CheckpointFacts(step, 0, 0, step, {"next_position": step}, {}, {}, time_s)
    return save_checkpoint(paths.checkpoints, {"model.weight": torch.full((999,), float(step))}, facts)


class Remote:
    """A bucket's prefix and an uploader to it."""

    def __init__(self, server: S3Server, bucket: str, paths: RunPaths, **config: Any) -> None:
        self.server, self.bucket, self.url = server, bucket, f"s3://{bucket}/runs"
        self.said: list[str] = []
        server.put(bucket, {"other": b"left alone"})
        options = CheckpointConfig(upload=self.url, **config)
        self.uploader = Uploader(self.url, paths, options, self.said.append, QUICK)

    def upload(self, checkpoint: Any) -> list[dict[str, Any]]:
        self.uploader.begin(checkpoint)
        self.uploader.finish(None)
        return self.uploader.take_events()

    def names(self) -> list[str]:
        import obstore

        return sorted(str(meta["path"]) for chunk in obstore.list(self.server.store(self.bucket)) for meta in chunk)

    def labels(self) -> list[str]:
        """Of complete checkpoints."""
        return [key.split("/")[-2] for key in self.names() if key.endswith("COMMIT.json")]

    def steps(self) -> list[int]:
        return [int(label.split("step_")[1][:6]) for label in self.labels()]


def check(path: Path | None, step: int) -> None:
    assert path is not None
    found = next(one for one in list_checkpoints(path.parent)[0] if one.path == path)
    verify_checkpoint(found)
    weight = torch.zeros(999)
    load_tensors(found, {"model.weight": weight})
    assert torch.equal(weight, torch.full((999,), float(step)))


def test_a_fresh_machine_takes_the_newest_valid_one(s3_server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    paths = run_in(tmp_path / "run")
    remote = Remote(s3_server, "fresh", paths, keep_last=3)
    made = [save(paths, step) for step in (1, 2, 3)]
    for checkpoint in made:
        assert [event["kind"] for event in remote.upload(checkpoint)] == ["checkpoint_uploaded"]
    assert remote.steps() == [1, 2, 3]
    assert not remote.said
    target = RunPaths(tmp_path / "elsewhere")
    check(fetch_newest(remote.url, target, remote.said.append, QUICK), 3)
    assert target.identity.read_bytes() == paths.identity.read_bytes()
    assert target.branches.read_bytes() == paths.branches.read_bytes()
    assert fetch_newest(remote.url, target, remote.said.append, QUICK) is None  # it has one now
    data = next(key for key in remote.names() if "step_000003" in key and key.endswith(".distcp"))
    record = next(key for key in remote.names() if "step_000002" in key and key.endswith("COMMIT.json"))
    s3_server.put("fresh", {data: (made[2].path / "__0_0.distcp").read_bytes()[:-1] + b"?"})
    s3_server.put("fresh", {record: (made[1].path / "COMMIT.json").read_bytes().replace(b'"step":2', b'"step":9')})
    said: list[str] = []
    check(fetch_newest(remote.url, RunPaths(tmp_path / "third"), said.append, QUICK), 1)
    assert [line.split(",")[0].split("-step")[1][:7] for line in said if "damaged" in line] == ["_000003", "_000002"]
    last = next(key for key in remote.names() if "step_000001" in key and key.endswith("RUN.bin"))
    s3_server.put("fresh", {last: b"{}"})
    with pytest.raises(DamageError, match="TR-UPLOAD-NONE"):
        fetch_newest(remote.url, RunPaths(tmp_path / "fourth"), said.append, QUICK)
    assert not list((tmp_path / "fourth").rglob("*.distcp"))
    assert "other" in remote.names()


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (key, kind)
        for key in ("distcp", "RUN.json", "COMMIT.json")
        for kind in ("500", "503", "403", "short", "lost", "stall")
    ],
)
def test_a_fault_that_passes_does_not_show(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, key: str, fault: str
) -> None:
    paths = run_in(tmp_path / "run")
    remote = Remote(s3_server, f"passing-{key.lower().replace('.', '-')}-{fault}", paths)
    proxy.put_faults[key] = Fault(fault)
    assert [event["kind"] for event in remote.upload(save(paths, 1))] == ["checkpoint_uploaded"]
    assert proxy.put_faults[key].times == 0
    check(fetch_newest(remote.url, RunPaths(tmp_path / "other"), remote.said.append, QUICK), 1)


@pytest.mark.parametrize("fault", ["500", "403", "short"])
def test_a_fault_that_stays_is_told_and_made_up_for_at_the_next_save(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, fault: str
) -> None:
    paths = run_in(tmp_path / "run")
    remote = Remote(s3_server, f"staying-{fault}", paths)
    proxy.put_faults["COMMIT.json"] = Fault(fault, times=99)
    (event,) = remote.upload(save(paths, 1))
    assert event["kind"] == "upload_failed"
    assert event["code"] == ("TR-REMOTE-DENIED" if fault == "403" else "TR-REMOTE-FAILED")
    assert "step 1 not uploaded" in remote.said[0]
    assert remote.steps() == []
    proxy.put_faults.clear()
    assert fetch_newest(remote.url, RunPaths(tmp_path / "none"), remote.said.append, QUICK) is None
    assert [event["kind"] for event in remote.upload(save(paths, 2))] == ["checkpoint_uploaded"]
    assert remote.steps() == [2]
    check(fetch_newest(remote.url, RunPaths(tmp_path / "other"), remote.said.append, QUICK), 2)


def test_retention_holds_there_as_well(s3_server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """Two a day; the third and the fourth of the newest day go, but for the pinned one; the last of each day stays."""
    paths = run_in(tmp_path / "run")
    remote = Remote(s3_server, "retention", paths, keep_last=2, keep_daily=3)
    for step in range(1, 11):
        checkpoint = save(paths, step, DAY_S * (step // 3))
        if step == 4:
            pin(checkpoint)
        remote.upload(checkpoint)
    # days: 1 2 | 3 4 5 | 6 7 8 | 9 10
    assert remote.steps() == [4, 5, 8, 9, 10]
    assert not remote.said
    assert not [key for key in remote.names() if "step_000007" in key]


def test_a_pin_holds_there_whatever_the_name_here(s3_server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """Behind a rollback a step is saved again, under a second name; in the store both are called after their
    step, and both stay."""
    paths = run_in(tmp_path / "run")
    remote = Remote(s3_server, "second-name", paths, keep_last=1, keep_daily=0)
    for number, step in enumerate((4, 5, 5, 6, 7)):
        facts = CheckpointFacts(step, 0, 0, number, {"next_position": step}, {}, {}, float(number))
        checkpoint = save_checkpoint(paths.checkpoints, {"w": torch.ones(3)}, facts)
        if number == 2:
            assert checkpoint.path.name == "step_000005-2"
            pin_for_alarm(checkpoint)
        remote.upload(checkpoint)
        if number == 3:
            assert [label[:8] for label in remote.labels()] == ["00000001", "00000002", "00000003"]
    assert [label[:8] for label in remote.labels()] == ["00000001", "00000002", "00000004"]
    unpin_alarms(paths.checkpoints)
    remote.upload(save(paths, 8))
    assert remote.steps() == [8]


def test_what_an_alarm_may_need_stays_there_too(s3_server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    paths = run_in(tmp_path / "run")
    remote = Remote(s3_server, "window", paths, keep_last=1, keep_daily=0)
    for step in range(12):
        remote.uploader.begin(save(paths, step), max(0, step - 4))
        remote.uploader.finish(None)
        assert max(one for one in remote.steps() if one <= max(0, step - 4)) >= step - 9
        assert len(remote.steps()) <= 3
    assert remote.steps()[-1] == 11


def test_another_run_at_the_same_place_is_neither_taken_nor_removed(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    first, second = run_in(tmp_path / "first", "aaaa"), run_in(tmp_path / "second", "bbbb")
    for paths, step in ((first, 1), (second, 2), (second, 3)):
        remote = Remote(s3_server, "shared", paths, keep_last=1, keep_daily=0)
        remote.upload(save(paths, step))
    assert sorted(remote.steps()) == [1, 3]
    with pytest.raises(RefusedError, match="TR-UPLOAD-RUNS"):
        fetch_newest(remote.url, RunPaths(tmp_path / "fresh"), remote.said.append, QUICK)
    shutil.rmtree(first.checkpoints)
    check(fetch_newest(remote.url, first, remote.said.append, QUICK), 1)


def test_retention_waits_for_an_upload_on_its_way(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training that saves faster than the store takes must not remove what is being read for it."""
    monkeypatch.setattr(upload, "Transfer", lambda **options: QUICK)
    s3_server.put("slow", {"made": b""})
    paths, said, going = run_in(tmp_path / "run"), list[str](), threading.Event()
    config = CheckpointConfig(upload="s3://slow/runs", keep_last=1, keep_daily=0)
    keeper = Keeper(paths, config, said.append, leads=True)
    put, held = Uploader._put, threading.Event()

    def slow(self: Uploader, *args: Any) -> None:
        held.set()
        assert going.wait(60)
        put(self, *args)

    monkeypatch.setattr(Uploader, "_put", slow)

    def steps_here() -> list[int]:
        return [one.facts.step for one in list_checkpoints(paths.checkpoints)[0]]

    own = []
    for step, here in ((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 3, 4])):  # one on its way, one that waits
        own.append(save(paths, step))
        keeper.follow(own)
        assert held.wait(60)
        assert steps_here() == here
    going.set()
    events = [(event["kind"], event["step"]) for event in keeper.finish(wait=True)]
    assert events == [("checkpoint_uploaded", 1), ("checkpoint_uploaded", 4)]
    own.append(save(paths, 5))
    keeper.follow(own)
    assert steps_here() == [5]
    keeper.finish(wait=True)
    assert [line for line in said if not line.startswith("waiting for the upload of step")] == []


def test_training_goes_on_from_the_store_alone(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop, lose the machine, start on another one: bit-equal, with the whole ledger. A store that denies everything
    ends no run; one that does not answer is no reason to begin again.
    """
    for module in (upload, remote_checkpoints):
        monkeypatch.setattr(module, "Transfer", lambda **options: QUICK)
    s3_server.put("train", {"made": b""})
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    whole = train(write_job(tmp_path, made.path, "whole", output="whole"))
    block = {"every_steps": 4, "keep_last": 2, "upload": "s3://train/runs"}
    first = write_job(tmp_path, made.path, "first", output="first", checkpoint=block)
    proxy.put_faults["step_000004"] = Fault("403", times=999)
    train(first, "steps=9")
    events = [event for event in read_events(RunPaths(tmp_path / "first")) if "upload" in event["kind"]]
    assert [event["step"] for event in events if event["kind"] == "upload_failed"] in ([4], [])
    assert events[-1]["kind"] == "checkpoint_uploaded"
    assert events[-1]["step"] == 9
    shutil.rmtree(tmp_path / "first")
    proxy.faults["first-key=1"] = Fault("500")
    said: list[str] = []
    second = write_job(tmp_path, made.path, "second", output="second", checkpoint=block)
    found = train(second, say=said.append)
    assert any("taken up from s3://train/runs" in line for line in said)
    assert found.parameters == whole.parameters
    assert losses(tmp_path / "second") == losses(tmp_path / "whole")
    assert len(ledger(tmp_path / "second")) == 12
    shutil.rmtree(tmp_path / "second")
    through(proxy, s3_server, monkeypatch)
    proxy.faults["train"] = Fault("500", times=999)
    with pytest.raises(JobError, match="TR-REMOTE-FAILED"):
        train(second)
    assert not (tmp_path / "second" / "run.json").exists()
