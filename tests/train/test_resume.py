"""A run that was stopped in any way ends bit-equal to one that was not."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import exit_code, killed_after, ledger, losses, metrics, train, write_job

from loader.errors import DamageError, RefusedError
from loader.run_folder import RunPaths, lock_run, read_events
from loader.runs import list_attempts
from train.loop import RunResult

STEPS = 12


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeDataset, RunResult, Path]:
    """A Dataset, an uninterrupted run over it, and that run's folder."""
    folder = tmp_path_factory.mktemp("resume")
    made = make_dataset(folder, DatasetSpec(seq_len=32))
    return made, train(write_job(folder, made.path)), folder / "run"


def same_ledger(first: Path, second: Path) -> None:
    """Every number of every step, NaN equal to NaN; branch, attempt and the chain of checksums aside."""
    left, right = ledger(first), ledger(second)
    assert len(left) == len(right)
    for name in set(left.dtype.names or ()) - {"branch", "attempt", "checksum"}:
        assert left[name].tobytes() == right[name].tobytes(), name


def check_metrics(root: Path, steps: int) -> None:
    """One line a step, in order: no gap, no double, no torn line."""
    lines = metrics(root)
    assert [line["step"] for line in lines] == list(range(steps))
    assert [line["loss"] for line in lines] == losses(root)


def test_stopping_at_any_step_and_going_on(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    made, whole, root = world
    job = write_job(tmp_path, made.path)
    for steps in (1, 2, 3, 7, STEPS):
        found = train(job, f"steps={steps}")
        assert (found.outcome, found.step) == ("finished", steps)
    assert found.parameters == whole.parameters
    assert found.loss == whole.loss
    same_ledger(root, tmp_path / "run")
    check_metrics(tmp_path / "run", STEPS)
    assert train(job).parameters == whole.parameters


def run_with_kills(job: Path, rounds: int, rng: random.Random, number: int = signal.SIGKILL) -> list[int]:
    """Start, kill when the ledger or the checkpoint folder has grown to a random size, start again ..."""
    root, codes = job.parent / "run", []

    def progress() -> int:
        files = sum(len(names) for _, _, names in os.walk(root / "checkpoints"))
        return files + sum(path.stat().st_size // 60 for path in root.glob("ledger/0/*.bin"))

    for _ in range(rounds):
        goal = progress() + rng.randrange(1, 14)
        codes.append(killed_after(lambda: train(job), lambda goal=goal: progress() >= goal, number))  # type: ignore[misc]
        if codes[-1] == 0:
            break
    return codes


def kill_and_compare(made: MadeDataset, whole: RunResult, root: Path, folder: Path, seed: int) -> None:
    job = write_job(folder, made.path)
    codes = run_with_kills(job, 5, random.Random(seed))
    assert set(codes) <= {0, -9}
    assert -9 in codes
    found = train(job)
    assert found.parameters == whole.parameters
    same_ledger(root, folder / "run")
    check_metrics(folder / "run", STEPS)
    assert not list((folder / "run" / "checkpoints").glob(".tmp*"))


def test_kill_9_at_random_moments(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    for seed in range(2):
        (tmp_path / f"{seed}").mkdir()
        kill_and_compare(*world, tmp_path / f"{seed}", seed)


@pytest.mark.slow
def test_kill_9_at_many_random_moments(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    for seed in range(100, 120):
        (tmp_path / f"{seed}").mkdir()
        kill_and_compare(*world, tmp_path / f"{seed}", seed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_ends_in_order(
    world: tuple[MadeDataset, RunResult, Path], tmp_path: Path, number: int
) -> None:
    made, whole, _ = world
    job = write_job(tmp_path, made.path, checkpoint={"every_steps": 1000, "keep_last": 2})
    root = tmp_path / "run"
    code = killed_after(lambda: os._exit(exit_code(job)), (root / "checkpoints" / "step_000000").exists, number)
    assert code == {signal.SIGTERM: 0, signal.SIGINT: 130}[number]
    stopped = [event for event in read_events(RunPaths(root)) if event["kind"] == "stopped"]
    assert len(stopped) == 1
    assert 0 < stopped[0]["step"] < STEPS
    assert (root / "checkpoints" / f"step_{stopped[0]['step']:06d}").is_dir()
    assert train(job).parameters == whole.parameters
    same_ledger(world[2], root)


def test_a_damaged_checkpoint_is_named_and_the_next_older_one_taken(
    world: tuple[MadeDataset, RunResult, Path], tmp_path: Path
) -> None:
    made, whole, _ = world
    job, root = write_job(tmp_path, made.path), tmp_path / "run"
    train(job, "steps=11")
    folders = sorted((root / "checkpoints").iterdir())
    assert [path.name for path in folders] == ["step_000004", "step_000008", "step_000011"]
    rng = random.Random(1)
    for path in folders[1:]:
        file = rng.choice(sorted(path.iterdir()))
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    remarks: list[str] = []
    found = train(job, say=remarks.append)
    assert found.parameters == whole.parameters
    same_ledger(world[2], root)
    named = [remark for remark in remarks if remark.startswith("damaged checkpoint")]
    assert len(named) == 2
    assert all(any(path.name in remark for remark in named) for path in folders[1:])
    events = read_events(RunPaths(root))
    assert sum(event["kind"] == "checkpoint_damaged" for event in events) == 2
    assert [event for event in events if event["kind"] == "resume"][-1]["checkpoint"] == "step_000004"
    assert all(path.is_dir() for path in folders[1:])  # left alone


def test_without_a_valid_checkpoint_it_does_not_begin_again_silently(
    world: tuple[MadeDataset, RunResult, Path], tmp_path: Path
) -> None:
    made = world[0]
    job, root = write_job(tmp_path, made.path), tmp_path / "run"
    train(job, "steps=5")
    for path in (root / "checkpoints").glob("*/__0_0.distcp"):
        path.write_bytes(b"")
    with pytest.raises(DamageError, match="TR-CHECKPOINT-NONE"):
        train(job)
    shutil.rmtree(root / "checkpoints")
    with pytest.raises(DamageError, match="TR-CHECKPOINT-NONE"):
        train(job)


def test_another_configuration_is_refused_by_name(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    made, whole, _ = world
    job = write_job(tmp_path, made.path)
    train(job, "steps=5")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for override, key in (("model.dim=32", "model.dim"), ("seed=4", "seed"), ("optimizer.lr=0.1", "optimizer.lr"),
                          ("data.seed=3", "data.seed"), ("precision=bf16", "precision")):  # fmt: skip
        with pytest.raises(RefusedError, match=f"(?s)TR-RUN-DIFFERS.*{key}"):
            train(job, override)
    assert before == {path: path.read_bytes() for path in before}
    found = train(job, "checkpoint.every_steps=3", "run.log_every=1")
    assert found.parameters == whole.parameters
    changed = [event for event in read_events(RunPaths(tmp_path / "run")) if event["kind"] == "config_changed"]
    assert [sorted(event["keys"]) for event in changed] == [["checkpoint.every_steps", "steps"]]


def test_batch_and_mixture_may_change_where_they_act_later(
    world: tuple[MadeDataset, RunResult, Path], tmp_path: Path
) -> None:
    made = world[0]
    job = write_job(tmp_path, made.path)
    train(job, "steps=5")
    data = {
        "datasets": ["../" + made.path.name],
        "batch": [{"start": 0, "global_batch": 4}, {"start": 28, "global_batch": 8}],
    }
    data["datasets"] = [str(Path("..") / made.path.parent.name / made.path.name)]
    later = write_job(tmp_path, made.path, "later", data=data)
    found = train(later)
    assert found.step == STEPS
    assert np.diff(ledger(tmp_path / "run")["first_position"]).tolist() == [4] * 7 + [8] * 4
    data["batch"][1]["start"] = 12  # type: ignore[index]
    with pytest.raises(RefusedError, match="TR-CURSOR-BATCH"):
        train(write_job(tmp_path, made.path, "before", data=data), "steps=14")


def test_a_replaced_dataset_is_refused(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    first = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job = write_job(tmp_path, first.path)
    train(job, "steps=2")
    shutil.rmtree(first.path)
    make_dataset(tmp_path, DatasetSpec(seq_len=32, seed=1))
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        train(job)


def test_evaluation_on_or_off_leaves_the_parameters_equal(
    world: tuple[MadeDataset, RunResult, Path], tmp_path: Path
) -> None:
    made, whole, root = world
    make_dataset(tmp_path, DatasetSpec(seq_len=32, seed=5, documents={"web": 9, "code": 4, "books": 1}), "held")
    job = write_job(
        tmp_path, made.path, validation=["held"], evaluate={"every_steps": 3, "samples": 5}, micro_batch=None
    )
    assert train(job).parameters == whole.parameters
    same_ledger(root, tmp_path / "run")
    events = [event for event in read_events(RunPaths(tmp_path / "run")) if event["kind"] == "evaluation"]
    assert [event["step"] for event in events] == [3, 6, 9, 12]
    assert set(events[0]["source_loss"]) == {"web", "code", "books"}
    assert events[-1]["loss"] < events[0]["loss"]


def test_a_run_in_use_is_refused(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path, world[0].path)
    with lock_run(RunPaths(tmp_path / "run")), pytest.raises(RefusedError, match="TR-RUN-BUSY"):
        train(job)


def test_each_start_is_an_attempt(world: tuple[MadeDataset, RunResult, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path, world[0].path)
    for steps in (2, 4):
        train(job, f"steps={steps}")
    assert list_attempts(RunPaths(tmp_path / "run").ledger, 0) == [0, 1]
    assert [line["attempt"] for line in metrics(tmp_path / "run")] == [0, 0, 1, 1]
