"""One save with the pruning behind it, ended at every system call: by kill -9, half a write, a full or a broken disk,
or a loss of power. What was whole before is whole after, and the next start takes the newest valid one.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.syscalls import ERRNO, KILL, SUPPORTED, TORN, Action, Call, Fail, trace
from support.syscalls_driver import memory_folder
from support.syscalls_power import Disk
from support.training import exit_code_of

from loader.errors import DamageError
from loader.files import sync_tree
from loader.run_folder import RunPaths
from train.checkpoint import CheckpointFacts, list_checkpoints, load_tensors, remove_unfinished, save_checkpoint
from train.checkpoint_config import CheckpointConfig
from train.keeper import Keeper
from train.lineage import verify_together
from train.world import World

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone")
POWER = ("least", "order", "some")
FAULTS = ("kill", "torn", "ENOSPC", "EIO", *POWER)


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {"model.weight": torch.full((60, 70), float(step)), "model.bias": torch.full((9,), -float(step))}


def save(folder: Path, step: int) -> None:
    facts = CheckpointFacts(step, 0, 0, step, {"next_position": step}, {}, {})
    save_checkpoint(folder, tensors(step), facts)


def save_and_prune(folder: Path) -> int:
    """The third checkpoint, read back as the saver does, and what follows it: the last two stay; 7 where the file
    system refused."""
    said: list[str] = []
    config = CheckpointConfig(keep_last=2, keep_daily=0)
    try:
        save(folder, 3)
        known = list_checkpoints(folder)[0]
        verify_together(known[-1].path, World())
        Keeper(RunPaths(folder.parent), config, said.append, leads=True).follow(known)
    except OSError:
        return 7
    return 7 if said else 0


def valid_steps(folder: Path) -> list[int]:
    """Steps of those that are whole and load; a damaged one under a plain name is a failure of its own."""
    good, damaged = list_checkpoints(folder)
    assert not damaged, damaged
    for checkpoint in good:
        verify_together(checkpoint.path, World())
        loaded = {name: torch.empty_like(tensor) for name, tensor in tensors(0).items()}
        load_tensors(checkpoint, loaded)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors(checkpoint.facts.step).items())
    return [checkpoint.facts.step for checkpoint in good]


class Watch:
    """Ends the process at one of its calls, or lets it be."""

    def __init__(self, root: Path, at: int = -1, fault: str = "") -> None:
        self.at, self.fault, self.seen = at, fault, 0
        self.disk = Disk(root) if fault in POWER else None

    def before(self, call: Call) -> Action:
        self.seen += 1
        if self.seen - 1 == self.at:
            return Fail(ERRNO[self.fault]) if self.fault in ERRNO else TORN if self.fault == "torn" else KILL
        if self.disk is not None:
            self.disk.before(call)
        return None

    def after(self, call: Call, result: int) -> None:
        if self.disk is not None:
            self.disk.after(call, result)


def prepared(root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    folder = root / "checkpoints"
    for step in (1, 2):
        save(folder, step)
    sync_tree(root)
    return folder


def once(root: Path, at: int, fault: str) -> int:
    """One run, and all that must hold after it; how many calls it made."""
    folder = prepared(root)
    watch = Watch(root, at, fault)
    code = trace(lambda: save_and_prune(folder), str(root), watch)
    if watch.disk is not None:
        watch.disk.lose_power(random.Random(f"{at} {fault}"), fault)
    steps = valid_steps(folder)
    assert steps in ([1, 2], [1, 2, 3], [2, 3]), steps
    if code == 0:
        assert 3 in steps
    if fault in ERRNO:  # nothing half-done stays where the process could clean up
        assert code in (0, 7)
        assert 3 in steps or not list(folder.glob(".tmp*")) or fault == "EIO"
    remove_unfinished(folder)
    assert not list(folder.glob(".tmp*"))
    assert save_and_prune(folder) == 0
    assert valid_steps(folder)[-1] == 3
    return watch.seen


def sweep(folder: Path, plan: Sequence[tuple[int, str]] | None) -> dict[str, int]:
    """``plan``: points and faults; None: every fault at every point."""
    root = folder / "root"
    points = once(root, -1, "")
    plan = [(at, fault) for at in range(points) for fault in FAULTS] if plan is None else plan
    for at, fault in plan:
        try:
            once(root, at % points, fault)
        except (AssertionError, DamageError, OSError) as error:
            raise AssertionError(f"{fault} at call {at % points} of {points}: {error!r}") from error
    return {"points": points, "runs": len(plan)}


def run(tmp_path: Path, plan: Sequence[tuple[int, str]] | None) -> dict[str, int]:
    """In a process of its own, for the tracer waits for every child of its process."""
    place = memory_folder(tmp_path) / f"{tmp_path.parent.name}-{tmp_path.name}"
    said = tmp_path / "said"

    def work() -> None:
        try:
            said.write_text(json.dumps(sweep(place, plan)))
        except AssertionError as error:
            said.write_text(json.dumps(str(error)))

    try:
        assert exit_code_of(work) == 0
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found = json.loads(said.read_text())
    assert isinstance(found, dict), found
    return found


def test_ended_at_some_calls(tmp_path: Path) -> None:
    rng = random.Random(4)
    found = run(tmp_path, [(rng.randrange(1000), fault) for fault in FAULTS for _ in (0, 1)])
    assert found["points"] > 20


@pytest.mark.slow
def test_ended_at_every_call(tmp_path: Path) -> None:
    found = run(tmp_path, None)
    assert found["runs"] == found["points"] * len(FAULTS) > 150


@pytest.mark.slow
def test_killed_at_200_random_moments(tmp_path: Path) -> None:
    rng = random.Random(9)
    assert run(tmp_path, [(rng.randrange(1000), "kill") for _ in range(200)])["runs"] == 200
