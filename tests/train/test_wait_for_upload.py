"""A finished run waits for its upload, says so, and hears signals meanwhile; what was not waited for comes later."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.object_store import FaultProxy, S3Server
from support.remote_datasets import proxy
from support.training import train, write_job

from loader.run_folder import RunPaths, read_events
from train.checkpoint import list_checkpoints, verify_checkpoint
from train.upload import Uploader

__all__ = ["proxy"]
LIMIT_S = 60.0
WAITS = "waiting for the upload of step 12"


def uploaded(root: Path) -> list[int]:
    events = read_events(RunPaths(root))
    return [event["step"] for event in events if event["kind"] == "checkpoint_uploaded"]


def in_store(server: S3Server, bucket: str) -> list[int]:
    import obstore

    names = [str(meta["path"]) for chunk in obstore.list(server.store(bucket)) for meta in chunk]
    return sorted(int(name.split("step_")[1][:6]) for name in names if name.endswith("COMMIT.json"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_and_the_next_start_uploads(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    bucket = f"wait-{number}"
    s3_server.put(bucket, {"other": b"left alone"})
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    checkpoint = {"every_steps": 12, "keep_last": 3, "upload": f"s3://{bucket}/runs"}
    job, root = write_job(tmp_path, made.path, checkpoint=checkpoint), tmp_path / "run"
    going, said, real = threading.Event(), [], Uploader._upload
    begun: list[int] = []

    def stalls(self: Uploader, one: Any, *more: Any) -> str:
        begun.append(one.facts.step)
        if one.facts.step == 12:
            assert going.wait(LIMIT_S)
        return real(self, one, *more)

    def say(line: str) -> None:
        said.append(line)
        if line.startswith(WAITS):
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Uploader, "_upload", stalls)
        result = train(job, say=say)
        going.set()
    assert (result.outcome, result.step) == ("finished", 12)
    assert [line for line in said if line.startswith(WAITS)], said
    newest = list_checkpoints(root / "checkpoints")[0][-1]
    assert newest.facts.step == 12
    verify_checkpoint(newest)
    assert 12 not in uploaded(root)
    said.clear()
    assert train(job, say=said.append).parameters == result.parameters
    assert 12 in uploaded(root)
    assert 12 in in_store(s3_server, bucket)
    count = len(uploaded(root))
    train(job, say=said.append)  # it is there now: nothing is asked of the store
    assert len(uploaded(root)) == count
    s3_server.put(f"{bucket}-other", {"other": b"left alone"})
    train(job, f"checkpoint.upload=s3://{bucket}-other/runs", say=said.append)
    assert 12 in in_store(s3_server, f"{bucket}-other"), "what is at one URL is not at another"
