"""Checkpoints of several ranks: each writes its own file, and what fails in one fails in all, by name and without end
in sight for none of them.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from support.worlds import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from loader import block_hashes
from loader.errors import DamageError
from train import checkpoint as module
from train import dcp_storage
from train.checkpoint import (
    Checkpoint,
    CheckpointFacts,
    list_checkpoints,
    load_tensors,
    open_checkpoint,
    save_checkpoint,
    verify_checkpoint,
    verify_together,
)
from train.saver import Saver
from train.world import World, join_world

ROWS = 4096


def facts(step: int) -> CheckpointFacts:
    return CheckpointFacts(step, 0, 0, step, {"next_position": step}, {"data": 2}, {"spikes": {}})


def spread(world: World, value: float) -> dict[str, torch.Tensor]:
    """A tensor cut over the ranks by rows, each with numbers of its own, and one that all hold."""
    mesh = init_device_mesh("cpu", (world.size,))
    own = torch.full((ROWS // world.size, 8), value + world.rank)
    return {"model.weight": DTensor.from_local(own, mesh, [Shard(0)]), "model.bias": torch.full((5,), value)}


def check(found: Checkpoint, value: float, ranks: int = 2) -> None:
    """Loaded by one process alone."""
    verify_checkpoint(found)
    tensors = {"model.weight": torch.zeros(ROWS, 8), "model.bias": torch.zeros(5)}
    load_tensors(found, tensors)
    expected = torch.arange(ranks).repeat_interleave(ROWS // ranks).float()[:, None].expand(ROWS, 8) + value
    assert torch.equal(tensors["model.weight"], expected)
    assert torch.equal(tensors["model.bias"], torch.full((5,), value))


def save_in_world(folder: Path, step: int) -> None:
    with join_world("cpu") as world:
        save_checkpoint(folder, spread(world, step), facts(step), world)


def test_each_rank_writes_its_file_and_a_file_system_that_refuses_one_rank_ends_all(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def work(rank: int) -> str:
        with join_world("cpu") as world:
            first = save_checkpoint(folder, spread(world, 1), facts(1), world)
            saver = Saver(folder, world)
            if rank == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
            saver.save(spread(world, 2), facts(2), lambda checkpoint: None)
            saver.wait()
        return first.path.name

    ended = run_ranks(work, 2, tmp_path / "world")
    assert [one.code for one in ended] == [1, 1]
    assert sorted(one.told for one in ended) == ["TR-CHECKPOINT-WRITE", "echo"]
    assert "rank 1: File too large" in "".join(one.text for one in ended)
    assert [path.name for path in folder.iterdir()] == ["step_000001"]
    found = open_checkpoint(folder / "step_000001")
    assert sorted(found.files) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    check(found, 1)


def test_a_killed_rank_ends_the_save_of_all_and_the_next_start_saves(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def work(rank: int) -> None:
        with join_world("cpu") as world:
            save_checkpoint(folder, spread(world, 1), facts(1), world)
            if rank == 1:
                finish = dcp_storage.HashingWriter.write_data

                def killed(self: object, *args: object) -> None:
                    finish(self, *args)  # type: ignore[arg-type]
                    os.kill(os.getpid(), signal.SIGKILL)

                dcp_storage.HashingWriter.write_data = killed  # type: ignore[assignment,method-assign]
            save_checkpoint(folder, spread(world, 2), facts(2), world)

    ended = run_ranks(work, 2, tmp_path / "world")
    assert [one.code for one in ended] == [1, -9]
    assert ended[0].told == "TR-WORLD-PEER"
    good, damaged = list_checkpoints(folder)
    assert [found.facts.step for found in good] == [1]
    assert not damaged
    run_ranks(lambda rank: save_in_world(folder, 2), 2, tmp_path / "again")
    check(open_checkpoint(folder / "step_000002"), 2)
    check(good[0], 1)


@pytest.mark.slow
def test_a_rank_that_does_not_answer_ends_the_save_after_the_time_out(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def work(rank: int) -> None:
        with join_world("cpu", saving_timeout_s=1) as world:
            if rank == 1:
                time.sleep(6)
                os._exit(0)
            save_checkpoint(folder, spread(world, 2), facts(2), world)

    ended = run_ranks(work, 2, tmp_path / "world")
    assert (ended[0].code, ended[0].told) == (1, "TR-WORLD-PEER")
    assert not list(folder.glob("step_*"))


def test_ranks_verify_shares_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 1 kB: each rank reads only its share, and damage anywhere is the verdict of all."""
    folder = tmp_path / "checkpoints"
    monkeypatch.setattr(block_hashes, "BLOCK_BYTES", 1024)
    run_ranks(lambda rank: save_in_world(folder, 1), 2, tmp_path / "saving")
    path = folder / "step_000001"
    found = open_checkpoint(path)
    assert len(found.files["__1_0.distcp"][1]) > 32 * 50
    places = [path / name for name in found.files for _ in (0, 1)]
    intact = {place: place.read_bytes() for place in places}

    def work(rank: int) -> list[object]:
        read: list[int] = []
        hashed = module.hash_block

        def counted(place: Path, number: int) -> str:
            read.append(1)
            return hashed(place, number)

        pytest.MonkeyPatch().setattr(module, "hash_block", counted)  # this process ends behind the test
        verdicts = []
        with join_world("cpu") as world:
            verify_together(path, world)
            share = len(read)
            for number, place in enumerate(places):
                if world.leads:
                    data = bytearray(intact[place])
                    data[-1 if number % 2 else 0] ^= 1
                    place.write_bytes(data)
                world.barrier()
                try:
                    verify_together(path, world)
                    verdicts.append("intact")
                except DamageError as error:
                    verdicts.append(str(error))
                world.barrier()
                if world.leads:
                    place.write_bytes(intact[place])
            world.barrier()
            verify_together(path, world)
        return [share, verdicts]

    (first, verdicts), (second, same) = [one.value for one in run_ranks(work, 2, tmp_path / "verifying")]
    blocks = sum(len(digest) // 32 for _, digest in found.files.values())
    assert first + second == blocks
    assert abs(first - second) <= 1
    assert verdicts == same
    assert all(str(place) in verdict for place, verdict in zip(places, verdicts, strict=True))


def test_saves_back_to_back_beside_training_collectives(tmp_path: Path) -> None:
    """With one group for both this aborts or never ends (KempnerForge issue 104)."""
    folder = tmp_path / "checkpoints"

    def work(rank: int) -> float:
        with join_world("cpu") as world:
            saver, tensors, total = Saver(folder, world), spread(world, 0), torch.zeros(1)
            for step in range(12):
                saver.save(tensors, facts(step), lambda checkpoint: None)
                for _ in range(20):
                    part = torch.ones(1000)
                    world.sum_(part)
                    total += part[0]
                for tensor in tensors.values():
                    tensor.add_(1)
            saver.wait()
        return float(total)

    assert [one.value for one in run_ranks(work, 2, tmp_path / "world")] == [480.0, 480.0]
    for step in (0, 11):
        check(open_checkpoint(folder / f"step_{step:06d}"), step)
