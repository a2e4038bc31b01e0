"""Two attempts at one job at the same time: where the file system has no locks, and where a killed job's tasks live on.

Both run at full speed, untraced, from a warm process (see ``syscalls_sweep``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import time
from typing import Any

from .syscalls_sweep import Sweep, command

__all__ = ["orphan", "twins"]

_LIMIT_S = 60.0
_LONGEST_S = 4.0


def _no_locks(*_: Any) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def _start(sweep: Sweep, name: str, wait_s: float) -> int:
    """Fork the command on a file system without locks; its pid. What it prints goes beside the job."""
    pid = os.fork()
    if pid == 0:
        code = 111
        try:
            time.sleep(wait_s)
            fcntl.flock = _no_locks  # type: ignore[assignment]
            code = command(sweep.job.arguments(sweep.root), sweep.root.with_name(name))
        finally:
            os._exit(code)
    return pid


def _everyone_ends(pids: list[int]) -> list[int]:
    """Wait for all children of this process, orphans that came to it included; the exit codes of ``pids``."""
    codes = {}
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return [codes[pid] for pid in pids]
        if pid == 0:
            if time.monotonic() > deadline:
                raise TimeoutError("processes of a job outlive it")
            time.sleep(0.005)
        else:
            codes[pid] = os.waitstatus_to_exitcode(status)


def twins(sweep: Sweep, rng: random.Random) -> list[str]:
    """Two whole jobs in one work folder without locks; what they said, if they failed. One may stumble over the other
    (a shard that has been moved to its place already), but what is left is right, or made right by the next run."""
    sweep.fresh()
    offset_s = rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, _LONGEST_S)))
    names = ["first.said", "second.said"]
    pids = [_start(sweep, name, wait_s) for name, wait_s in zip(names, (0.0, offset_s), strict=True)]
    codes = _everyone_ends(pids)
    sweep.finish(f"two jobs, {offset_s:.3f} s apart, exit codes {codes}")
    said = [sweep.root.with_name(name).read_text(errors="replace") for name in names]
    for code, text in zip(codes, said, strict=True):
        if code not in (0, 1, 3, 4) or "Traceback" in text:
            sweep.problems.append(f"two jobs: exit {code}: {text[-1000:]}")
    return [text[-400:] for code, text in zip(codes, said, strict=True) if code]


def orphan(sweep: Sweep, rng: random.Random) -> list[str]:
    """Kill the supervising process alone and start the same command at once, while its tasks may still be at work; they
    must end by themselves, and the successor must not notice."""
    sweep.fresh()
    first = _start(sweep, "first.said", 0.0)
    time.sleep(rng.uniform(0.1, _LONGEST_S))
    os.kill(first, signal.SIGKILL)
    second = _start(sweep, "second.said", 0.0)
    code = _everyone_ends([first, second])[1]
    said = sweep.root.with_name("second.said").read_text(errors="replace")
    if code != 0:
        sweep.problems.append(f"a successor: exit {code}: {said[-1000:]}")
    sweep.finish("a killed supervisor and its successor")
    return []
