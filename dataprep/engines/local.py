"""Local engine: datatrove runs the rank, we watch the process.

datatrove's own local executor hangs when a working process is killed. Here every attempt of a task is one process,
forked from a
fork server that has imported everything already (tens of milliseconds each), and its sentinel tells of any death:

* exit 0: the completion marker must be there, or the stage is not closed;
* exit 65: the task raised; its error was recorded and is not tried again, because it would raise again;
* anything else (a signal, a dead fork server): tried again up to ``retries`` times, then reported with the signal's
name.

Where the stage knows what its tasks read, one process does several tasks, one after the other: a half of an equal share
of what is left, so that the last ones are small. It loads a tokenizer once (0.2 to 1.5 s) and not for each of a
thousand small files. Each task still has its own marker, attempts and error; a death costs the task that ran.

A task whose supervising process dies ends itself at once. One that lingers is harmless all the same (see
``dataprep.stages``).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from datatrove.executor.base import PipelineExecutor
from datatrove.utils.stats import PipelineStats

from loader.canonical import canonical_json
from loader.errors import ConfigError, JobError
from loader.files import sync_tree, write_atomic

from ..settings import child_environment_set
from ..stages import Stage, describe_error, error_of_task, record_error
from . import EngineOptions

__all__ = ["LocalEngine", "StageExecutor"]

_RECORDED = 65  # not 1: that is how Python ends when a task could not even be loaded
_POLL_S = 5.0
_RESTART_S = 0.2
_PRELOAD = "dataprep.engines.preload"
_GROUP_BYTES = 1 << 26
_GROUP_TASKS = 256


class StageExecutor(PipelineExecutor):  # type: ignore[misc]
    """datatrove's executor of one stage: its ``_run_for_rank``, logs and statistics, with markers that hold the
    digest.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(list(stage.make_steps()), str(stage.logging_folder))
        self.stage_name = stage.name
        self.stage_folder = stage.folder
        self.digest = stage.digest
        self.num_tasks = stage.num_tasks

    @property
    def world_size(self) -> int:
        """Number of tasks, from the plan."""
        return self.num_tasks

    def get_distributed_env(self, node_rank: int = -1) -> dict[str, str]:
        """What datatrove exports to a task: one node, one CPU."""
        return {
            "datatrove_node_ips": "localhost",
            "datatrove_cpus_per_task": "1",
            "datatrove_mem_per_cpu": "-1",
            "datatrove_gpus_on_node": "0",
            "datatrove_executor": "tokenreel",
        }

    def is_rank_completed(self, rank: int) -> bool:
        """Whether a marker of this very digest exists."""
        path = self._marker(rank)
        return path.is_file() and path.read_text(encoding="ascii", errors="replace") == self.digest

    def mark_rank_as_completed(self, rank: int) -> None:
        """Durably write the marker; it holds the stage digest. All names that it vouches for are made durable first:
        a marker that outlives the folder of a task's output would leave that output missing for ever.
        """
        with open(self.stage_folder / "datatrove" / "stats" / f"{rank:05d}.json", "rb") as file:
            os.fsync(file.fileno())
        sync_tree(self.stage_folder)
        write_atomic(self._marker(rank), self.digest.encode("ascii"))

    def run(self) -> None:
        """Not used: engines start ranks one by one."""
        raise NotImplementedError("StageExecutor ranks are started by an engine")

    def _marker(self, rank: int) -> Path:
        return self.stage_folder / "datatrove" / "completions" / f"{rank:05d}"

    def merge_statistics(self) -> None:
        """``stats.json`` from the statistics files of all ranks, those of earlier runs included.

        One that cannot be read is left out: datatrove writes them in place, so a second attempt may be at it, and no
        output depends on them.
        """
        folder = self.stage_folder / "datatrove"
        total = PipelineStats()
        for rank in range(self.num_tasks):
            with suppress(OSError, ValueError, KeyError, TypeError):
                total += PipelineStats.from_json(json.loads((folder / "stats" / f"{rank:05d}.json").read_bytes()))
        write_atomic(folder / "stats.json", canonical_json(json.loads(total.to_json())))


def _end_with_parent() -> None:
    """End this process as soon as the supervising one is gone; nobody would collect its result."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _run_tasks(executor: StageExecutor, ranks: Sequence[int], answer: connection.Connection) -> None:
    """Body of a process: some tasks, up to the first error or a word to stop. Its stderr goes to their logs: users see
    recorded errors, not datatrove's tracebacks.

    An error goes through ``answer`` as well: a full disk has no room for a record of it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    pipeline = executor.pipeline
    for rank in ranks:
        if answer.poll():
            break
        try:
            _log_stderr(executor.stage_folder / "datatrove" / "logs" / f"stderr_{rank:05d}.log")
            executor.pipeline = deepcopy(pipeline)  # its steps count what they do
            executor._run_for_rank(rank, local_rank=1)
        except Exception as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(executor.stage_folder)  # some libraries do not say where
            with suppress(OSError):
                record_error(executor.stage_folder, rank, error)
            with suppress(OSError):
                # Nobody reads before this process ends, so a pipe that is full would hold it for ever.
                os.set_blocking(answer.fileno(), False)
                answer.send_bytes(canonical_json(describe_error(error)))
            os._exit(_RECORDED)


def _log_stderr(path: Path) -> None:
    """From now on what goes to stderr goes to the end of this file; nowhere while there is none."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stderr.fileno())


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Children need nothing from the main script, and running it again in each of them costs time or worse."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@dataclass
class _Live:
    """A process: its ranks that are not known to be complete, in order, and where it tells its error."""

    process: ForkServerProcess
    ranks: list[int]
    answers: connection.Connection


@dataclass
class _Supervision:
    """State of one stage run: ranks to start, processes alive by sentinel, attempts made, ranks failed and what they
    said; whom to tell that a rank is complete.
    """

    executor: StageExecutor
    todo: list[int]
    done: Callable[[int], None]
    live: dict[int, _Live] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    told: dict[int, dict[str, Any]] = field(default_factory=dict)

    def look(self, live: _Live) -> None:
        """Report the ranks that a process has completed since."""
        while live.ranks and self.executor.is_rank_completed(live.ranks[0]):
            self.done(live.ranks.pop(0))


def _next_ranks(stage: Stage, todo: list[int], workers: int) -> list[int]:
    """Take the ranks off ``todo`` that the next process does."""
    ranks = [todo.pop(0)]
    if stage.sizes:
        left = sum(stage.sizes[rank] for rank in (*ranks, *todo))
        room = max(left // (2 * workers), min(_GROUP_BYTES, left // workers)) - stage.sizes[ranks[0]]
        while todo and stage.sizes[todo[0]] <= room and len(ranks) < _GROUP_TASKS:
            room -= stage.sizes[todo[0]]
            ranks.append(todo.pop(0))
    return ranks


class LocalEngine:
    """Tasks as processes on this machine, at most ``workers`` at once."""

    def __init__(self, options: EngineOptions) -> None:
        """Take the options; the fork server starts with the first task."""
        self._options = options

    def run(self, stage: Stage, done: Callable[[int], None]) -> None:
        """See ``Engine.run``. After a failure no further task starts; running ones finish and keep their results."""
        ranks = stage.incomplete_ranks()
        if stage.sizes:
            ranks.sort(key=lambda rank: (-stage.sizes[rank], rank))
        state = _Supervision(StageExecutor(stage), ranks, done)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_PRELOAD])
        try:
            while state.live or (state.todo and not state.failed):
                while state.todo and not state.failed and len(state.live) < self._options.workers:
                    self._start(context, stage, state)
                ended = connection.wait(list(state.live), timeout=_POLL_S)
                for live in state.live.values():
                    state.look(live)
                for sentinel in ended:
                    assert isinstance(sentinel, int)
                    self._collect(state, state.live.pop(sentinel))
        finally:
            _stop_all(state)
        if state.failed:
            raise _failure(stage, state)
        state.executor.merge_statistics()

    def _start(self, context: Any, stage: Stage, state: _Supervision) -> None:
        ranks = _next_ranks(stage, state.todo, self._options.workers)
        for rank in ranks:
            state.attempts[rank] = state.attempts.get(rank, 0) + 1
        answers, answer = context.Pipe()
        name = f"{stage.name}-{ranks[0]}"
        process = context.Process(target=_run_tasks, args=(state.executor, tuple(ranks), answer), name=name)
        try:
            with child_environment_set(), _main_module_hidden():
                process.start()
        except (EOFError, ConnectionError):  # the fork server itself was killed; the next start makes a new one
            time.sleep(_RESTART_S)
            answers.close()
            self._again(state, ranks, "its fork server died")
        except OSError as error:
            answers.close()
            if "AF_UNIX path too long" not in str(error):
                raise
            raise ConfigError(
                "TR-ENGINE-SOCKET",
                "the temporary folder's name is too long for the socket by which tasks are started",
                tempfile.gettempdir(),
                "a name of at most about 70 letters",
                "set TMPDIR to a shorter one",
            ) from error
        else:
            state.live[process.sentinel] = _Live(process, ranks, answers)
        finally:
            answer.close()

    def _again(self, state: _Supervision, ranks: Sequence[int], cause: str) -> None:
        """Try the first of these ranks again, unless it was tried too often; the others were not begun."""
        first, *rest = ranks
        for rank in rest:
            state.attempts[rank] -= 1
        state.todo[:0] = rest
        if state.attempts[first] <= self._options.retries:
            state.todo.append(first)
        else:
            state.failed[first] = cause

    def _collect(self, state: _Supervision, live: _Live) -> None:
        """One process ended: its tasks are completed, or one failed for good, or is to be tried again."""
        live.process.join()
        code = live.process.exitcode
        live.process.close()
        state.look(live)
        if code == _RECORDED and live.ranks:
            state.failed[live.ranks[0]] = ""
            with suppress(EOFError, OSError, ValueError):
                state.told[live.ranks[0]] = json.loads(live.answers.recv_bytes())
        elif code != 0 and live.ranks:  # a process that was killed after its last marker has done its work
            self._again(state, live.ranks, _cause(code))
        live.answers.close()
        if state.failed:
            for other in state.live.values():
                with suppress(OSError):
                    other.answers.send_bytes(b"stop")


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


def _failure(stage: Stage, state: _Supervision) -> Exception:
    """The error of the lowest failed rank; the others are named in its message."""
    failed = state.failed
    ranks = sorted(failed)
    rank = ranks[0]
    if failed[rank]:
        error: Any = JobError(
            "TR-STAGE-KILLED",
            f"stage {stage.name}, rank {rank}: {failed[rank]}, every time it was tried",
            str(stage.logging_folder / "logs" / f"stderr_{rank:05d}.log"),
            next_command="if memory ran out, try again with fewer --workers; finished tasks are kept",
        )
    else:
        error = error_of_task(stage, rank, state.told.get(rank))
    if len(ranks) > 1:
        error.message += f" (and {len(ranks) - 1} more ranks: {', '.join(map(str, ranks[1:20]))})"
    assert isinstance(error, Exception)
    return error


def _stop_all(state: _Supervision) -> None:
    """Kill what still runs (an interrupt, an error of our own) and wait for it."""
    for live in state.live.values():
        live.process.kill()
    for live in state.live.values():
        live.process.join(_POLL_S)
        live.answers.close()
