"""A run folder that another machine left behind, or whose checkpoints are damaged, and an object store that has newer
or intact ones: the steps that were done count, whatever this folder holds, and nothing in the store is lost by it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import Fault, FaultProxy, S3Server
from support.remote_datasets import QUICK, proxy
from support.training import ledger, losses, train, write_job

from loader.errors import DamageError, RefusedError
from loader.run_folder import RunPaths, create_run, read_events
from loader.run_verify import verify_run
from loader.runs import read_branches
from train import remote_checkpoints, upload
from train.back import roll_back
from train.checkpoint import Checkpoint, CheckpointFacts, list_checkpoints, save_checkpoint
from train.checkpoint_config import CheckpointConfig
from train.upload import Uploader

__all__ = ["proxy"]


class Place:
    """A bucket, a Dataset, and the job files of machines that train the same run."""

    def __init__(self, folder: Path, server: S3Server, made: MadeDataset) -> None:
        self.folder, self.server, self.made = folder, server, made
        self.bucket = re.sub("[^a-z0-9]", "-", folder.name)[:60].strip("-")
        server.put(self.bucket, {"made": b""})

    def machine(self, name: str, **checkpoint: Any) -> Path:
        block = {"every_steps": 2, "keep_last": 2, "keep_daily": 0, "upload": f"s3://{self.bucket}/runs", **checkpoint}
        return write_job(self.folder, self.made.path, name, output=name, checkpoint=block)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints in the store, in the order of their labels."""
        import obstore

        paths = [str(meta["path"]) for chunk in obstore.list(self.server.store(self.bucket)) for meta in chunk]
        labels = sorted(path.split("/")[-2] for path in paths if path.endswith("COMMIT.json"))
        return [int(label.split("step_")[1].split("-")[0]) for label in labels]

    def whole(self, steps: int) -> Any:
        return train(self.machine("whole", upload=None), f"steps={steps}")


@pytest.fixture
def place(tmp_path: Path, s3_server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Place:
    for module in (upload, remote_checkpoints):
        monkeypatch.setattr(module, "Transfer", lambda **options: QUICK)
    begin = Uploader.begin

    def begin_and_wait(uploader: Uploader, *args: Any) -> None:
        begin(uploader, *args)
        uploader.finish(None)

    monkeypatch.setattr(Uploader, "begin", begin_and_wait)  # each save is in the store before the next steps
    return Place(tmp_path, s3_server, make_dataset(tmp_path, DatasetSpec(seq_len=32)))


def resumed_at(root: Path) -> list[int]:
    return [event["step"] for event in read_events(RunPaths(root)) if event["kind"] == "resume"]


def uploaded(root: Path, kind: str = "checkpoint_uploaded") -> list[int]:
    return [event["step"] for event in read_events(RunPaths(root)) if event["kind"] == kind]


def test_back_on_a_machine_the_run_goes_on_from_where_another_one_took_it(place: Place) -> None:
    """B is preempted at 4, A goes on to 12 from the store, and B gets the run back."""
    b, a, root = place.machine("b"), place.machine("a"), place.folder / "b"
    train(b, "steps=4")
    train(a, "steps=12")
    assert place.steps() == [10, 12]
    before = (root / "events.jsonl").read_bytes()
    said: list[str] = []
    found = train(b, "steps=16", say=said.append)
    assert resumed_at(root)[-1] == 12
    told = [line for line in said if "step 12" in line and "step 4" in line]
    assert len(told) == 1, said
    assert place.steps() == [14, 16]
    assert found.parameters == place.whole(16).parameters
    assert losses(root) == losses(place.folder / "whole")
    assert len(ledger(root)) == 16
    assert not verify_run(root)
    assert (root / "replaced" / "000001" / "events.jsonl").read_bytes() == before  # what only this folder knew


def test_steps_that_were_never_uploaded_are_kept_aside_and_done_again(
    place: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    """B did steps 4 to 6, and on a second attempt 6 to 7, that the store never saw; A went on from 4."""
    b, a, root = place.machine("b"), place.machine("a"), place.folder / "b"
    train(b, "steps=4")
    kept = tmp_path / "kept"
    train(b, "steps=6", "checkpoint.upload=null")
    train(b, "steps=7", "checkpoint.upload=null")
    shutil.copytree(root / "ledger", kept)
    train(a, "steps=12")
    found = train(b, "steps=14")
    assert resumed_at(root)[-1] == 12
    assert found.parameters == place.whole(14).parameters
    assert losses(root) == losses(place.folder / "whole")
    assert not verify_run(root)
    aside = root / "replaced" / "000001" / "ledger"

    def is_whole(path: Path) -> bool:
        now = root / "ledger" / path.relative_to(kept)
        return now.exists() and now.read_bytes().startswith(path.read_bytes())

    changed = [path for path in kept.rglob("*.bin") if not is_whole(path)]
    assert changed
    for path in changed:
        assert (aside / path.relative_to(kept)).read_bytes() == path.read_bytes()


def test_checkpoints_of_steps_that_are_kept_aside_go_with_them(place: Place) -> None:
    """B did 4 to 8 alone; A, stopped and started again and again, came to 7 with more saves than B."""
    b, a, root = place.machine("b", keep_last=9), place.machine("a"), place.folder / "b"
    train(b, "steps=4")
    train(b, "steps=8", "checkpoint.upload=null")
    for steps in (5, 6, 7):
        train(a, f"steps={steps}")
    found = train(b, "steps=12")
    assert resumed_at(root)[-1] == 7
    assert found.parameters == place.whole(12).parameters
    assert losses(root) == losses(place.folder / "whole")
    assert [path.name for path in (root / "replaced" / "000001" / "checkpoints").iterdir()] == ["step_000008"]
    assert not verify_run(root)


def test_a_branch_that_only_this_folder_knows_is_refused_by_name(place: Place) -> None:
    """Somebody rolled the stale folder back: neither history may silently replace the other."""
    b, a, root = place.machine("b"), place.machine("a"), place.folder / "b"
    train(b, "steps=4")
    train(a, "steps=8")
    assert roll_back(root, 2, lambda line: None)["step"] == 2
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(RefusedError, match="TR-UPLOAD-FORKED") as caught:
        train(b, "steps=8")
    assert "step_000008" in caught.value.message
    assert str(root) in str(caught.value.next_command)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert place.steps() == [6, 8]


def test_a_rollback_on_the_machine_that_trains_is_no_fork(place: Place) -> None:
    b, root = place.machine("b"), place.folder / "b"
    train(b, "steps=6")
    roll_back(root, 4, lambda line: None)
    found = train(b, "steps=8")
    assert (found.branch, resumed_at(root)[-1]) == (1, 4)
    assert place.steps()[-1] == 8


def test_a_rollback_elsewhere_comes_with_the_steps_behind_it(place: Place) -> None:
    b, a, root = place.machine("b"), place.machine("a"), place.folder / "b"
    train(b, "steps=6")
    train(a, "steps=8")
    roll_back(place.folder / "a", 6, lambda line: None)
    train(a, "steps=10")
    found = train(b, "steps=12")
    assert (found.branch, resumed_at(root)[-1]) == (1, 10)
    assert [one.from_step for one in read_branches(RunPaths(root))] == [0, 6]
    assert len(ledger(root)) == 12
    assert not verify_run(root)


def test_a_store_that_does_not_answer_holds_up_no_folder_that_has_checkpoints(place: Place, proxy: FaultProxy) -> None:
    """The steps go on from here; what another machine has uploaded meanwhile stays, and so does what comes now."""
    b, a, root = place.machine("b"), place.machine("a"), place.folder / "b"
    train(b, "steps=4")
    train(a, "steps=10")
    proxy.faults[place.bucket] = Fault("500", times=QUICK.attempts)
    said: list[str] = []
    train(b, "steps=8", say=said.append)
    assert resumed_at(root)[-1] == 4
    assert any("TR-REMOTE-FAILED" in line for line in said)
    assert uploaded(root)[-2:] == [6, 8]
    assert sorted(place.steps()) == [6, 8, 8, 10]
    assert len([line for line in said if "greater numbers" in line]) == 1
    train(b, "steps=12")  # the store answers: ten steps were done elsewhere
    assert resumed_at(root)[-1] == 10
    assert place.steps()[-1] == 12


def test_killed_while_the_record_is_replaced_it_is_replaced_by_the_next_start(
    place: Place, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every one of its writes; a store that is down then is no reason to go on from half a record."""
    from train import run_record

    b, a, root = place.machine("b"), place.machine("a"), place.folder / "b"
    train(b, "steps=4")
    train(a, "steps=8")
    stale = place.folder / "stale"
    shutil.copytree(root, stale)
    write, calls = run_record.write_atomic, [0]
    for at in range(99):
        shutil.rmtree(root)
        shutil.copytree(stale, root)
        calls[0] = 0

        def dies(path: Path, data: Any, at: int = at) -> None:
            calls[0] += 1
            if calls[0] == at + 1:
                raise KeyboardInterrupt
            write(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(run_record, "write_atomic", dies)
            try:
                train(b, "steps=8")
            except KeyboardInterrupt:
                pass
            else:
                break
        proxy.faults[place.bucket] = Fault("500", times=QUICK.attempts)
        with pytest.raises(Exception, match="TR-REMOTE-FAILED"):
            train(b, "steps=8")
        proxy.faults.clear()
        train(b, "steps=8")
        assert resumed_at(root)[-1] == 8
        assert not verify_run(root)
        assert losses(root) == losses(place.folder / "a")
    assert at > 3


def test_all_damaged_here_and_intact_in_the_store(place: Place) -> None:
    b, root = place.machine("b"), place.folder / "b"
    train(b, "steps=4")
    for file in (root / "checkpoints").glob("step_*/*.distcp"):
        data = bytearray(file.read_bytes())
        data[50] ^= 1
        file.write_bytes(data)
    said: list[str] = []
    found = train(b, "steps=8", say=said.append)
    assert resumed_at(root)[-1] == 4
    assert sum("damaged checkpoint" in line for line in said) == 2
    assert found.parameters == place.whole(8).parameters
    assert len(ledger(root)) == 8


def test_all_damaged_here_and_there_is_told(place: Place) -> None:
    b, root = place.machine("b"), place.folder / "b"
    train(b, "steps=4", "checkpoint.upload=null")
    for file in (root / "checkpoints").glob("step_*/*.distcp"):
        file.write_bytes(b"")
    with pytest.raises(DamageError, match="TR-CHECKPOINT-NONE"):
        train(b, "steps=8")


def test_damaged_newer_uploads_do_not_cost_the_new_ones(place: Place) -> None:
    """A fresh machine passes over the two newest: what it uploads then has smaller numbers, and stays."""
    b, root = place.machine("b", keep_last=3), place.folder / "b"
    train(b, "steps=8")
    import obstore

    store = place.server.store(place.bucket)
    for chunk in obstore.list(store):
        for meta in chunk:
            path = str(meta["path"])
            if path.endswith(".distcp") and ("step_000006" in path or "step_000008" in path):
                obstore.put(store, path, b"?")
    shutil.rmtree(root)
    train(b, "steps=6")
    assert resumed_at(root)[-1] == 4
    assert place.steps().count(6) == 2
    shutil.rmtree(root)
    train(b, "steps=10")
    assert resumed_at(root)[-1] == 6


def small(paths: RunPaths, step: int, number: int) -> Checkpoint:
    facts = CheckpointFacts(step, 0, 0, number, {"next_position": step}, {}, {}, float(number))
    return save_checkpoint(paths.checkpoints, {"w": torch.full((3,), float(number))}, facts)


def test_the_newest_at_or_before_a_step_is_found_by_number(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Behind a million steps names have another length."""
    paths = RunPaths(tmp_path / "run")
    create_run(paths, {"run_id": "abcd", "datasets": []}, {"version": 1})
    s3_server.put("million", {"made": b""})
    url = "s3://million/runs"
    uploader = Uploader(url, paths, CheckpointConfig(upload=url, keep_last=9), print, QUICK)
    for number, step in enumerate((999_900, 1_000_000, 1_000_100)):
        uploader.begin(small(paths, step, number))
        uploader.finish(None)
    shutil.rmtree(paths.checkpoints)
    remote_checkpoints.fetch_before(url, paths, 1_000_050, print, QUICK)
    assert [one.facts.step for one in list_checkpoints(paths.checkpoints)[0]] == [1_000_000]
