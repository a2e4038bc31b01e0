"""The training loop: resume at the newest valid checkpoint, step, carry out what the spike watch decides, go on.

Every decision is a function of the steps since the checkpoint, and the one write that matters for a rollback (the new
branch with its skip entries) is atomic; so a process killed anywhere comes to the same place when it is started again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loader.errors import DamageError, JobError
from loader.order.plan import Plan
from loader.order.skips import SkipEntry, SkipList
from loader.run_config import build_plan, mixture_of, planned_positions
from loader.run_data import data_in_force, entries_in_force
from loader.run_folder import append_event, lock_run, read_identity, write_config
from loader.runs import Branch, ledger_of, materialise_skips, open_branch, read_branches, read_skips
from loader.sources import Sources
from loader.stream.stream import Stream, StreamConfig

from .checkpoint import Checkpoint, list_checkpoints, load_tensors, pin, remove_unfinished, unpin
from .context import RunContext
from .job import Changes, Job, establish, write_job_file
from .lineage import newest_valid
from .session import Opened, Session, Setting
from .spikes.records import Decision, Verdict
from .spikes.watch import SpikeWatch, rollbacks_from
from .state import TrainState, build_state
from .step import ReadStep

__all__ = ["RunResult", "mixture_stages", "train_run"]


@dataclass(frozen=True)
class RunResult:
    """How a training process ended.

    Attributes:
        outcome: ``finished`` (all steps done) or ``stopped`` (asked to; resumable).
        step: steps done. branch: the current one. rollbacks: in this process.
        loss: of the last step, nats; None if no step was done or it had no labels.
        parameters: sha256 of all parameters.
    """

    outcome: Literal["finished", "stopped"]
    step: int
    branch: int
    rollbacks: int
    loss: float | None
    parameters: str


def mixture_stages(job: Job, sources: Sources) -> list[tuple[int, Mapping[str, float]]]:
    """The mixture as (first position, source -> share of 1), in order."""
    stages = [(stage.start, stage.weights) for stage in mixture_of(job.config.data, sources)]
    return [(start, {name: w / sum(weights.values()) for name, w in weights.items()}) for start, weights in stages]


def train_run(setting: Setting) -> RunResult:
    """Train until the configured steps are done or a stop is requested; the caller holds nothing of the run.

    Raises:
        RefusedError: another process trains it, or the folder belongs to another configuration.
        DamageError: checkpoints existed and none is valid, or other files of the run are damaged.
        JobError: the spike watch gave up.
    """
    paths = setting.job.paths
    with lock_run(paths):
        changes = establish(setting.job, setting.sources)
        write_job_file(setting.job, {"world_size": setting.world.size, **setting.machine})
        remove_unfinished(paths.checkpoints)
        return _Driver(setting, changes).run()


class _Driver:
    """Opens sessions one after the other: one at the start, and one after each rollback."""

    def __init__(self, setting: Setting, changes: Changes) -> None:
        self._setting, self._changes = setting, changes
        self._job, self._sources = setting.job, setting.sources
        self._state = build_state(self._job.config, self._sources)
        self._rollbacks = 0
        self._told: set[str] = set()
        self._pinned: Checkpoint | None = None

    def run(self) -> RunResult:
        while True:
            with self._open() as session:
                ended = session.run(lambda read: self._act(session, read))
                if ended == "left":
                    continue
                session.event(ended, session.next_step)
                record = None if session.last is None else session.last.record
                loss = record.loss if record is not None and record.label_count and record.finite else None
                digest = self._state.digest()
                return RunResult(ended, session.next_step, session.branch, self._rollbacks, loss, digest)

    def _damaged(self, error: DamageError) -> None:
        """Name a damaged checkpoint, once a process."""
        if str(error) in self._told:
            return
        self._told.add(str(error))
        self._setting.say(f"damaged checkpoint, left alone: {error}")
        branch = read_branches(self._job.paths)[-1].number
        append_event(self._job.paths, "checkpoint_damaged", branch, -1, code=error.code, place=error.place)

    def _open(self) -> Session:
        """Open the current branch at its newest valid checkpoint, or at step 0."""
        paths, config = self._job.paths, self._job.config
        materialise_skips(paths)
        branches = read_branches(paths)
        entries = read_skips(paths)
        plan = _plan(self._job, self._sources, entries, branches)
        stages = mixture_stages(self._job, self._sources)
        first_step = plan.config.start.step if plan.config.start else 0
        watch = SpikeWatch(config.spikes, stages, rollbacks_from(entries), first_step)
        stream = Stream(plan, self._sources, StreamConfig(threads=config.run.reader_threads))
        checkpoint = self._load(branches, watch, stream)
        if self._changes != Changes():
            write_config(paths, self._job.semantic)
            keys = [*self._changes.free, *self._changes.later]
            append_event(paths, "config_changed", branches[-1].number, stream.next_step, keys=keys)
            self._changes = Changes()
        session = Session(self._setting, Opened(branches, plan, self._state, watch, stream, checkpoint is not None))
        where = None if checkpoint is None else checkpoint.path.name
        session.event("start" if checkpoint is None else "resume", session.next_step, checkpoint=where)
        self._setting.say(f"branch {session.branch}, attempt {session.attempt}: from step {session.next_step}")
        self._say_where_the_mix_ends(plan)
        if checkpoint is None:
            session.save()
            session.saver.wait()  # from here on, steps without a checkpoint are a sign of damage
        return session

    def _say_where_the_mix_ends(self, plan: Plan) -> None:
        """A run may read on behind the end of its Dataset's mix, in the shares of the last stage; it is told so, once a
        process, as sources then come more often than planned."""
        planned = planned_positions(self._job.config.data, self._sources)
        if planned is None:
            return
        steps = min(self._job.config.steps, plan.num_steps)
        last = plan.next_position(steps - 1)
        text = f"the Dataset was mixed for {planned} positions; {steps} steps read {last}"
        if last > planned and text not in self._told:
            self._told.add(text)
            self._setting.say(text)

    def _load(self, branches: Any, watch: SpikeWatch, stream: Stream) -> Checkpoint | None:
        paths = self._job.paths
        last_step: int | None = None
        while True:
            checkpoint = newest_valid(paths.checkpoints, branches, last_step, self._damaged)
            if checkpoint is None:
                self._refuse_silent_restart()
                self._state = build_state(self._job.config, self._sources)
                return None
            tensors = self._state.tensors()
            try:
                load_tensors(checkpoint, tensors)
            except DamageError as error:
                self._damaged(error)
                last_step = checkpoint.facts.step - 1
                continue
            TrainState.loaded(tensors)
            stream.load_state_dict(checkpoint.facts.cursor)
            watch.load_state_dict(checkpoint.facts.state["spikes"])
            return checkpoint

    def _refuse_silent_restart(self) -> None:
        """Without a valid checkpoint only a run that has done nothing may begin at step 0."""
        paths = self._job.paths
        good, damaged = list_checkpoints(paths.checkpoints)
        if good or damaged or len(ledger_of(paths)):
            raise DamageError(
                "TR-CHECKPOINT-NONE", "the run has done steps, but no checkpoint of this branch is valid",
                str(paths.checkpoints), "one intact checkpoint", "restore a checkpoint, or begin in another folder",
            )  # fmt: skip

    def _act(self, session: Session, read: ReadStep) -> bool:
        """Carry out what the spike watch says about a step; True leaves the session for a new branch."""
        decision = session.watch.observe(read.record)
        if decision.kind == "none":
            return False
        if decision.event:
            details = dict(decision.event)
            kind, step = details.pop("kind"), details.pop("step", read.record.step)
            session.event(kind, step, **details)
            self._setting.say(f"step {step}: {kind}")
        session.saver.wait()
        if decision.window is not None and decision.kind in ("alarm", "investigate"):
            self._pin(session, decision)
        if decision.kind == "report" and decision.window is not None:
            self._unpin()
        if decision.kind != "investigate":
            return False
        context = RunContext(self._job, self._sources, session.opened.plan, self._damaged)
        return self._carry_out(session, session.watch.investigate(context), read.record.step)

    def _pin(self, session: Session, decision: Decision) -> None:
        assert decision.window is not None
        folder = self._job.paths.checkpoints
        checkpoint = newest_valid(folder, session.opened.branches, decision.window.start, self._damaged)
        if checkpoint is not None:
            pin(checkpoint)
            self._pinned = checkpoint

    def _unpin(self) -> None:
        """An alarm that came to nothing no longer needs its checkpoint, unless a branch begins at it.

        An alarm soon after a rollback pins the very checkpoint that the branch came from; replaying the cut steps
        needs that one for good.
        """
        if self._pinned is not None:
            bases = {branch.from_step for branch in read_branches(self._job.paths) if branch.parent is not None}
            if self._pinned.facts.step not in bases:
                unpin(self._pinned)
            self._pinned = None

    def _carry_out(self, session: Session, verdict: Verdict, step: int) -> bool:
        """Write what an investigation concluded, and open the new branch if it asks for one."""
        report = {key: value for key, value in verdict.report.items() if key not in ("kind", "step")}
        session.event("verdict", step, **report)
        self._setting.say(f"step {step}: verdict {verdict.action}, {len(verdict.entries)} cuts")
        if verdict.action == "give_up":
            raise JobError(
                "TR-SPIKE-GIVEN-UP", str(verdict.report.get("why", "the run still spikes")), f"step {step}",
                str(verdict.report.get("advice", "another configuration")), f"tokenreel history {self._job.paths.root}",
            )  # fmt: skip
        if verdict.rollback_to is None or verdict.next_position is None:
            self._unpin()
            return False
        self._pinned = None
        reason = f"spike: {verdict.action}"
        branch = open_branch(self._job.paths, verdict.rollback_to, verdict.next_position, reason, verdict.entries)
        details = {"from_branch": session.branch, "action": verdict.action, "entries": len(verdict.entries)}
        append_event(self._job.paths, "rollback", branch.number, verdict.rollback_to, **details)
        self._rollbacks += 1
        return True


def _plan(job: Job, sources: Sources, entries: Sequence[SkipEntry], branches: Sequence[Branch]) -> Plan:
    force = data_in_force(job.semantic, read_identity(job.paths), branches)
    kept, _ = entries_in_force(entries, force, sources)
    return build_plan(job.config.data, sources, SkipList(kept), force.start)
