"""A rollback of the watch, ended at each of its system calls: by kill -9, half a write, a full or a broken disk, a loss
of power. Started again, the run comes to the same branches, cuts, losses and parameters as if nothing had happened.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.bumps import BumpedWatch, spec, spikes
from support.datasets import make_dataset
from support.syscalls import ERRNO, KILL, SUPPORTED, TORN, Action, Call, Fail, trace
from support.syscalls_power import Disk
from support.training import losses, train, write_job

from loader.errors import TokenreelError, file_system_error
from loader.files import sync_tree
from loader.run_folder import RunPaths, read_events
from loader.run_verify import verify_run
from loader.runs import read_branches, read_skips
from train import loop

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone")
POWER = ("least", "order", "some")
FAULTS = ("kill", "torn", "ENOSPC", "EIO", *POWER)
STEPS, BEFORE, ALARM = 18, 15, 15
WORSE = {0: (ALARM, ALARM + 1, ALARM + 2)}


class Watch:
    """Looks on from the alarm's verdict to the first save of the new branch; spoils one of the calls in between."""

    def __init__(self, run: Path, at: int = -1, fault: str = "") -> None:
        self.run, self.at, self.fault = run, at, fault
        self.calls: list[str] = []
        self._begun = self._ended = False
        self.disk = Disk(run) if fault in POWER else None

    def before(self, call: Call) -> Action:
        self._begun = self._begun or "verdict" in _tail(self.run / "events.jsonl")
        self._ended = self._ended or (self._begun and call.name == "mkdir" and "/.tmp-" in call.path)
        if self._begun and not self._ended:
            self.calls.append(f"{call.name} {Path(call.target or call.path).relative_to(self.run)}")
            if len(self.calls) - 1 == self.at:
                return Fail(ERRNO[self.fault]) if self.fault in ERRNO else TORN if self.fault == "torn" else KILL
        if self.disk is not None:
            self.disk.before(call)
        return None

    def after(self, call: Call, result: int) -> None:
        if self.disk is not None:
            self.disk.after(call, result)


def _tail(path: Path) -> str:
    """The end of a file, enough for its last event."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        return file.read().decode("utf-8", "replace")


@dataclass(frozen=True)
class Ready:
    """A run in front of its alarm, and the same run at its end.

    Attributes:
        job: of ``run``. before: copy of the run at step 15. whole: folder of the finished one. parameters: of it.
        calls: those that the rollback makes.
    """

    job: Path
    run: Path
    before: Path
    whole: Path
    parameters: str
    calls: tuple[str, ...]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(loop, "SpikeWatch", BumpedWatch)
    patch.setattr(BumpedWatch, "worse", WORSE)
    patch.setattr(BumpedWatch, "broken", {})
    folder = tmp_path_factory.mktemp("rollback")
    made = make_dataset(folder, spec())
    data = {"datasets": ["data"], "batch": [{"start": 0, "global_batch": 8}]}
    checkpoint = {"every_steps": 4, "keep_last": 9}
    job = write_job(folder, made.path, steps=STEPS, data=data, spikes=spikes(), checkpoint=checkpoint)
    run = folder / "run"
    train(job, f"steps={BEFORE}")
    shutil.copytree(run, folder / "before")
    found = train(job)
    assert (found.branch, found.rollbacks) == (1, 1)
    run.rename(folder / "whole")
    one = Ready(job, run, folder / "before", folder / "whole", found.parameters, ())
    watch = Watch(run)
    restore(one)
    assert trace(lambda: train_once(job), str(run), watch) == 0
    yield Ready(job, run, folder / "before", folder / "whole", found.parameters, tuple(watch.calls))
    patch.undo()


def restore(ready: Ready) -> None:
    shutil.rmtree(ready.run, ignore_errors=True)
    shutil.copytree(ready.before, ready.run)
    sync_tree(ready.run)


def train_once(job: Path) -> int:
    train(job)
    return 0


def once(ready: Ready, at: int, fault: str) -> None:
    """One run with one fault, and the next start behind it."""
    restore(ready)
    watch = Watch(ready.run, at, fault)
    code = trace(lambda: _as_command(ready.job), str(ready.run), watch)
    if watch.disk is not None:
        watch.disk.lose_power(random.Random(f"{at} {fault}"), fault)
    if fault in ERRNO:
        assert code in (0, 1), code  # named, see _as_command; or it did not matter
    else:
        assert code is None, code
    found = train(ready.job)
    assert (found.parameters, found.branch) == (ready.parameters, 1)
    paths, whole = RunPaths(ready.run), RunPaths(ready.whole)
    assert len(read_branches(paths)) == 2
    assert read_skips(paths) == read_skips(whole)
    for branch in (0, 1):
        assert losses(ready.run, branch) == losses(ready.whole, branch)
    assert not verify_run(ready.run)
    kinds = [event["kind"] for event in read_events(paths)]
    assert kinds.count("verdict") >= 1
    assert [e["outcome"] for e in read_events(paths) if e["kind"] == "outcome"] == ["recovered"]


def _as_command(job: Path) -> int:
    """The exit code of ``tokenreel train``; 111 for an error of the file system that it has no name for."""
    try:
        train(job)
    except TokenreelError as error:
        return error.exit_code
    except OSError as error:
        told = file_system_error(error)
        return 111 if told is None else told.exit_code
    return 0


def sweep(ready: Ready, plan: Sequence[tuple[int, str]]) -> None:
    for at, fault in plan:
        try:
            once(ready, at, fault)
        except BaseException as error:
            error.add_note(f"{fault} at call {at}: {ready.calls[at]}")
            raise


def test_the_calls_are_those_of_a_rollback(ready: Ready) -> None:
    """The sweeps below pass through the pin, the branch with its cuts, their files, the ledger and the events."""
    told = "\n".join(ready.calls)
    for part in ("checkpoints/pinned", "branches.json", "skips/", "ledger/1", "events.jsonl"):
        assert part in told, told


def test_ended_at_some_calls(ready: Ready) -> None:
    rng = random.Random(8)
    points = sorted(rng.sample(range(len(ready.calls)), 5))
    sweep(ready, list(zip(points, ("kill", "torn", "ENOSPC", "EIO", "some"), strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_ended_at_every_call(ready: Ready, fault: str) -> None:
    sweep(ready, [(at, fault) for at in range(len(ready.calls))])
