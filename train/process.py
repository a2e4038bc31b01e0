"""What a training process does between its first and its last line: torch set up, signals caught, world joined."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TextIO

from loader.settings import Loaded

from .config import TrainConfig
from .device import take_device
from .evaluate.during import open_evaluation
from .job import open_job_sources, resolve_job
from .launch import place
from .loop import RunResult, train_run
from .session import Setting
from .state import computes_bfloat16, machine, set_up_torch
from .stopping import StopFlag
from .world import join_world

__all__ = ["train_process"]

_INTERRUPTED = 130


def _silent(line: str) -> None:
    """What processes that do not lead have to say, the leading one says."""


def train_process(
    loaded: Loaded[TrainConfig], say: Callable[[str], None], terminal: TextIO | None = None
) -> tuple[RunResult, int]:
    """Train in this process; the result and the exit code: 0 finished or ended by SIGTERM, 130 by Ctrl-C, but where a
    launcher watches: it would start again what ended with another code than 0. ``say`` takes remarks; on ``terminal``,
    if there is one, the leading process draws its newest step.

    Raises:
        TokenreelError: see ``loop.train_run``; or a Dataset is missing or damaged.
    """
    job = resolve_job(loaded)
    config = job.config
    stop = StopFlag(say if place().rank == 0 else _silent)
    timeout_s = config.checkpoint.timeout_s
    take_device(config.run.device)
    with stop.installed(), join_world(config.run.device, config.parallel, timeout_s) as world:
        set_up_torch(config)
        say = say if world.leads else _silent
        if config.run.device == "cpu" and config.precision == "bf16" and not computes_bfloat16():
            say("this processor has no bfloat16 arithmetic: precision fp32 would be several times faster")
        sources = open_job_sources(job)
        evaluation = open_evaluation(job, sources, world.mesh.shape.data)
        facts = machine(config, sources)
        say(str(facts["attention_reason"]))
        if config.run.compile:
            say("torch.compile: the first steps take minutes, and say nothing while they do")
        live = terminal if world.leads else None
        setting = Setting(job, sources, world, evaluation, say, stop, facts, stop.undisturbed, live)
        if config.run.torchft is None:
            result = train_run(setting)
        else:
            from .replicas.run import train_replica

            result = train_replica(setting, config.run.torchft)
    if result.outcome == "stopped":
        saved = "saved; the same command resumes" if config.run.torchft is None else "the same command comes back"
        say(f"stopped at step {result.step}, {saved}")
    interrupted = result.outcome == "stopped" and stop.signal == signal.SIGINT and not place().watched
    return result, _INTERRUPTED if interrupted else 0
