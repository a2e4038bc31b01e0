"""Several training processes on this machine: ``tokenreel train`` with ``run.processes`` above 1.

torch's elastic agent starts and watches them, in a thread of its own; the main thread passes signals on, so that the
processes save and end in order, where the agent alone would kill them. Starting again is decided here and not by the
agent, for it cannot tell a killed process from a configuration that will never work.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from loader.errors import JobError

from .config import RunConfig
from .launch import child_command, prepare_many

__all__ = ["launch"]

_INTERRUPTED = 130
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_FINAL_CODES = (2, 3, 4)
"""Configuration, damage, refused: another start would end the same way."""


class _Attempt:
    """One start of all processes; ``run`` waits for their end."""

    def __init__(self, words: Sequence[str], processes: int) -> None:
        self._words, self._processes = words, processes
        self.codes: Mapping[int, int] = {}
        self.error: BaseException | None = None
        self._waiting: list[int] = []

    def _agent(self) -> None:
        from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._processes,
            run_id=f"tokenreel-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        )
        command = child_command(self._words)
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as failed:
            self.codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        except BaseException as error:  # handed to the main thread
            self.error = error

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        self._waiting.append(number)

    def run(self) -> int | None:
        """Start, wait; the first signal that was passed on, or None.

        Raises:
            JobError: the processes could not be started.
        """
        agent = threading.Thread(target=self._agent, name="agent", daemon=True)
        first: int | None = None
        with _handled(self.pass_on):
            agent.start()
            while agent.is_alive():
                agent.join(0.1)
                children = _children() if self._waiting else []
                while self._waiting and children:
                    number = self._waiting.pop(0)
                    first = number if first is None else first
                    _send(children, number)
        if self.error is not None:
            raise JobError("TR-LAUNCH-FAILED", f"cannot start the processes: {self.error}") from self.error
        return first if first is not None else next(iter(self._waiting), None)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _children() -> list[int]:
    """Processes that this one started and that live."""
    found = []
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            found += [int(word) for word in listing.read_text().split()]
        except OSError:  # that thread has just ended
            continue
    return found


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def launch(words: Sequence[str], run: RunConfig, say: Callable[[str], None]) -> int:
    """Train in ``run.processes`` processes; the exit code.

    They tell what went wrong themselves. Killed ones are started again, with all others, up to ``run.restarts`` times.

    Args:
        words: arguments of ``tokenreel``. run: how many processes, threads and restarts. say: where remarks go.

    Raises:
        JobError: ``TR-LAUNCH-KILLED``: a process was killed and none told why; ``TR-LAUNCH-FAILED``: none started.
    """
    logging.disable(logging.CRITICAL)  # the agent's own account of what the processes have told already
    with tempfile.TemporaryDirectory(prefix="tokenreel-") as folder:
        return _launch(words, run, say, Path(folder) / "final")


def _launch(words: Sequence[str], run: RunConfig, say: Callable[[str], None], told_final: Path) -> int:
    """:func:`launch`; a process makes ``told_final`` where another start would end the same way."""
    for restarts in range(run.restarts + 1):
        prepare_many(run.threads, restarts, again=restarts < run.restarts, final=told_final)
        sys.stdout.flush()
        attempt = _Attempt(words, run.processes)
        stopped = attempt.run()
        codes = attempt.codes
        if stopped is not None:
            return _INTERRUPTED if stopped == signal.SIGINT else 1 if codes else 0
        if not codes:
            return 0
        final = next((code for code in _FINAL_CODES if code in codes.values()), None)
        if final is not None:
            return final
        if told_final.exists():
            return JobError.exit_code
        if restarts < run.restarts:
            say(f"the processes ended ({_text(codes)}): restart {restarts + 1} of {run.restarts}")
    if all(code < 0 for code in codes.values()):
        raise JobError(
            "TR-LAUNCH-KILLED", f"the processes ended: {_text(codes)}", None, "processes that live",
            "the same command: it resumes at the newest checkpoint",
        )  # fmt: skip
    return max(codes.values())


def _text(codes: Mapping[int, int]) -> str:
    names = {code: f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}" for code in codes.values()}
    return ", ".join(f"rank {rank} {names[code]}" for rank, code in sorted(codes.items()))
