"""A save of two ranks, of which the second meets a full or a broken disk at each of its system calls: both end, by the
same error, and what was whole before is whole after.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.syscalls import ERRNO, SUPPORTED, Action, Call, Fail, trace
from support.worlds import Ended, run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from loader.errors import DamageError, JobError
from train.checkpoint import CheckpointFacts, list_checkpoints, verify_checkpoint
from train.failure import EchoError
from train.saver import Saver
from train.world import join_world

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone")
SAVED, REFUSED, ECHOED, DAMAGED = 0, 7, 8, 9


class Watch:
    """Fails one call of the traced rank, or counts them."""

    def __init__(self, at: int = -1, fault: str = "EIO") -> None:
        self.at, self.fault, self.seen = at, fault, 0

    def before(self, call: Call) -> Action:
        del call
        self.seen += 1
        return Fail(ERRNO[self.fault]) if self.seen - 1 == self.at else None

    def after(self, call: Call, result: int) -> None:
        del call, result


def save(folder: Path, step: int) -> int:
    """This rank's part of a save, and how it ended."""
    try:
        with join_world("cpu") as world:
            mesh = init_device_mesh("cpu", (world.size,))
            own = DTensor.from_local(torch.full((64, 8), float(step + world.rank)), mesh, [Shard(0)])
            saver = Saver(folder, world)
            facts = CheckpointFacts(step, 0, 0, step, {"next_position": step}, {"data": 2}, {})
            saver.save({"model.weight": own}, facts, lambda checkpoint: None)
            saver.wait()
    except JobError as error:
        return REFUSED if error.code == "TR-CHECKPOINT-WRITE" else 10
    except EchoError:
        return ECHOED
    except DamageError:
        return DAMAGED
    return SAVED


def save_in_world(folder: Path, step: int, scratch: Path, watch: Watch) -> list[Ended]:
    def work(rank: int) -> list[int]:
        if rank == 0:
            return [save(folder, step), 0]
        code = trace(lambda: save(folder, step), str(folder), watch)
        return [code, watch.seen]

    ended = run_ranks(work, 2, scratch)
    assert [one.code for one in ended] == [0, 0], ended
    return ended


def valid_steps(folder: Path) -> list[int]:
    good, damaged = list_checkpoints(folder)
    assert not damaged
    for checkpoint in good:
        verify_checkpoint(checkpoint)
    return [checkpoint.facts.step for checkpoint in good]


def once(tmp_path: Path, at: int, fault: str) -> list[int]:
    """One failed call, and all that must hold after it; how the ranks ended, sorted."""
    place = tmp_path / f"{fault}-{at}"
    folder = place / "checkpoints"
    save_in_world(folder, 1, place / "first", Watch())
    ended = save_in_world(folder, 2, place / "failed", Watch(at, fault))
    codes = sorted(one.value[0] for one in ended)
    where = f"{fault} at call {at}: {codes}"
    if codes[0] in (SAVED, DAMAGED):  # a call that needs no success; or one rank could not read its share
        assert valid_steps(folder) == [1, 2], where
    else:
        assert codes == [REFUSED, ECHOED], where
        assert valid_steps(folder) == [1], where
    assert not list(folder.glob(".tmp*")), where
    ended = save_in_world(folder, 3, place / "again", Watch())
    assert [one.value[0] for one in ended] == [SAVED, SAVED], where
    assert valid_steps(folder)[-1] == 3
    return codes


def count_calls(tmp_path: Path) -> int:
    return int(save_in_world(tmp_path / "counted", 1, tmp_path / "count", Watch())[1].value[1])


def test_a_full_disk_of_one_rank(tmp_path: Path) -> None:
    assert count_calls(tmp_path) >= 3, "open, write and sync of its file"
    assert once(tmp_path, 1, "ENOSPC") == [REFUSED, ECHOED]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_each_call_of_one_rank_fails(tmp_path: Path, fault: str) -> None:
    ends = [once(tmp_path, at, fault) for at in range(count_calls(tmp_path))]
    assert ends.count([REFUSED, ECHOED]) >= 3, ends
