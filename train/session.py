"""One attempt at one branch: everything opened at a checkpoint, stepped until it ends, rolls back or is stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch

from loader.ledger import LedgerRecord, LedgerWriter
from loader.run_folder import append_event
from loader.runs import Branch, next_attempt, open_ledger
from loader.sources import Sources
from loader.stream.stream import Stream

from .checkpoint import CheckpointFacts, list_checkpoints, prune
from .evaluate.perplexity import HeldOut, mean_loss, perplexity
from .job import Job
from .lineage import lineage_checkpoints
from .metrics import MetricsWriter, StepTimes, step_line
from .optim import learning_rate
from .saver import Saver
from .spikes.watch import SpikeWatch
from .state import TrainState, input_options
from .step import PackedStep, ReadStep, StepOptions, train_step
from .world import World

if TYPE_CHECKING:
    from loader.order.plan import Plan

__all__ = ["Opened", "Session", "Setting", "read_lag"]


@dataclass(frozen=True)
class Setting:
    """What stays the same over all attempts of a process.

    Attributes:
        job, sources, world: the run, its Datasets, the process group.
        held_out: validation Datasets, or None.
        say: where remarks go, one line each.
        stop_requested: whether a signal asked to stop.
        machine: what job.json says of the machine.
    """

    job: Job
    sources: Sources
    world: World
    held_out: HeldOut | None
    say: Callable[[str], None]
    stop_requested: Callable[[], bool]
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Opened:
    """Where an attempt begins.

    Attributes:
        branches: of the run, the current one last. plan: as this branch sees it. state: model and optimizer, loaded.
        watch: the spike watch, loaded. stream: standing at the first step to do.
        resumed: a checkpoint of exactly this state exists.
    """

    branches: tuple[Branch, ...]
    plan: Plan
    state: TrainState
    watch: SpikeWatch
    stream: Stream
    resumed: bool


def read_lag(device: torch.device) -> int:
    """How many steps the host runs ahead of what it has read: none on the CPU, where there is nothing to wait for."""
    return 0 if device.type == "cpu" else 1


class Session:
    """Steps one branch; a context manager that closes what it opened.

    Attributes:
        branch, attempt: which. next_step: steps done. last: the newest step read, or None. saver: writes checkpoints.
    """

    def __init__(self, setting: Setting, opened: Opened) -> None:
        self.setting, self.opened = setting, opened
        self.job, self.state, self.watch = setting.job, opened.state, opened.watch
        config, paths = self.job.config, self.job.paths
        self.branch = opened.branches[-1].number
        self.attempt = next_attempt(paths, self.branch)
        self.next_step = opened.stream.next_step
        self._stop_step = min(config.steps, opened.plan.num_steps)
        self._told = False
        self.last: ReadStep | None = None
        self._saved_step = self.next_step if opened.resumed else -1
        self.saver = Saver(paths.checkpoints, setting.world.saving)
        self._options = StepOptions(
            input_options(config, setting.sources), config.micro_batch, setting.sources.names, setting.world
        )
        self._lag = read_lag(self._options.inputs.device)
        self._flops = self.state.model.shape.flops_per_token()
        self._ledger: LedgerWriter = open_ledger(paths, self.branch, self.attempt, len(setting.sources.names))
        board = paths.root / "tensorboard" if config.run.tensorboard else None
        self._metrics = MetricsWriter(paths.metrics, self.branch, self.attempt, self.next_step, tensorboard=board)

    def event(self, kind: str, step: int, **details: Any) -> None:
        """Append an event of this branch and attempt."""
        append_event(self.job.paths, kind, self.branch, step, attempt=self.attempt, **details)

    def run(self, act: Callable[[ReadStep], bool]) -> Literal["finished", "stopped", "left"]:
        """Step until the configured number of steps or the end of the plan, until a stop is requested, or until ``act``
        says to leave.

        Args:
            act: called with each step once it is in the ledger; True ends the session at once, unsaved.
        """
        config = self.job.config
        pending: deque[tuple[PackedStep, StepTimes]] = deque()
        stopping = False
        while self.next_step < self._stop_step and not stopping:
            pending.append(self._step())
            boundary = self._is_boundary(self.next_step)
            while len(pending) > (0 if boundary else self._lag):
                read = self._record(*pending.popleft())
                stopping = stopping or read.stop
                if act(read):
                    return "left"
            if self._due(config.evaluate.every_steps):
                self._evaluate()
            if self._due(config.checkpoint.every_steps) and self.next_step < self._stop_step and not stopping:
                self.save()
        while pending:
            if act(self._record(*pending.popleft())):
                return "left"
        self.save()
        self.saver.wait()
        if self._stop_step < config.steps and self.next_step == self._stop_step:
            end = self.opened.plan.config.stop_position
            self.setting.say(
                f"the plan ends at position {end}: finished after {self.next_step} of {config.steps} steps"
            )
        return "stopped" if stopping and self.next_step < self._stop_step else "finished"

    def _due(self, every: int) -> bool:
        return every > 0 and self.next_step % every == 0

    def _is_boundary(self, step: int) -> bool:
        config = self.job.config
        return (
            self._due(config.checkpoint.every_steps)
            or self._due(config.evaluate.every_steps)
            or step == self._stop_step
        )

    def _step(self) -> tuple[PackedStep, StepTimes]:
        begin_s = time.perf_counter()
        batch = next(self.opened.stream)
        waited_s = time.perf_counter() - begin_s
        if not self._told:
            self.setting.say(f"first batch: step {batch.step}, digest {batch.token_digest:016x}")
            self._told = True
        config = self.job.config
        position = int(self.opened.plan.first_position(batch.step))
        lr = learning_rate(position, config.optimizer.lr, config.schedule)
        stop = self.setting.stop_requested()
        packed = train_step(self.state.model, self.state.optimizer, batch, lr, self._options, stop=stop)
        self.next_step = batch.step + 1
        return packed, StepTimes(waited_s, time.perf_counter() - begin_s)

    def _record(self, packed: PackedStep, times: StepTimes) -> ReadStep:
        """Read a step's vector; ledger first, then metrics."""
        read = packed.read()
        record, names = read.record, self.setting.sources.names
        pairs = [record.source_loss.get(name, (0.0, 0)) for name in names]
        self._ledger.append(
            LedgerRecord(
                step=record.step,
                first_position=record.first_position,
                next_position=record.next_position,
                label_count=record.label_count,
                token_digest=read.token_digest,
                loss=record.loss,
                grad_norm=record.grad_norm,
                update_norm=record.update_norm,
                lr=read.lr,
                source_loss=[loss for loss, _ in pairs],
                source_labels=[count for _, count in pairs],
            )
        )
        line = step_line(read, packed.batch.tokens_BT.size * self.setting.world.size, self._flops, times)
        self._metrics.write(line)
        self.last = read
        if record.step % self.job.config.run.log_every == 0:
            rate = f"{line['tokens_per_s']:.0f} tokens/s"
            self.setting.say(f"step {record.step} loss {record.loss:.4f} grad {record.grad_norm:.3f} {rate}")
        return read

    def _evaluate(self) -> None:
        held_out = self.setting.held_out
        if held_out is None:
            return
        scores = perplexity(self.state.model, held_out, self._options.inputs)
        loss = mean_loss(scores)
        losses = {name: score.loss for name, score in scores.items()}
        self.event("evaluation", self.next_step, loss=loss, source_loss=losses)
        self.setting.say(f"step {self.next_step} held-out loss {loss:.4f}")
        decision = self.watch.observe_validation(self.next_step, loss)
        if decision.kind == "report":
            details = dict(decision.event)
            self.event(details.pop("kind"), details.pop("step", self.next_step), **details)

    def save(self) -> None:
        """Begin to save a checkpoint of the steps done, with the retention behind it; nothing if it exists already."""
        paths = self.job.paths
        if self._saved_step == self.next_step:
            return
        self.saver.wait()
        own = lineage_checkpoints(paths.checkpoints, self.opened.branches)
        self._ledger.flush()
        numbers = [checkpoint.facts.number for checkpoint in list_checkpoints(paths.checkpoints)[0]]
        facts = CheckpointFacts(
            step=self.next_step,
            branch=self.branch,
            attempt=self.attempt,
            number=max(numbers, default=-1) + 1,
            cursor=self.opened.stream.state_dict(),
            mesh={"data": self.setting.world.size},
            state={"spikes": self.watch.state_dict()},
        )
        kept_before = own[max(0, len(own) + 1 - self.job.config.checkpoint.keep_last) :]
        self.saver.save(
            self.state.tensors(), facts, lambda checkpoint: prune(paths.checkpoints, [*kept_before, checkpoint])
        )
        self._saved_step = self.next_step

    def close(self) -> None:
        """Wait for the save in flight and close everything; a second call does nothing."""
        try:
            self.saver.wait()
        finally:
            self._ledger.close()
            self._metrics.close()
            self.opened.stream.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
