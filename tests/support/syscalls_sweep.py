"""A job whose every system call on files fails once: killed, torn, out of room, broken, or out of power.

A *point* is a call of the undisturbed run with one worker: (call, path below the job's folder without process ids,
which one of its kind on that path). ``Sweep.chain`` fails at the first point that has not failed yet, runs the same
command again from what is left, fails at the next one, and so on to the end: each point fails once, and the job lives
through hundreds of accidents in a row. ``Sweep.single`` fails a fresh job once.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product, repeat
from pathlib import Path
from typing import NamedTuple

from .syscalls import ERRNO, KILL, TORN, Action, Call, Fail, trace
from .syscalls_jobs import Job, command, job_files
from .syscalls_power import Disk

__all__ = ["FAULTS", "POWER", "Attempt", "Point", "Sweep"]

POWER = ("least", "order", "some")
FAULTS = ("kill", "torn", "ENOSPC", "EIO", "full", *POWER)
"""What happens at a point: ``ENOSPC`` and ``EIO`` once; ``full`` leaves no room from there on; the last three are
losses of power (see ``syscalls_power.Disk``)."""
_NEED_ROOM = ("write", "open", "mkdir", "fallocate")
_MARKER = re.compile(r"/completions/\d+$")
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
    """Names the points of one run and fails at the first one for which ``fault_at`` names a fault; if the job goes on,
    at the next such one that comes after another task has left its marker: what went wrong before stays as it is.
    """

    root: Path
    fault_at: Callable[[Point], str | None]
    disk: Disk | None = None
    seen: list[Point] = field(default_factory=list)
    hits: list[tuple[Point, str]] = field(default_factory=list)
    marked: bool = True
    other_device: bool = False
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def before(self, call: Call) -> Action:
        """The observer's half."""
        names = [os.path.relpath(path, self.root) for path in (call.path, call.target) if path]
        path = _PIDS.sub(".tmp-*", " -> ".join(names))
        self._counts[call.name, path] += 1
        point = Point(call.name, path, self._counts[call.name, path])
        self.seen.append(point)
        self.marked |= call.name == "rename" and _MARKER.search(path) is not None
        action = self._action(point)
        if action is None and self.other_device and call.name == "rename" and _PUBLISHES.match(path):
            return Fail(errno.EXDEV)
        if self.disk is not None and action in (None, TORN):
            self.disk.before(call)
        return action

    def _action(self, point: Point) -> Action:
        if self.hits and self.hits[-1][1] == "full":
            return Fail(ERRNO["ENOSPC"]) if point.name in _NEED_ROOM else None
        fault = self.fault_at(point) if self.marked else None
        if fault is None:
            return None
        self.hits.append((point, fault))
        self.marked = False
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
    hits: list[tuple[Point, str]]
    seen: list[Point]

    @property
    def what(self) -> str:
        """What happened, for messages."""
        return ", ".join(f"{fault} at {tuple(point)}" for point, fault in self.hits) or "no fault"


@dataclass
class Sweep:
    """A job in ``root``, again and again.

    Attributes:
        problems: what a fault did that it must not do, in words.
        reference, points: what ``undisturbed`` found.
        visited: every point that failed, with its fault.
        windows: attempts by the outputs that were there afterwards.
        other_device: the work folder seems to lie on another file system than the outputs.
    """

    root: Path
    job: Job
    problems: list[str] = field(default_factory=list)
    attempts: int = 0
    reference: Mapping[str, bytes] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    visited: list[tuple[Point, str]] = field(default_factory=list)
    windows: Counter[tuple[str, ...]] = field(default_factory=Counter)
    other_device: bool = False
    disk: Disk | None = None

    def _forget_disk(self) -> None:
        if self.disk is not None:
            self.disk.close()
        self.disk = None

    def fresh(self) -> None:
        """The job as it was before anything ran."""
        self._forget_disk()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.job.prepare(self.root)

    def attempt(self, fault_at: Callable[[Point], str | None], power: bool = False, seed: int = 0) -> Attempt:
        """Run the command once under the tracer. ``power``: a loss of power is among what may happen; what earlier
        such attempts did not sync is not durable now. One happens at the end of a command that ends well, too."""
        self.attempts += 1
        if power and self.disk is None:
            self.disk = Disk(self.root)
        disk = self.disk if power else None
        watch = _Watch(self.root, fault_at, disk, other_device=self.other_device)
        said = self.root.with_name(self.root.name + ".said")
        code = trace(lambda: command(self.job.arguments(self.root), said), str(self.root), watch)
        mode = "least" if code == 0 else watch.hits[-1][1] if watch.hits else ""
        if disk is not None and mode in POWER:
            disk.lose_power(random.Random(f"{seed} {watch.hits[-1:]}"), mode)
            self._forget_disk()
        self.visited += watch.hits
        run = Attempt(code, said.read_text(errors="replace"), watch.hits, watch.seen)
        if disk is not None and code == 0 and job_files(self.root, self.job.outputs) != self.reference:
            self._problem(f"{run.what}, then power lost after the end: not all is there")
        return run

    def undisturbed(self) -> None:
        """Run a fresh job to its end: the points, and the bytes that every other run must leave."""
        self.fresh()
        run = self.attempt(lambda point: None)
        assert run.code == 0, run.printed
        self.points = run.seen
        self.reference = job_files(self.root, self.job.outputs)
        assert self.job.left_overs(self.root) == []

    def chain(self, faults: Mapping[Point, str], seed: int = 0) -> set[Point]:
        """Each of the points fails in turn, with its fault; those that were not reached."""
        waiting = dict(faults)
        power = any(fault in POWER for fault in waiting.values())
        self.fresh()
        progress = True
        while waiting:
            run = self.attempt(waiting.get, power, seed)
            for point, _ in run.hits:
                del waiting[point]
                progress = True
            self._check(run)
            if run.code == 0:
                self.finish(run.what)
                if not progress:
                    break
                self.fresh()
                progress = False
        self.finish("all of the chain", power)
        return set(waiting)

    def single(self, point: Point, fault: str, seed: int = 0) -> bool:
        """Fail a fresh job at one point, then run it to its end; whether the point was reached."""
        self.fresh()
        run = self.attempt(lambda one: fault if one == point else None, fault in POWER, seed)
        self._check(run)
        self.finish(run.what, fault in POWER)
        return bool(run.hits)

    def at_random(self, rng: random.Random, faults: Sequence[str]) -> None:
        """Up to six accidents in a row at random calls, whatever they are: for jobs whose calls have no fixed order."""
        self.fresh()
        for _ in range(rng.randrange(1, 7)):
            number, fault = rng.randrange(len(self.points) * 2 // 3), rng.choice(faults)
            calls = chain(repeat(None, number), [fault], repeat(None))
            run = self.attempt(partial(_next_of, calls), fault in POWER, number)
            self._check(run)
            if run.code == 0:
                break
        self.finish("random accidents")

    def lost(self) -> None:
        """Each choice of the outputs of a finished job is taken away: the same command makes it again."""
        for chosen in product((False, True), repeat=len(self.job.outputs)):
            gone = [name for name, taken in zip(self.job.outputs, chosen, strict=True) if taken]
            for name in gone:
                shutil.rmtree(self.root / name)
            self.finish(f"{gone} are gone")

    def finish(self, what: str, power: bool = False) -> None:
        """Once more, without a fault: the files are the undisturbed ones, nothing else lies about. ``power``: twice,
        and it goes between them."""
        if power:
            self._check(self.attempt(lambda point: None, power))
        self._forget_disk()
        run = self.attempt(lambda point: None)
        if run.code != 0:
            self._problem(f"after {what}: exit {run.code}: {run.printed[-1500:]}")
            self.fresh()
            return
        found = job_files(self.root, self.job.outputs)
        if found != self.reference:
            names = sorted(n for n in {*found, *self.reference} if found.get(n) != self.reference.get(n))
            self._problem(f"after {what}: differs: {names[:10]}")
        if left := self.job.left_overs(self.root):
            self._problem(f"after {what}: left: {left[:10]}")

    def _check(self, run: Attempt) -> None:
        """What a run that something happened to may leave and say."""
        files = job_files(self.root, self.job.outputs)
        there = tuple(folder for folder in self.job.outputs if any((self.root / folder).glob("*")))
        self.windows[there] += 1
        if there != self.job.outputs[: len(there)]:
            self._problem(f"{run.what}: {there[-1]} before another output")
        for folder in there:
            mine = {name: data for name, data in files.items() if name.startswith(f"{folder}/")}
            wanted = {name: data for name, data in self.reference.items() if name.startswith(f"{folder}/")}
            if mine != wanted:
                self._problem(f"{run.what}: half of {folder}")
        if not run.code:
            return
        if not run.hits:
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
