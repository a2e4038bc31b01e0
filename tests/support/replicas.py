"""Replicas of a run under torchft, forked from the test's process, and a lighthouse of their own on 127.0.0.1.

torchft's servers run in threads of the process that made them, so the test's own process never makes one.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from support.datasets import MadeDataset
from support.training import ledger, write_job

from loader.errors import TokenreelError
from loader.settings import load_config
from train.config import TrainConfig
from train.process import train_process

__all__ = ["STEPS", "Replica", "at_step", "job_in", "lighthouse", "pair", "start_replica", "steps_done", "wait_until"]

STEPS = 160
_MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24}
_LIMIT_S = 300.0


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = _LIMIT_S) -> None:
    """Wait for something that other processes do.

    Raises:
        AssertionError: it did not come.
    """
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.005)


def _fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    gc.freeze()
    code = 99
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException as error:
        os.write(2, f"child: {error!r}\n".encode())
    finally:
        os._exit(code)


@contextmanager
def lighthouse(folder: Path) -> Iterator[str]:
    """The address of a lighthouse that gives up a silent replica after two seconds."""
    place = folder / "lighthouse"

    def serve() -> None:
        from torchft.coordination import LighthouseServer

        server = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=20, heartbeat_timeout_ms=2000
        )
        part = folder / "lighthouse.part"
        part.write_text(server.address().rpartition(":")[2])
        part.rename(place)
        signal.pause()

    pid = _fork(serve)
    try:
        wait_until(place.exists, "a lighthouse")
        yield f"http://127.0.0.1:{place.read_text()}"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@dataclass
class Replica:
    """A training process.

    Attributes:
        pid: its process. folder: where it tells what it says and how it ended.
    """

    pid: int
    folder: Path
    code: int | None = None

    @property
    def said(self) -> str:
        """What it said so far."""
        path = self.folder / "said"
        return path.read_text() if path.exists() else ""

    @property
    def result(self) -> dict[str, Any]:
        """What it returned, or the code of its error under ``told``."""
        return dict(json.loads((self.folder / "result").read_text()))

    def has_ended(self) -> bool:
        """Whether the process is gone; its exit code is in ``code`` then."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; SIGKILL waits for the end."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def start_replica(job: Path, name: str) -> Iterator[Replica]:
    """A replica that is killed at the end of the block, if it lives."""
    folder = job.parent / f"replica-{name}"
    folder.mkdir()

    def work() -> None:
        with (folder / "said").open("a", buffering=1) as said:
            try:
                result = asdict(train_process(load_config(job, TrainConfig), lambda line: print(line, file=said))[0])
            except TokenreelError as error:
                result = {"told": error.code, "text": str(error)}
        (folder / "result").write_text(json.dumps(result))

    replica = Replica(_fork(work), folder)
    try:
        yield replica
    finally:
        if not replica.has_ended():
            replica.kill()


def job_in(
    folder: Path, made: MadeDataset, address: str | None, torchft: Mapping[str, Any] | None = None, **overrides: Any
) -> Path:
    """The configuration of a run of ``STEPS`` steps in ``folder``; held-out ones are in ``held-out`` beside ``made``.
    ``address``: of the lighthouse, or None for a run of one process."""
    folder.mkdir(exist_ok=True)
    data = {"datasets": [os.path.relpath(made.path, folder)], "batch": [{"start": 0, "global_batch": 8}]}
    # Shorter than any wait of the tests, longer than a step on a machine under load.
    block = address and {"lighthouse": address, "host": "127.0.0.1", "timeout_s": 60, **(torchft or {})}
    shape = {"model": _MODEL, "data": data, "steps": STEPS, "micro_batch": 2, "parallel": {"data": "ddp"}}
    saving = {"checkpoint": {"every_steps": 20, "keep_last": 3}}
    held_out = [os.path.relpath(made.path.parent / "held-out", folder)]
    asking = {"validation": held_out, "evaluate": {"every_steps": 40, "samples": 4}}
    return write_job(folder, made.path, **{**shape, **saving, **asking, "run": {"torchft": block}, **overrides})


def steps_done(root: Path) -> int:
    """Steps that the ledger of a run holds."""
    return len(ledger(root)) if (root / "branches.json").exists() or (root / "ledger").exists() else 0


def at_step(root: Path, step: int) -> None:
    """Wait until a run has done so many steps."""
    wait_until(lambda: steps_done(root) >= step, f"step {step}")


@contextmanager
def pair(
    folder: Path, made: MadeDataset, torchft: Mapping[str, Any] | None = None
) -> Iterator[tuple[Path, Replica, Replica]]:
    """A run in ``folder / "run"``: its configuration, the replica that leads and one that just joined behind step 5.
    Those that live are killed at the end of the block."""
    with lighthouse(folder) as address:
        job = job_in(folder, made, address, torchft)
        with start_replica(job, "a") as first:
            at_step(folder / "run", 5)
            with start_replica(job, "b") as second:
                wait_until(lambda: "joined at step" in second.said, "a second replica")
                yield job, first, second
