"""One attempt at one branch: everything opened at a checkpoint, stepped until it ends, rolls back or is stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TextIO

import torch

from loader.ledger import LedgerRecord, LedgerWriter
from loader.run_folder import append_event, read_identity
from loader.runs import Branch, next_attempt, open_ledger
from loader.sources import Sources
from loader.stream.stream import Stream

from .ahead import CountedBatches
from .checkpoint import Checkpoint, CheckpointFacts, list_checkpoints
from .evaluate.during import Evaluation
from .evaluate.earlier import evaluated_earlier
from .evaluate.share import share_of
from .job import Job
from .keeper import Keeper
from .lineage import lineage_checkpoints, lineage_of
from .metrics.begin import Attempt, begin_recorder
from .metrics.clock import StepClock
from .metrics.recorder import Recorder
from .parallel.data import drop_gathered
from .saver import Saver
from .spikes.watch import SpikeWatch
from .state import TrainState
from .step import PackedStep, ReadStep, train_step
from .stepping import batches_to_come, plan_step, step_options
from .world import World

if TYPE_CHECKING:
    from loader.order.plan import Plan

__all__ = ["Opened", "Session", "Setting", "TakeStep", "ledger_record", "read_lag"]

TakeStep = Callable[[bool], PackedStep]
"""Does the next step; told whether this process was asked to stop."""


@dataclass(frozen=True)
class Setting:
    """What stays the same over all attempts of a process.

    Attributes:
        job, sources, world: the run, its Datasets, the process group.
        evaluation: what is asked of the model every so many steps.
        say: where remarks go, one line each.
        stop_requested: whether a signal asked to stop.
        machine: what job.json says of the machine.
        undisturbed: a block in which signals wait; the last save is made in one.
        terminal: where a live line is drawn, or None.
    """

    job: Job
    sources: Sources
    world: World
    evaluation: Evaluation
    say: Callable[[str], None]
    stop_requested: Callable[[], bool]
    machine: Mapping[str, Any]
    undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext
    terminal: TextIO | None = None


@dataclass(frozen=True)
class Opened:
    """Where an attempt begins.

    Attributes:
        branches: of the run, the current one last. plan: as this branch sees it. state: model and optimizer, loaded.
        watch: the spike watch, loaded. stream: standing at the first step to do.
        resumed: a checkpoint of exactly this state exists.
        take_step: does the steps, from ``stream`` on, in place of the session; None: it does them.
    """

    branches: tuple[Branch, ...]
    plan: Plan
    state: TrainState
    watch: SpikeWatch
    stream: Stream
    resumed: bool
    take_step: TakeStep | None = None


def read_lag(device: torch.device) -> int:
    """How many steps the host runs ahead of what it has read: none on the CPU, where there is nothing to wait for."""
    return 0 if device.type == "cpu" else 1


def ledger_record(read: ReadStep, names: Sequence[str]) -> LedgerRecord:
    """What the ledger holds of a step; ``names``: of the plan's sources."""
    record = read.record
    pairs = [record.source_loss.get(name, (0.0, 0)) for name in names]
    return LedgerRecord(
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
        self._batches = CountedBatches(opened.stream, setting.world, self._stop_step)
        self._told = False
        self.last: ReadStep | None = None
        self._saved_step = self.next_step if opened.resumed else -1
        self._run_id = str(read_identity(paths)["run_id"])
        self.saver = Saver(paths.checkpoints, setting.world, config.checkpoint.timeout_s)
        self.keeper = Keeper(paths, config.checkpoint, setting.say, leads=setting.world.leads)
        self._options = step_options(config, setting.sources, self.state)
        self._lag = read_lag(self._options.inputs.device)
        self._clock = StepClock()
        setting.world.barrier()  # all have counted the attempts before the leading one adds its own
        self._ledger: LedgerWriter | None = None
        self._recorder: Recorder | None = None
        if setting.world.leads:
            self._ledger = open_ledger(paths, self.branch, self.attempt, len(setting.sources.names))
            self._recorder = begin_recorder(self._as_attempt())

    def _as_attempt(self) -> Attempt:
        setting = self.setting
        return Attempt(
            job=self.job,
            sources=setting.sources,
            plan=self.opened.plan,
            shape=self.state.model.shape,
            branch=self.branch,
            attempt=self.attempt,
            first_step=self.next_step,
            last_step=self._stop_step,
            device=self._options.inputs.device,
            num_devices=setting.world.size,
            clock=self._clock,
            say=setting.say,
            # Not the method: through it the recorder would hold the session, and both the model, for the collector.
            event=partial(append_event, self.job.paths, attempt=self.attempt),
            terminal=setting.terminal,
        )

    def event(self, kind: str, step: int, **details: Any) -> None:
        """Append an event of this branch and attempt; the leading process does."""
        if self.setting.world.leads:
            append_event(self.job.paths, kind, self.branch, step, attempt=self.attempt, **details)

    def run(self, act: Callable[[ReadStep], bool]) -> Literal["finished", "stopped", "left"]:
        """Step until the configured number of steps or the end of the plan, until a stop is requested, or until ``act``
        says to leave.

        Args:
            act: called with each step once it is in the ledger; True ends the session at once, unsaved.

        Raises:
            ConfigError: a batch to come that the pipeline cannot cut.
        """
        config = self.job.config
        if self.state.pipeline is not None:
            self.state.pipeline.prepare(batches_to_come(self.opened.plan, self.next_step), config.micro_batch)
        if self.opened.resumed and self.next_step and self._due(config.evaluate.every_steps):
            self._evaluate_late()
        pending: deque[PackedStep] = deque()
        stopping = False
        while self.next_step < self._stop_step:
            pending.append(self._step())
            boundary = self._is_boundary(self.next_step)
            while len(pending) > (0 if boundary else self._lag):
                read = self._record(pending.popleft())
                stopping = stopping or read.stop
                if self._acts(act, read):
                    return "left"
            if stopping or self.next_step >= self._stop_step:
                break
            if self._due(config.checkpoint.every_steps):
                with self._clock.part("checkpoint"):
                    self.save()
            if self._due(config.evaluate.every_steps):  # behind the save: one that fails costs no step
                self._evaluate()
        while pending:
            if self._acts(act, self._record(pending.popleft())):
                return "left"
        self._end()
        if self._stop_step < config.steps and self.next_step == self._stop_step:
            end = self.opened.plan.config.stop_position
            self.setting.say(
                f"the plan ends at position {end}: finished after {self.next_step} of {config.steps} steps"
            )
        return "stopped" if stopping and self.next_step < self._stop_step else "finished"

    def _end(self) -> None:
        """Save, evaluate what is saved, and see it uploaded: what follows the save may fail, or be broken off."""
        with self.setting.undisturbed():
            self.save()
            self.saver.wait()
        if self.last is not None and self._due(self.job.config.evaluate.every_steps):
            self._evaluate()
        self._tell(self.setting.world.share_slowly(self._see_uploaded))

    def _see_uploaded(self) -> list[dict[str, Any]]:
        """Wait for the upload where the run is finished; the leading process does."""
        finished = self.next_step >= self._stop_step
        if finished and self.last is None and self.opened.resumed:  # an earlier start may not have come to it
            newest = lineage_checkpoints(self.job.paths.checkpoints, self.opened.branches)[-1]
            self.keeper.catch_up(newest, self.watch.needed_from(self.next_step))
        return self.keeper.finish(wait=finished, stop_requested=self.setting.stop_requested)

    def _acts(self, act: Callable[[ReadStep], bool], read: ReadStep) -> bool:
        with self._clock.part("spikes"):
            return act(read)

    def _due(self, every: int) -> bool:
        return every > 0 and self.next_step % every == 0

    def _is_boundary(self, step: int) -> bool:
        config = self.job.config
        return (
            self._due(config.checkpoint.every_steps)
            or self._due(config.evaluate.every_steps)
            or step == self._stop_step
        )

    def _step(self) -> PackedStep:
        if self.opened.take_step is not None:
            packed = self.opened.take_step(self.setting.stop_requested())
            self.next_step = packed.batch.step + 1
            return packed
        with self._clock.part("loader"):
            counted = self._batches.take()
        batch = counted.batch
        if not self._told:
            self.setting.say(f"first batch: step {batch.step}, digest {batch.token_digest:016x}")
            self._told = True
        label_count = counted.label_count()
        plan = plan_step(self.job.config, self.opened.plan, batch.step, self.setting.world, label_count)
        stop = self.setting.stop_requested()
        packed = train_step(self.state, batch, plan, self._options, stop=stop, waited_s=counted.waited_s)
        self.next_step = batch.step + 1
        return packed

    def _record(self, packed: PackedStep) -> ReadStep:
        """Read a step's vector; ledger first, then metrics."""
        read = packed.read()
        if self._ledger is not None and self._recorder is not None:
            with self._clock.part("ledger"):
                self._ledger.append(ledger_record(read, self.setting.sources.names))
            samples = self.opened.plan.step_samples(read.record.step)
            self._recorder.step(read, samples * self.setting.sources.seq_len)
        self.last = read
        return read

    def _evaluate(self) -> None:
        evaluation, world = self.setting.evaluation, self.setting.world
        if evaluation.is_empty:
            return
        with self._clock.part("evaluation"):
            found = evaluation(self.state.model, self._options.inputs, share_of(world, self.state.pipeline))
            for part in self.state.parts:
                drop_gathered(part)
        self.event("evaluation", self.next_step, **found.to_event())
        if self._recorder is not None:
            self._recorder.evaluation(self.next_step, found.to_line())
        self.setting.say(f"step {self.next_step} {found.to_text()}")
        if found.sources:
            self._observe(found.loss)

    def _evaluate_late(self) -> None:
        """What came of the evaluation of the step where this session begins; or the evaluation, if nothing did."""
        paths = self.job.paths
        known = self.setting.world.share(lambda: evaluated_earlier(paths, self.opened.branches, self.next_step))
        if known is None:
            self._evaluate()
        elif known["loss"] is not None:
            self._observe(known["loss"], known["kinds"])

    def _observe(self, loss: float, told: Sequence[str] = ()) -> None:
        """Show the watch a held-out loss; ``told``: kinds of events that need not be told again."""
        decision = self.watch.observe_validation(self.next_step, loss)
        details = dict(decision.event)
        if decision.kind == "report" and details["kind"] not in told:
            self.event(details.pop("kind"), details.pop("step", self.next_step), **details)

    def save(self) -> None:
        """Begin to save a checkpoint of the steps done, with the retention behind it; nothing if it exists already."""
        paths = self.job.paths
        if self._saved_step == self.next_step or not self.setting.world.saves:
            return
        self.saver.wait()
        self._tell(self.keeper.events())
        self.flush()
        own: list[Checkpoint] = []  # of the branch; the leading process looks, the others follow

        def look() -> int:
            known = list_checkpoints(paths.checkpoints)[0]
            own.extend(lineage_of(known, self.opened.branches))
            return max((checkpoint.facts.number for checkpoint in known), default=-1) + 1

        facts = CheckpointFacts(
            step=self.next_step,
            branch=self.branch,
            attempt=self.attempt,
            number=self.setting.world.share(look),
            cursor=self.opened.stream.state_dict(self.next_step),  # the stream stands further, see CountedBatches
            mesh=self.setting.world.mesh.shape.to_json(),
            state={"spikes": self.watch.state_dict()},
            time_s=time.time(),
            run_id=self._run_id,
        )
        start = self.watch.needed_from(self.next_step)
        self.saver.save(self.state.tensors(), facts, lambda checkpoint: self.keeper.follow([*own, checkpoint], start))
        self._saved_step = self.next_step

    def flush(self) -> None:
        """What was recorded of the steps survives a loss of power from here on."""
        if self._ledger is not None:
            self._ledger.flush()
        if self._recorder is not None:
            self._recorder.flush()

    def _tell(self, events: Sequence[Mapping[str, Any]]) -> None:
        for details in events:
            self.event(**details)

    def close(self) -> None:
        """Wait for the save in flight and close everything; a second call does nothing."""
        try:
            self.saver.wait()
        finally:
            self.keeper.close()
            if self._ledger is not None:
                self._ledger.close()
            if self._recorder is not None:
                self._recorder.close()
            self.opened.stream.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
