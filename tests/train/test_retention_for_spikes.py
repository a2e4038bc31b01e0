"""What retention leaves for an alarm to go back to, and that damaged checkpoints do not stand in for intact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from loader.run_folder import RunPaths, read_events
from loader.runs import read_branches
from train import session
from train.checkpoint import list_checkpoints
from train.lineage import newest_valid
from train.retention import for_window


def break_once(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Parameters become NaN before a step, the first time it is done."""
    real, done = session.train_step, list[int]()

    def broken(state: Any, batch: Any, *args: Any, **options: Any) -> Any:
        if batch.step == step and not done:
            done.append(step)
            with torch.no_grad():
                state.parts[0].norm.weight.fill_(float("nan"))
        return real(state, batch, *args, **options)

    monkeypatch.setattr(session, "train_step", broken)


@pytest.mark.parametrize(("every", "last"), [(1, 1), (2, 3), (3, 2), (4, 4)])
def test_an_alarm_finds_a_checkpoint_whatever_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, last: int
) -> None:
    """Broken at 29: the window begins at 21, and what lies before it is near."""
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    block = {"every_steps": every, "keep_last": last, "keep_daily": 0}
    job = write_job(tmp_path, made.path, spikes={"enabled": True}, steps=34, checkpoint=block)
    break_once(monkeypatch, 29)
    found = train(job)
    assert (found.outcome, found.rollbacks, found.branch) == ("finished", 1, 1)
    start = read_branches(RunPaths(tmp_path / "run"))[1].from_step
    assert 21 - 8 - every < start <= 21


def test_without_a_watch_nothing_more_is_kept(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    block = {"every_steps": 2, "keep_last": 2, "keep_daily": 0}
    train(write_job(tmp_path, made.path, steps=12, checkpoint=block))
    assert [one.facts.step for one in list_checkpoints(tmp_path / "run" / "checkpoints")[0]] == [10, 12]


def test_there_is_always_one_before_the_window_and_never_many() -> None:
    """Saves at each step; the newest three stay, and what windows that begin 8 steps back need."""
    kept: list[int] = []
    for step in range(100):
        kept.append(step)
        start = max(0, step - 8)
        latest = set(kept[-3:])
        kept = [one for index, one in enumerate(kept) if one in latest or index in for_window(kept, start)]
        assert len(kept) <= 5
        assert start - 8 <= max(one for one in kept if one <= start)


def test_what_a_window_needs_follows_the_order_in_which_they_were_made() -> None:
    assert for_window([], 5) == set()
    assert for_window([6, 7], 5) == {0}
    assert for_window([2, 4], 5) == {1}
    assert for_window([2, 5, 6, 8], 5) == {1, 2}
    assert for_window([2, 8, 4, 9], 5) == {2, 3}  # a branch that went back: its own step 4 is the newest before 5


def test_a_damaged_checkpoint_stands_in_for_no_intact_one(tmp_path: Path) -> None:
    """4 and 8 are kept, 8 is damaged: the run goes on from 4 to 8, and 4 stays beside the new one."""
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    block = {"every_steps": 4, "keep_last": 2, "keep_daily": 0}
    job, folder = write_job(tmp_path, made.path, checkpoint=block), tmp_path / "run" / "checkpoints"
    train(job, "steps=8")
    assert [path.name for path in sorted(folder.glob("step_*"))] == ["step_000004", "step_000008"]
    file = next((folder / "step_000008").glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[50] ^= 1
    file.write_bytes(data)
    train(job, "steps=8")
    resumed = [event["step"] for event in read_events(RunPaths(tmp_path / "run")) if event["kind"] == "resume"]
    assert resumed == [4]
    assert {path.name for path in folder.glob("step_*")} == {"step_000004", "step_000008", "step_000008-2"}
    found = newest_valid(folder, read_branches(RunPaths(tmp_path / "run")), 7, lambda error: None)
    assert found is not None
    assert found.facts.step == 4
