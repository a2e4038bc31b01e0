"""Labels of a global batch are summed over two ranks while the step before computes: what a step still waits for."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.synthetic import FakeBatch, fake_batch
from support.training import ledger, train, write_job
from support.worlds import run_ranks

from loader.settings import load_config
from train import step
from train.ahead import CountedBatches
from train.config import TrainConfig
from train.process import train_process
from train.world import World, join_world

READS = ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__")
COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "barrier", "all_gather_object", "broadcast_object_list")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("data"), DatasetSpec(seq_len=32))


def trace(seen: list[str]) -> None:
    """From here on this process notes what its main thread waits for, and when it computes."""

    def noting(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not options.get("async_op"):
                seen.append(name)
            return real(*arguments, **options)

        setattr(owner, name, call)

    for name in READS:
        noting(torch.Tensor, name)
    for name in COLLECTIVES:
        noting(dist, name)
    noting(step, "_update")
    begin = World.begin_sum

    def begin_sum(world: World, value: int) -> Callable[[], int]:
        seen.append("begin")
        total = begin(world, value)

        def ask() -> int:
            seen.append("ask")
            return total()

        return ask

    World.begin_sum = begin_sum  # type: ignore[method-assign]


def test_a_step_waits_for_its_numbers_once(made: MadeDataset, tmp_path: Path) -> None:
    """Two ranks, runs of different lengths: each step adds one count, begun before its predecessor computes, one
    vector that is summed and read, and the norm that all ranks clip by."""
    jobs = {}
    for steps in (4, 9):
        never = {"every_steps": 1000}
        jobs[steps] = write_job(
            tmp_path, made.path, f"job{steps}", output=f"run{steps}", steps=steps, checkpoint=never,
            parallel={"data": "fsdp"}, run={"tensorboard": False},
        )  # fmt: skip

    def work(rank: int) -> list[list[str]]:
        seen: list[str] = []
        trace(seen)
        found = []
        for job in jobs.values():
            seen.clear()
            train_process(load_config(job, TrainConfig), lambda line: None)
            found.append(list(seen))
        return found

    # The ranks join a world twice, each time in a store of their own name.
    for ended in run_ranks(work, 2, tmp_path / "world"):
        assert ended.code == 0, ended.text
        short, long = ended.value
        more = {name: count / 5 for name, count in (collections.Counter(long) - collections.Counter(short)).items()}
        assert more == {"begin": 1, "ask": 1, "_update": 1, "all_reduce": 2, "cpu": 1, "numpy": 1, "__int__": 1}
        moments = [name for name in long if name in ("begin", "ask", "_update")]
        assert moments == ["begin", *["begin", "ask", "_update"] * 8, "ask", "_update"]


def batches_of(rank: int, steps: int) -> list[FakeBatch]:
    """Rank 1 has no labels in every second step, nobody any in every sixth; the numbers of samples change."""
    out = []
    for number in range(steps):
        batch = fake_batch(number, rows=2 + number // 3 + rank)
        if (rank and number % 2) or number % 6 == 5:
            batch = replace(batch, labels_BT=np.full_like(batch.labels_BT, -100))
        out.append(batch)
    return out


def test_counts_are_those_of_all_ranks(tmp_path: Path) -> None:
    """A sum that was begun and never asked for, as a rollback leaves it, does not shift the ones behind it."""
    steps = 12

    def work(rank: int) -> list[Any]:
        found: list[Any] = []
        with join_world("cpu") as world:
            for stop in (5, steps, 1):
                stream = iter(batches_of(rank, steps))
                taken = CountedBatches(stream, world, stop + 1 if stop < steps else stop)  # type: ignore[arg-type]
                found.append([taken.take().label_count() for _ in range(stop)])
                world.barrier()
        return found

    pairs = zip(batches_of(0, steps), batches_of(1, steps), strict=True)
    right = [first.num_labels + second.num_labels for first, second in pairs]
    assert right[5] == right[11] == 0 < min(right[:5])
    for ended in run_ranks(work, 2, tmp_path / "world"):
        assert ended.code == 0, ended.text
        assert ended.value == [right[:5], right, right[:1]]


def test_a_rank_that_cannot_read_ahead_shifts_no_count(tmp_path: Path) -> None:
    """The other rank's sum of that step was begun; both go back and count on."""
    steps = 8

    def stream(rank: int, broken: int) -> Any:
        for number, batch in enumerate(batches_of(rank, steps)):
            if rank == 1 and number == broken:
                raise OSError("gone")
            yield batch

    def work(rank: int) -> list[Any]:
        found: list[Any] = []
        with join_world("cpu") as world:
            for broken in (3, steps):
                taken = CountedBatches(stream(rank, broken), world, steps)
                found.append([taken.take().label_count() for _ in range(min(broken, steps))])
                world.barrier()
        return found

    pairs = zip(batches_of(0, steps), batches_of(1, steps), strict=True)
    right = [first.num_labels + second.num_labels for first, second in pairs]
    for ended in run_ranks(work, 2, tmp_path / "world"):
        assert ended.code == 0, ended.text
        assert ended.value == [right[:3], right]


def test_growing_batches_with_evaluation_and_saves_count_alike(made: MadeDataset, tmp_path: Path) -> None:
    """On two ranks, stopped and resumed in the ramp, the ledger says what one process says. The step that it is resumed
    at was scored just before it was saved: what scoring gathered is no part of the checkpoint."""
    for name in ("alone", "both"):
        (tmp_path / name).mkdir()
    ramp = [{"start": 0, "global_batch": 3}, {"start": 12, "global_batch": 4}, {"start": 28, "global_batch": 6}]
    jobs = [
        write_job(
            tmp_path / name, made.path, checkpoint={"every_steps": 3}, evaluate={"every_steps": 2, "samples": 4},
            validation=[os.path.relpath(made.path, tmp_path / name)], parallel={"data": "fsdp"},
            data={"datasets": [os.path.relpath(made.path, tmp_path / name)], "batch": ramp},
        )
        for name in ("alone", "both")
    ]  # fmt: skip
    train(jobs[0])

    def work(rank: int) -> int:
        for steps in (6, 12):
            train_process(load_config(jobs[1], TrainConfig, [f"steps={steps}"]), lambda line: None)
        return rank

    for ended in run_ranks(work, 2, tmp_path / "world"):
        assert ended.code == 0, ended.text
    alone, both = ledger(tmp_path / "alone" / "run"), ledger(tmp_path / "both" / "run")
    assert len(alone) == 12
    for name in ("label_count", "token_digest", "first_position", "next_position", "source_labels_S"):
        assert both[name].tolist() == alone[name].tolist(), name
    assert np.abs(both["loss"] - alone["loss"]).max() < 2e-6


def test_a_batch_that_cannot_be_read_fails_at_its_own_step() -> None:
    """Read a step ahead, it is told when its turn comes; the stream heals, and the step is read again."""
    broken = [True]

    def stream(first: int) -> Any:
        for number in itertools.count(first):
            if number == 2 and broken:
                broken.clear()
                raise OSError("gone")
            yield fake_batch(number)

    class Healing:
        """Like ``Stream``: it stays at the step that failed."""

        def __init__(self) -> None:
            self.inner, self.next = stream(0), 0

        def __next__(self) -> FakeBatch:
            try:
                batch: FakeBatch = next(self.inner)
            except OSError:
                self.inner = stream(self.next)
                raise
            self.next += 1
            return batch

    batches = CountedBatches(Healing(), World(), 4)  # type: ignore[arg-type]
    assert [batches.take().batch.step for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        batches.take()
    assert [batches.take().batch.step for _ in range(2)] == [2, 3]
