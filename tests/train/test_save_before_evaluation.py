"""A checkpoint comes ahead of the evaluation of its step, so one that fails costs no step; the next start makes it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import exit_code_of, losses, metrics, train, write_job

from loader.run_folder import RunPaths, read_events
from train.back import roll_back
from train.checkpoint import list_checkpoints
from train.evaluate.during import Evaluated, Evaluation

FACTS = ("kind", "branch", "step", "loss", "source_loss", "best")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder, DatasetSpec(seq_len=32, seed=5, documents={"web": 9, "code": 4}), "held")
    return make_dataset(folder, DatasetSpec(seq_len=32))


def job_in(folder: Path, made: MadeDataset, **overrides: Any) -> Path:
    """So high a learning rate that the held-out loss rises, which is told as well."""
    folder.mkdir(exist_ok=True)
    held = str(made.path.parent / "held")
    spikes = {"enabled": True, "detectors": {"validation_nats": 0.0001, "loss_z": 1e6, "grad_norm_z": 1e6}}
    evaluate = {"every_steps": 4, "samples": 4}
    blocks = {"validation": [held], "evaluate": evaluate, "spikes": spikes, "optimizer": {"lr": 0.5}}
    checkpoint = {"every_steps": 4, "keep_last": 9}
    return write_job(folder, made.path, **{**blocks, "checkpoint": checkpoint, "steps": 16, **overrides})


def told(root: Path) -> list[dict[str, Any]]:
    """What was evaluated, and what was said of it."""
    events = [event for event in read_events(RunPaths(root)) if event["kind"] in ("evaluation", "validation_rise")]
    return [{key: event[key] for key in FACTS if key in event} for event in events]


def watches(root: Path) -> dict[int, Any]:
    """Step -> what the checkpoint holds of the spike watch."""
    return {one.facts.step: one.facts.state["spikes"] for one in list_checkpoints(root / "checkpoints")[0]}


def fail_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The evaluation of that number, counted from 1, finds no memory."""
    real, calls = Evaluation.__call__, [0]

    def call(self: Evaluation, *args: Any) -> Evaluated:
        calls[0] += 1
        if calls[0] == count:
            raise MemoryError("no memory for the evaluation")
        return real(self, *args)

    monkeypatch.setattr(Evaluation, "__call__", call)


@pytest.fixture(scope="module")
def whole(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("whole")
    result = train(job_in(folder, made))
    kinds = {event["kind"] for event in told(folder / "run")}
    assert kinds == {"evaluation", "validation_rise"}, "the case is not the one that is meant"
    return folder / "run", result.parameters


def check(root: Path, whole: tuple[Path, str], parameters: str) -> None:
    assert parameters == whole[1]
    assert losses(root) == losses(whole[0])
    assert told(root) == told(whole[0])
    assert watches(root) == watches(whole[0])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_that_fails_costs_no_step_and_is_made_up_for(
    made: MadeDataset, tmp_path: Path, whole: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    job, root = job_in(tmp_path, made), tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_at(patch, count)
        with pytest.raises(MemoryError):
            train(job)
    assert max(watches(root)) == 4 * count
    assert len(losses(root)) == 4 * count
    check(root, whole, train(job).parameters)
    assert len(metrics(root)) == len(metrics(whole[0]))  # no step was done twice


def test_one_that_fails_at_each_start_keeps_what_is_saved(made: MadeDataset, tmp_path: Path, whole: Any) -> None:
    job, root = job_in(tmp_path, made), tmp_path / "run"
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, 1)
            with pytest.raises(MemoryError):
                train(job)
        assert max(watches(root)) == 4
    assert train(job, "evaluate.every_steps=0").parameters == whole[1]  # the way out


def test_what_an_earlier_start_evaluated_is_known_and_not_evaluated_again(
    made: MadeDataset, tmp_path: Path, whole: tuple[Path, str]
) -> None:
    job, root = job_in(tmp_path, made), tmp_path / "run"
    for steps in (4, 4, 8, 12):
        train(job, f"steps={steps}")
    check(root, whole, train(job).parameters)


def test_killed_behind_the_save_it_is_made_up_for(made: MadeDataset, tmp_path: Path, whole: tuple[Path, str]) -> None:
    job, root = job_in(tmp_path, made), tmp_path / "run"

    def killed() -> None:
        def call(self: Evaluation, *args: Any) -> Evaluated:
            for _ in range(1000):  # ten seconds: it is being saved meanwhile
                if 4 in watches(root):
                    break
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        Evaluation.__call__ = call  # type: ignore[method-assign]
        train(job)

    assert exit_code_of(killed) == -9
    check(root, whole, train(job).parameters)


def test_a_rollback_knows_what_was_evaluated_on_the_branch_it_leaves(
    made: MadeDataset, tmp_path: Path, whole: tuple[Path, str]
) -> None:
    job, root = job_in(tmp_path, made), tmp_path / "run"
    train(job)
    roll_back(root, 8, lambda line: None)
    assert train(job).parameters == whole[1]
    found = [event for event in told(root) if event["kind"] == "evaluation"]
    assert [(event["branch"], event["step"]) for event in found] == [
        *((0, step) for step in (4, 8, 12, 16)),
        *((1, step) for step in (12, 16)),
    ]
    assert found[4]["loss"] == found[2]["loss"]
