"""Small training jobs on small Datasets, run inside the test process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from loader.run_folder import RunPaths
from loader.runs import ledger_of
from loader.settings import Loaded, load_config
from train.config import TrainConfig
from train.loop import RunResult
from train.process import train_process

__all__ = [
    "count_threads",
    "exit_code",
    "exit_code_of",
    "killed_after",
    "ledger",
    "losses",
    "metrics",
    "train",
    "write_job",
]

BASE: dict[str, Any] = {
    "version": 1,
    "output": "run",
    "steps": 12,
    "model": {"dim": 16, "layers": 1, "heads": 2, "ffn": 24},
    "precision": "fp32",
    "checkpoint": {"every_steps": 4, "keep_last": 3},
    "spikes": {"enabled": False},
}


def write_job(folder: Path, dataset: Path, name: str = "job", **overrides: Any) -> Path:
    """Write ``folder/<name>.yaml``; the run goes to ``folder/<output>``. Keyword values replace whole blocks."""
    value = {
        **BASE,
        "data": {"datasets": [os.path.relpath(dataset, folder)], "batch": [{"start": 0, "global_batch": 4}]},
        **overrides,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def train(path: Path, *overrides: str, say: Callable[[str], None] = lambda line: None) -> RunResult:
    """Train in this process, as ``tokenreel train`` would in its own."""
    loaded: Loaded[TrainConfig] = load_config(path, TrainConfig, overrides)
    return train_process(loaded, say)[0]


def exit_code(path: Path) -> int:
    """Train in this process; the exit code of ``tokenreel train``."""
    return train_process(load_config(path, TrainConfig), lambda line: None)[1]


def ledger(root: Path, branch: int | None = None) -> np.ndarray[Any, Any]:
    """What shaped the weights of a branch."""
    return ledger_of(RunPaths(root), branch)


def losses(root: Path, branch: int | None = None) -> list[float]:
    """Losses of a branch, step 0 first."""
    return [float(loss) for loss in ledger(root, branch)["loss"]]


def metrics(root: Path) -> list[Mapping[str, Any]]:
    """Lines of metrics.jsonl; a torn line fails."""
    return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]


def exit_code_of(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; its exit code: 0, 1 after an exception, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(_fork(work), 0)[1])


def _fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException as error:
        os.write(2, f"child: {error!r}\n".encode())
    finally:
        os._exit(code)


def killed_after(work: Callable[[], object], when: Callable[[], bool], number: int = signal.SIGKILL) -> int:
    """Run ``work`` in a forked child and send it a signal as soon as ``when()``; its exit code (0: it was faster)."""
    child = _fork(work)
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                child = 0
                return os.waitstatus_to_exitcode(status)
            if when():
                os.kill(child, number)
                status = os.waitpid(child, 0)[1]
                child = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.0005)
        raise AssertionError("the child neither ended nor reached the moment")
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextmanager
def count_threads(limit: int) -> Iterator[None]:
    """torch's compute threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(limit)
    try:
        yield
    finally:
        torch.set_num_threads(before)
