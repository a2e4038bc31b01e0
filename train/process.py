"""What a training process does between its first and its last line: torch set up, signals caught, world joined."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from loader.settings import Loaded

from .config import TrainConfig
from .evaluate.perplexity import open_held_out
from .job import open_job_sources, resolve_job
from .loop import RunResult, train_run
from .session import Setting
from .state import computes_bfloat16, machine, set_up_torch
from .world import join_world

__all__ = ["StopFlag", "train_process"]

_INTERRUPTED = 130


class StopFlag:
    """Remembers that SIGINT or SIGTERM asked the process to save and end; the second SIGINT ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        if number == signal.SIGINT and self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside the block (main thread only)."""
        before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def train_process(loaded: Loaded[TrainConfig], say: Callable[[str], None]) -> tuple[RunResult, int]:
    """Train in this process; the result and the exit code (0 finished or ended by SIGTERM, 130 by Ctrl-C).

    Raises:
        TokenreelError: see ``loop.train_run``; or a Dataset is missing or damaged.
    """
    job = resolve_job(loaded)
    config = job.config
    stop = StopFlag()
    with stop.installed(), join_world(config.run.device) as world:
        set_up_torch(config)
        if config.precision == "bf16" and not computes_bfloat16():
            say("this processor has no bfloat16 arithmetic: precision fp32 would be several times faster")
        sources = open_job_sources(job)
        rows = config.micro_batch or config.data.batch[0].global_batch
        held_out = open_held_out(job.open(config.validation), sources, config.evaluate.samples, rows)
        result = train_run(Setting(job, sources, world, held_out, say, stop, machine(config, sources)))
    if result.outcome == "stopped":
        say(f"stopped at step {result.step}, saved; the same command resumes")
    return result, _INTERRUPTED if result.outcome == "stopped" and stop.signal == signal.SIGINT else 0
