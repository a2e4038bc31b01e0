"""A job whose every system call on files fails once: killed, torn, out of room, broken, or out of power.

A *point* is a call of the undisturbed run with one worker: (call, path below the job's folder without process ids,
which one of its kind on that path). ``Sweep.chain`` fails at the first point that has not failed yet, runs the same
command again from what is left, fails at the next one, and so on to the end: each point fails once, and the job lives
through hundreds of accidents in a row. ``Sweep.single`` fails a fresh job once.

A warm process forks the job, as its imports would cost most of the time; task processes are forked by the job itself
for the same reason, and not by a fork server (tests of kills from outside run the real command).
"""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from dataprep.stages import Stage
from loader.cli import main
from loader.cli_options import Output

from .syscalls import ERRNO, KILL, TORN, Action, Call, Fail, trace
from .syscalls_power import Disk

__all__ = ["FAULTS", "POWER", "Attempt", "Point", "Sweep", "command", "job_files", "left_overs", "warm_up"]

POWER = ("least", "order", "some")
FAULTS = ("kill", "torn", "ENOSPC", "EIO", "full", *POWER)
"""What happens at a point: ``ENOSPC`` and ``EIO`` once; ``full`` leaves no room from there on; the last three are
losses of power (see ``syscalls_power.Disk``)."""
_NEED_ROOM = ("write", "open", "mkdir", "fallocate")
_FOLDERS = ("out", "out-validation", "out-index")
_PIDS = re.compile(r"\.tmp-\d+")
_STAGE = re.compile(r"^out\.work/([a-z]+)-[0-9a-f]{12}(/|$)")
_PUBLISHES = re.compile(r"^out\.work/.* -> out(-[a-z]+)?$")
_MOST_PROBLEMS = 40


class Point(NamedTuple):
    """See the module."""

    name: str
    path: str
    ordinal: int

    @property
    def stage(self) -> str:
        """The stage to whose folder it belongs; ``job`` for everything else."""
        paths = self.path.split(" -> ")
        found = [match.group(1) for path in paths if (match := _STAGE.match(path))]
        return found[0] if len(found) == len(paths) else "job"


@dataclass
class _Watch:
    """Names the points of one run and fails at the first one for which ``fault_at`` names a fault."""

    root: Path
    fault_at: Callable[[Point], str | None]
    disk: Disk | None = None
    seen: list[Point] = field(default_factory=list)
    hit: Point | None = None
    fault: str = ""
    other_device: bool = False
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def before(self, call: Call) -> Action:
        """The observer's half."""
        names = [os.path.relpath(path, self.root) for path in (call.path, call.target) if path]
        path = _PIDS.sub(".tmp-*", " -> ".join(names))
        self._counts[call.name, path] += 1
        point = Point(call.name, path, self._counts[call.name, path])
        self.seen.append(point)
        action = self._action(point)
        if action is None and self.other_device and call.name == "rename" and _PUBLISHES.match(path):
            return Fail(errno.EXDEV)
        if self.disk is not None and action in (None, TORN):
            self.disk.before(call)
        return action

    def _action(self, point: Point) -> Action:
        if self.hit is not None:
            return Fail(ERRNO["ENOSPC"]) if self.fault == "full" and point.name in _NEED_ROOM else None
        fault = self.fault_at(point)
        if fault is None:
            return None
        self.hit, self.fault = point, fault
        if fault in ERRNO:
            return Fail(ERRNO[fault])
        return {"full": Fail(ERRNO["ENOSPC"]), "torn": TORN}.get(fault, KILL)

    def after(self, call: Call, result: int) -> None:
        """The observer's other half."""
        if self.disk is not None:
            self.disk.after(call, result)


@dataclass(frozen=True)
class Attempt:
    """One run of the command: exit code (None: killed), what it printed, where it failed and how, every point."""

    code: int | None
    printed: str
    hit: Point | None
    fault: str
    seen: list[Point]

    @property
    def what(self) -> str:
        """What happened, for messages."""
        return f"{self.fault} at {self.hit}" if self.hit is not None else "no fault"


def job_files(root: Path) -> dict[str, bytes]:
    """Bytes of both Datasets and of the Index, by path; job.json, which no digest covers, by its name alone."""
    return {
        path.relative_to(root).as_posix(): b"" if path.name == "job.json" else path.read_bytes()
        for folder in _FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def left_overs(root: Path) -> list[str]:
    """Temporary files and folders."""
    return sorted(str(path.relative_to(root)) for path in root.rglob(".tmp-*"))


class _InProcess:
    """An engine that runs tasks in this very process: so it has all they need when it forks them later."""

    def run(self, stage: Stage, done: Callable[[int], None]) -> None:
        """One task after the other."""
        from dataprep.engines.local import StageExecutor

        executor = StageExecutor(stage)
        for rank in stage.incomplete_ranks():
            executor._run_for_rank(rank, local_rank=1)
        executor.merge_statistics()


def warm_up(config: Path) -> None:
    """Run a job in this process, so that what it imports and compiles is there for all attempts; then let the local
    engine fork its tasks."""
    from datatrove.executor import base

    import dataprep.engines.preload
    import dataprep.run

    make_engine = dataprep.run.make_engine
    dataprep.run.make_engine = lambda name, options: _InProcess()  # type: ignore[assignment]
    prepared = dataprep.run.prepare(config, (), read_only=False)
    dataprep.run.run_build(prepared, Output(quiet=True))
    dataprep.run.make_engine = make_engine
    logger = type(base.logger)
    logger.exception = logger.error  # type: ignore[method-assign]  # a traceback in the log costs more than the attempt
    forked = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: forked  # type: ignore[assignment,misc,return-value]
    gc.collect()
    gc.freeze()


@dataclass
class Sweep:
    """A job in ``root`` (its configuration is ``build.yaml``, its output ``out``); ``prepare`` makes it anew.

    Attributes:
        problems: what a fault did that it must not do, in words.
        reference, points: what ``undisturbed`` found.
        visited: every point that failed, with its fault.
        other_device: the work folder seems to lie on another file system than the outputs.
    """

    root: Path
    prepare: Callable[[Path], None]
    problems: list[str] = field(default_factory=list)
    attempts: int = 0
    reference: Mapping[str, bytes] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    visited: list[tuple[Point, str]] = field(default_factory=list)
    other_device: bool = False

    def fresh(self) -> None:
        """The job as it was before anything ran."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.prepare(self.root)

    def attempt(self, fault_at: Callable[[Point], str | None], power: bool = False, seed: int = 0) -> Attempt:
        """Run the command once under the tracer. ``power``: a loss of power is among what may happen."""
        self.attempts += 1
        disk = Disk(self.root) if power else None
        watch = _Watch(self.root, fault_at, disk, other_device=self.other_device)
        said = self.root.with_name(self.root.name + ".said")
        code = trace(lambda: command(self.root / "build.yaml", said), str(self.root), watch)
        if disk is not None:
            if watch.fault in POWER:
                disk.lose_power(random.Random(f"{seed} {watch.hit}"), watch.fault)
            disk.close()
        if watch.hit is not None:
            self.visited.append((watch.hit, watch.fault))
        return Attempt(code, said.read_text(errors="replace"), watch.hit, watch.fault, watch.seen)

    def undisturbed(self) -> None:
        """Run a fresh job to its end: the points, and the bytes that every other run must leave."""
        self.fresh()
        run = self.attempt(lambda point: None)
        assert run.code == 0, run.printed
        self.points = run.seen
        self.reference = job_files(self.root)
        assert left_overs(self.root) == []

    def chain(self, faults: Mapping[Point, str], seed: int = 0) -> set[Point]:
        """Each of the points fails in turn, with its fault; those that were not reached."""
        waiting = dict(faults)
        power = any(fault in POWER for fault in waiting.values())
        self.fresh()
        progress = True
        while waiting:
            run = self.attempt(waiting.get, power, seed)
            if run.hit is not None:
                del waiting[run.hit]
                progress = True
            self._check(run)
            if run.code == 0:
                self.finish(run.what)
                if not progress:
                    break
                self.fresh()
                progress = False
        self.finish("all of the chain")
        return set(waiting)

    def single(self, point: Point, fault: str, seed: int = 0) -> bool:
        """Fail a fresh job at one point, then run it to its end; whether the point was reached."""
        self.fresh()
        run = self.attempt(lambda one: fault if one == point else None, fault in POWER, seed)
        self._check(run)
        self.finish(run.what)
        return run.hit is not None

    def at_random(self, rng: random.Random, faults: Sequence[str]) -> None:
        """Up to six accidents in a row at random calls, whatever they are: for jobs whose calls have no fixed order."""
        self.fresh()
        for _ in range(rng.randrange(1, 7)):
            number, fault = rng.randrange(len(self.points) * 2 // 3), rng.choice(faults)
            calls = chain(repeat(None, number), repeat(fault))
            run = self.attempt(partial(_next_of, calls), fault in POWER, number)
            self._check(run)
            if run.code == 0:
                break
        self.finish("random accidents")

    def finish(self, what: str) -> None:
        """Once more, without a fault: the files are the undisturbed ones, nothing else lies about."""
        run = self.attempt(lambda point: None)
        if run.code != 0:
            self._problem(f"after {what}: exit {run.code}: {run.printed[-1500:]}")
            self.fresh()
            return
        found = job_files(self.root)
        if found != self.reference:
            names = sorted(n for n in {*found, *self.reference} if found.get(n) != self.reference.get(n))
            self._problem(f"after {what}: differs: {names[:10]}")
        if left := left_overs(self.root):
            self._problem(f"after {what}: left: {left[:10]}")

    def _check(self, run: Attempt) -> None:
        """What a run that something happened to may leave and say."""
        files = job_files(self.root)
        for folder in _FOLDERS:
            mine = {name: data for name, data in files.items() if name.startswith(f"{folder}/")}
            wanted = {name: data for name, data in self.reference.items() if name.startswith(f"{folder}/")}
            if (mine or any((self.root / folder).glob("*"))) and mine != wanted:
                self._problem(f"{run.what}: half of {folder}")
        if not run.code:
            return
        if run.hit is None:
            self._problem(f"undisturbed, but exit {run.code}: {run.printed[-1500:]}")
            self.fresh()
            return
        try:
            error = json.loads(run.printed)["error"]
        except (ValueError, KeyError):
            self._problem(f"{run.what}: exit {run.code}, no error but {run.printed[-1500:]!r}")
            return
        named = str(self.root) in str(error["place"])
        if run.code != 1 or error["code"] == "TR-INTERNAL" or not named or "Traceback" in run.printed:
            self._problem(f"{run.what}: exit {run.code}, {error}")

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        if len(self.problems) > _MOST_PROBLEMS:
            raise AssertionError("too many problems:\n" + "\n".join(self.problems))


def _next_of(calls: Iterator[str | None], point: Point) -> str | None:
    return next(calls)


def command(config: Path, said: Path) -> int:
    """The command line, in a process of its own; what it prints goes to a file."""
    with open(said, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return main(["build", str(config), "--json", "--quiet"])
