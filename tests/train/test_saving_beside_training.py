"""Saving in a thread: what is written is the state at the call, one at a time, and a failure reaches the loop."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.training import exit_code, losses, train, write_job

from loader.errors import JobError
from train import saver as module
from train.checkpoint import (
    Checkpoint,
    CheckpointFacts,
    list_checkpoints,
    load_tensors,
    save_checkpoint,
    verify_checkpoint,
)
from train.saver import Saver
from train.stopping import StopFlag
from train.world import World


def facts(step: int) -> CheckpointFacts:
    return CheckpointFacts(step, 0, 0, step, {"next_position": 0}, {}, {})


def test_the_copy_is_taken_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(*args: object) -> Checkpoint:
        assert gate.wait(60)
        return save_checkpoint(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "save_checkpoint", slow)
    saver, weight, done = Saver(tmp_path, World()), torch.arange(5.0), []
    for step in (1, 2):
        gate.clear()
        saver.save({"model.weight": weight}, facts(step), done.append)
        weight += 100  # the training goes on
        assert len(list_checkpoints(tmp_path)[0]) == step - 1
        gate.set()
        saver.wait()
    assert [checkpoint.facts.step for checkpoint in done] == [1, 2]
    for checkpoint, expected in zip(done, (0.0, 100.0), strict=True):
        loaded = torch.empty(5)
        load_tensors(checkpoint, {"model.weight": loaded})
        assert torch.equal(loaded, torch.arange(5.0) + expected)


def test_a_failure_reaches_whoever_waits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> Checkpoint:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_checkpoint", full)
    saver = Saver(tmp_path, World())
    saver.save({"model.weight": torch.zeros(2)}, facts(1), lambda checkpoint: None)
    with pytest.raises(JobError, match="TR-CHECKPOINT-WRITE: cannot write a checkpoint: No space left"):
        saver.wait()
    saver.wait()


def test_a_full_disk_ends_the_run_and_a_later_start_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    whole = train(write_job(tmp_path, made.path, "whole", output="whole"))
    job = write_job(tmp_path, made.path)

    def full_from_step_8(folder: Path, tensors: object, found: CheckpointFacts, group: object) -> Checkpoint:
        if found.step >= 8:
            raise OSError(122, "Disk quota exceeded")
        return save_checkpoint(folder, tensors, found, group)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", full_from_step_8)
        with pytest.raises(JobError, match="quota"):
            train(job)
    assert [checkpoint.facts.step for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints")[0]] == [0, 4]
    assert train(job).parameters == whole.parameters
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_further_signals_do_not_break_the_last_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first save; while the save that answers it runs, every other signal, and Ctrl-C twice."""
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, made.path, steps=100_000, checkpoint={"every_steps": 90_000})
    handled = threading.Semaphore(0)
    handle = StopFlag.handle

    def counted(self: StopFlag, number: int, frame: FrameType | None) -> None:
        handled.release()
        handle(self, number, frame)

    def disturbed(folder: Path, tensors: object, found: CheckpointFacts, world: object) -> Checkpoint:
        numbers = (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1) if found.step else (signal.SIGINT,)
        for number in numbers:
            # A signal that comes while the handler of another runs may sleep with the thread that waits: once more.
            for _ in range(30):
                signal.pthread_kill(threading.main_thread().ident or 0, number)
                if handled.acquire(timeout=2):
                    break
            else:
                raise AssertionError(f"signal {number} was never handled")
        return save_checkpoint(folder, tensors, found, world)  # type: ignore[arg-type]

    monkeypatch.setattr(StopFlag, "handle", counted)
    monkeypatch.setattr(module, "save_checkpoint", disturbed)
    assert exit_code(job) == 130
    first, last = list_checkpoints(tmp_path / "run" / "checkpoints")[0]
    assert (first.facts.step, last.facts.step) == (0, len(losses(tmp_path / "run")))
    verify_checkpoint(last)
