"""Training runs of several ranks, stopped in any way and taken up again on the same mesh or another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import ledger, losses, write_job
from support.worlds import Ended, run_ranks

from loader.run_folder import RunPaths, read_events
from loader.settings import load_config
from train.config import TrainConfig
from train.process import train_process

MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24}
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {"parallel": {"data": "fsdp"}, "micro_batch": 1},
    "ddp": {"parallel": {"data": "ddp"}},
    "tensor": {"parallel": {"tensor": 2}, "micro_batch": 2},
    "pipeline": {"parallel": {"pipeline": 2}, "micro_batch": 2},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("data"), DatasetSpec(seq_len=32))


def job_on(folder: Path, made: MadeDataset, mesh: str, **overrides: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_job(folder, made.path, **{"model": MODEL, **MESHES[mesh], **overrides})


def train_in_world(
    job: Path, size: int, *overrides: str, watch: Callable[[list[int]], object] = lambda pids: None
) -> list[Ended]:
    """One start of ``size`` ranks."""

    def work(rank: int) -> object:
        said: list[str] = []
        result, code = train_process(load_config(job, TrainConfig, overrides), said.append)
        return {**asdict(result), "exit": code, "said": said}

    starts = len(list(job.parent.glob("world-*")))
    return run_ranks(work, size, job.parent / f"world-{starts}", watch)


def digests(root: Path) -> list[int]:
    return [int(digest) for digest in ledger(root)["token_digest"]]


def same_ledger(first: Path, second: Path) -> None:
    """Every number of every step is equal, bit by bit; branch, attempt and the chain of checksums aside."""
    left, right = ledger(first), ledger(second)
    for name in set(left.dtype.names or ()) - {"branch", "attempt", "checksum"}:
        assert left[name].tobytes() == right[name].tobytes(), name


def check_resume(made: MadeDataset, folder: Path, mesh: str) -> None:
    """12 steps at once, and 12 steps in three starts: bit-equal."""
    whole = train_in_world(job_on(folder / "whole", made, mesh), 2)
    assert [one.code for one in whole] == [0, 0], whole
    job = job_on(folder / "parts", made, mesh)
    for steps in (3, 7, 12):
        parts = train_in_world(job, 2, f"steps={steps}")
        assert [one.code for one in parts] == [0, 0], parts
    assert {one.value["parameters"] for one in parts} == {whole[0].value["parameters"]}
    same_ledger(folder / "whole" / "run", folder / "parts" / "run")


def test_fsdp_with_accumulation_resumes_bit_equal(made: MadeDataset, tmp_path: Path) -> None:
    check_resume(made, tmp_path, "fsdp")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["ddp", "tensor", "pipeline"])
def test_other_meshes_resume_bit_equal(made: MadeDataset, tmp_path: Path, mesh: str) -> None:
    check_resume(made, tmp_path, mesh)


def kill_when(path: Path, number: int, rank: int) -> Callable[[list[int]], None]:
    """Send one signal to one rank as soon as ``path`` exists."""
    sent: list[int] = []

    def watch(pids: list[int]) -> None:
        if not sent and path.exists():
            os.kill(pids[rank], number)
            sent.append(rank)

    return watch


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_one_rank_saves_the_same_step_on_all(made: MadeDataset, tmp_path: Path, number: int) -> None:
    job = job_on(tmp_path, made, "fsdp", steps=4000, checkpoint={"every_steps": 1000})
    root = tmp_path / "run"
    ended = train_in_world(job, 2, watch=kill_when(root / "checkpoints" / "step_000000", number, 1))
    assert [one.code for one in ended] == [0, 0], ended
    stopped = {(one.value["outcome"], one.value["step"], one.value["exit"]) for one in ended}
    assert len(stopped) == 1
    outcome, step, code = stopped.pop()
    assert (outcome, code) == ("stopped", 0)
    assert 0 < step < 4000
    assert (root / "checkpoints" / f"step_{step:06d}" / "COMMIT.json").exists()
    assert len(ledger(root)) == step


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_all_and_the_next_start_ends_bit_equal(made: MadeDataset, tmp_path: Path, rank: int) -> None:
    """The folder of the run moves between the starts, as when a machine is replaced."""
    whole = train_in_world(job_on(tmp_path / "whole", made, "fsdp"), 2)
    job = job_on(tmp_path / "killed", made, "fsdp")
    kill = kill_when(tmp_path / "killed" / "run" / "checkpoints" / "step_000004", signal.SIGKILL, rank)
    ended = train_in_world(job, 2, watch=kill)
    assert ended[rank].code == -9
    assert ended[1 - rank].code == 1
    assert ended[1 - rank].told == "TR-WORLD-PEER"
    (tmp_path / "other").mkdir()
    job = job_on(tmp_path / "other" / "place", made, "fsdp")
    (tmp_path / "killed" / "run").rename(tmp_path / "other" / "place" / "run")
    again = train_in_world(job, 2)
    assert {one.value["parameters"] for one in again} == {whole[0].value["parameters"]}
    same_ledger(tmp_path / "whole" / "run", tmp_path / "other" / "place" / "run")


@pytest.mark.slow
def test_a_damaged_newest_is_named_once_and_the_older_one_taken(made: MadeDataset, tmp_path: Path) -> None:
    job = job_on(tmp_path, made, "fsdp")
    train_in_world(job, 2, "steps=9")
    place = tmp_path / "run" / "checkpoints" / "step_000009" / "__1_0.distcp"
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 4
    place.write_bytes(data)
    ended = train_in_world(job, 2)
    assert [one.code for one in ended] == [0, 0]
    named = [line for one in ended for line in one.value["said"] if "damaged checkpoint" in line]
    assert len(named) == 1
    assert str(place) in named[0]
    events = read_events(RunPaths(tmp_path / "run"))
    assert sum(event["kind"] == "checkpoint_damaged" for event in events) == 1
    assert [event for event in events if event["kind"] == "resume"][-1]["checkpoint"] == "step_000008"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp", "tensor", "pipeline"])
def test_two_ranks_then_one_then_four(made: MadeDataset, tmp_path: Path, mesh: str) -> None:
    """The stream of tokens does not know how many ranks there are; losses differ by the order of additions only."""
    data = {"datasets": [os.path.relpath(made.path, tmp_path / "one")], "batch": [{"start": 0, "global_batch": 8}]}
    (tmp_path / "one").mkdir()
    plain = write_job(tmp_path / "one", made.path, model=MODEL, data=data, steps=15)
    (whole,) = train_in_world(plain, 1)
    root = tmp_path / "many" / "run"
    job = job_on(tmp_path / "many", made, mesh, data=data, steps=5)
    assert [one.code for one in train_in_world(job, 2)] == [0, 0]
    alone = write_job(tmp_path / "many", made.path, "alone", model=MODEL, data=data, steps=10)
    assert [one.code for one in train_in_world(alone, 1)] == [0]
    assert [one.code for one in train_in_world(job, 4, "steps=15")] == [0] * 4
    assert whole.value["step"] == 15
    assert digests(root) == digests(tmp_path / "one" / "run")
    assert np.max(np.abs(np.array(losses(root)) - np.array(losses(tmp_path / "one" / "run")))) <= 2e-6
