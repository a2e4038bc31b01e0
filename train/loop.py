"""The training loop: resume at the newest valid checkpoint, step, carry out what the spike watch decides, go on.

Every decision is a function of the steps since the checkpoint, and the one write that matters for a rollback (the new
branch with its skip entries) is atomic; so a process killed anywhere comes to the same place when it is started again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loader.errors import DamageError, JobError
from loader.files import remove_stale_temporaries
from loader.order.plan import Plan
from loader.order.skips import SkipEntry, SkipList
from loader.order.start import PlanStart
from loader.run_config import build_plan, mixture_of, planned_positions
from loader.run_data import data_in_force, entries_in_force
from loader.run_folder import RunPaths, append_event, lock_run, read_identity, write_config
from loader.runs import Branch, materialise_skips, open_branch, read_branches, read_skips
from loader.sources import Sources
from loader.stream.stream import Stream

from .checkpoint import Checkpoint, load_tensors, pin, pin_for_alarm, remove_unfinished, unpin_alarms
from .context import RunContext
from .huggingface.begin import begin_from_weights
from .job import Changes, Job, establish, job_of_run, write_job_file
from .lineage import damaged_name, lineage_checkpoints, newest_valid
from .schedule import check_annealing
from .session import Opened, Session, Setting, TakeStep
from .spikes.confirm import Confirmation, trials_of
from .spikes.records import Verdict, Window
from .spikes.watch import SpikeWatch, rollbacks_from
from .start_checks import check_folder, refuse_silent_restart
from .state import TrainState, build_state
from .step import ReadStep
from .stepping import open_rank_stream
from .trials import Trial, run_trial

__all__ = ["Driver", "RunResult", "begin_run", "mixture_stages", "train_run"]


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


def mixture_stages(job: Job, sources: Sources, start: PlanStart | None = None) -> list[tuple[int, Mapping[str, float]]]:
    """The mixture as (first position, source -> share of 1), in order; ``start``: that of the plan."""
    stages = [(stage.start, stage.weights) for stage in mixture_of(job.config.data, sources, start)]
    return [(start, {name: w / sum(weights.values()) for name, w in weights.items()}) for start, weights in stages]


def train_run(setting: Setting) -> RunResult:
    """Train until the configured steps are done or a stop is requested; the caller holds nothing of the run.

    Raises:
        RefusedError: another process trains it, or the folder belongs to another configuration.
        DamageError: checkpoints existed and none is valid, or other files of the run are damaged.
        JobError: the spike watch gave up.
    """
    paths, world = setting.job.paths, setting.world
    # One process writes the run's folder; the others follow what it finds there.
    with lock_run(paths) if world.leads else contextlib.nullcontext():
        if setting.job.config.checkpoint.upload is not None:
            world.share_slowly(lambda: _fetch(setting))
        found = world.share(lambda: asdict(begin_run(setting)))
        return Driver(setting, Changes(tuple(found["free"]), tuple(found["later"]))).run()


def _fetch(setting: Setting) -> None:
    """Bring back what a lost folder held."""
    from .remote_checkpoints import fetch_newest

    upload = setting.job.config.checkpoint.upload
    assert upload is not None
    fetch_newest(upload, setting.job.paths, setting.say)


def _from_store(setting: Setting, told: set[str]) -> bool:
    """Whether an intact checkpoint came from the store, where all that are here are damaged; asked once a process."""
    upload = setting.job.config.checkpoint.upload
    if upload is None or "the store was asked" in told:
        return False
    from .remote_checkpoints import fetch_instead

    told.add("the store was asked")
    return setting.world.share_slowly(lambda: fetch_instead(upload, setting.job.paths, setting.say) is not None)


def begin_run(setting: Setting) -> Changes:
    """Make the run's folder, or check that it belongs to this job, and clear what a dead process left; the leading
    process does."""
    changes = establish(setting.job, setting.sources)
    details = {"world_size": setting.world.size, "mesh": setting.world.mesh.shape.to_json(), **setting.machine}
    write_job_file(setting.job, details)
    paths = setting.job.paths
    remove_unfinished(paths.checkpoints)
    for folder in (paths.root, paths.skips):  # of a writer that was killed; the run's lock is held
        remove_stale_temporaries(folder)
    return changes


class Driver:
    """Opens sessions one after the other: one at the start, and one after each rollback."""

    def __init__(self, setting: Setting, changes: Changes) -> None:
        self._setting, self._changes = setting, changes
        self._job, self._sources, self._world = setting.job, setting.sources, setting.world
        self._state = build_state(self._job.config, self._sources, self._world)
        self._rollbacks = 0
        self._told: set[str] = set()  # texts, and names of damaged checkpoints
        self._stopped = False

    def run(self) -> RunResult:
        """Train until the steps are done or a stop is requested; see :func:`train_run`."""
        while True:
            with self._open() as session:
                ended = "stopped" if self._stopped else session.run(lambda read: self._act(session, read))
                if ended == "left":
                    continue
                if ended == "finished" and session.watch.open_window is not None:
                    self._tell_open(session)
                session.event(ended, session.next_step)
                record = None if session.last is None else session.last.record
                loss = record.loss if record is not None and record.label_count and record.finite else None
                digest = self._state.digest()
                return RunResult(ended, session.next_step, session.branch, self._rollbacks, loss, digest)

    def _damaged(self, error: DamageError) -> None:
        """Name a damaged checkpoint, once a process."""
        if str(error) in self._told:
            return
        self._told |= {str(error), damaged_name(self._job.paths.checkpoints, error)}
        if not self._world.leads:
            return
        self._setting.say(f"damaged checkpoint, left alone: {error}")
        branch = read_branches(self._job.paths)[-1].number
        append_event(self._job.paths, "checkpoint_damaged", branch, -1, code=error.code, place=error.place)

    def _open(self) -> Session:
        """Open the current branch at its newest valid checkpoint, or at step 0."""
        paths, config = self._job.paths, self._job.config
        self._world.lead(lambda: materialise_skips(paths))
        branches = read_branches(paths)
        entries = read_skips(paths)
        plan = _plan(self._job, self._sources, entries, branches)
        stages = mixture_stages(self._job, self._sources, plan.config.start)
        first_step = plan.config.start.step if plan.config.start else 0
        watch = SpikeWatch(config.spikes, stages, rollbacks_from(entries), first_step)
        stream = open_rank_stream(config, plan, self._sources, self._world)
        checkpoint = self._load(branches, watch, stream)
        self._world.lead(lambda: check_folder(paths, stream.next_step, watch.open_window is not None))
        self._world.lead(lambda: self._check_later(stream))
        if self._changes != Changes() and self._world.leads:
            write_config(paths, self._job.semantic)
            keys = [*self._changes.free, *self._changes.later]
            append_event(paths, "config_changed", branches[-1].number, stream.next_step, keys=keys)
        self._changes = Changes()
        take = self._steps(plan, stream)
        opened = Opened(branches, plan, self._state, watch, stream, checkpoint is not None, take)
        session = Session(self._setting, opened)
        session.keeper.pass_over(self._told)
        where = None if checkpoint is None else checkpoint.path.name
        mesh_json = self._world.mesh.shape.to_json()
        starts = checkpoint is None and session.next_step == first_step
        facts = {"checkpoint": where, "mesh": mesh_json, "sources": list(self._sources.names)}
        session.event("start" if starts else "resume", session.next_step, **facts)
        self._setting.say(f"branch {session.branch}, attempt {session.attempt}: from step {session.next_step}")
        self._say_where_the_mix_ends(plan)
        if watch.open_window is not None:  # on another machine, behind a loss of power: what was pinned may not be
            self._pin(session, watch.open_window)
        if starts:
            session.save()
            session.saver.wait()  # from here on, steps without a checkpoint are a sign of damage
        return session

    def _steps(self, plan: Plan, stream: Stream) -> TakeStep | None:
        """What does the steps of a session that is about to begin; None: the session itself."""
        del plan, stream
        return None

    def _check_later(self, stream: Stream) -> None:
        """What the Cursor does not know of: the learning rate of steps done is history too."""
        if any(key.partition(".")[0] == "anneal" for key in self._changes.later):
            before = job_of_run(self._job.paths.root).config.anneal
            check_annealing(before, self._job.config.anneal, stream.cursor().next_position)

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
        last_step: int | None = None
        while True:
            folder = self._job.paths.checkpoints
            checkpoint = newest_valid(folder, branches, last_step, self._damaged, self._world)
            if checkpoint is None:
                if last_step is None and _from_store(self._setting, self._told):
                    continue
                refuse_silent_restart(self._job.paths)
                self._state = build_state(self._job.config, self._sources, self._world)
                begin_from_weights(self._job, self._state, branches[-1].number, self._setting.say)
                return None
            tensors = self._state.tensors()
            try:
                load_tensors(checkpoint, tensors, self._world)
            except DamageError as error:
                self._damaged(error)
                last_step = checkpoint.facts.step - 1
                continue
            TrainState.loaded(tensors)
            stream.load_state_dict(checkpoint.facts.cursor)
            watch.load_state_dict(checkpoint.facts.state["spikes"])
            return checkpoint

    def _act(self, session: Session, read: ReadStep) -> bool:
        """Carry out what the spike watch says about a step; True leaves the session for a new branch."""
        decision = session.watch.observe(read.record)
        if decision.kind == "none":
            return False
        self._tell(session, [*decision.also, *([decision.event] if decision.event else [])], read.record.step)
        session.saver.wait()
        if decision.window is not None and decision.kind in ("alarm", "investigate"):
            self._pin(session, decision.window)
        if decision.kind == "report" and decision.window is not None:
            self._unpin()
        if decision.kind != "investigate":
            return False
        return self._carry_out(session, self._investigate(session), read.record.step)

    def _tell(self, session: Session, events: Sequence[Mapping[str, Any]], step: int) -> None:
        """Note what the watch said at a step."""
        for event in events:
            details = dict(event)
            kind, at = details.pop("kind"), details.pop("step", step)
            session.event(kind, at, **details)
            self._setting.say(f"step {at}: {kind}")

    def _tell_open(self, session: Session) -> None:
        """The last steps raised an alarm. It is told, not answered: fewer steps than ``patience`` do not tell one odd
        step from a spike that stays, and a run that is given more steps answers it as if it had never ended."""
        told = session.watch.unanswered(session.next_step)
        self._tell(session, [told], session.next_step)
        window, missing = told["window"], told["missing"]
        more = f"{missing} more step{'' if missing == 1 else 's'} would answer it"
        look = f"tokenreel replay {self._job.paths.root} --steps {window['start']}:{session.next_step} looks into it"
        self._setting.say(f"the alarm of step {told['alarm']} is not answered: {more}; {look}")

    def _investigate(self, session: Session) -> Verdict:
        """All processes score and come to the same verdict."""
        context = RunContext(self._job, self._sources, session.opened.plan, self._damaged, self._world)
        verdict = session.watch.investigate(context)
        gc.collect()  # the frozen copy: sharded modules refer to themselves, and training needs the memory
        return verdict

    def _pin(self, session: Session, window: Window) -> None:
        folder, start = self._job.paths.checkpoints, window.start
        checkpoint = newest_valid(folder, session.opened.branches, start, self._damaged, self._world)
        upload = self._job.config.checkpoint.upload
        if checkpoint is None and upload is not None:  # the run was taken up from the store behind the window's start
            from .remote_checkpoints import fetch_before

            self._world.share_slowly(lambda: fetch_before(upload, self._job.paths, start, self._setting.say))
            checkpoint = newest_valid(folder, session.opened.branches, start, self._damaged, self._world)
        if checkpoint is not None and self._world.leads:
            pin_for_alarm(checkpoint)

    def _unpin(self) -> None:
        """An alarm that is answered no longer needs its checkpoint; where a branch begins is pinned for good."""
        if self._world.leads:
            unpin_alarms(self._job.paths.checkpoints)

    def _carry_out(self, session: Session, verdict: Verdict, step: int) -> bool:
        """Write what an investigation concluded, and open the new branch if it asks for one."""
        report = {key: value for key, value in verdict.report.items() if key not in ("kind", "step")}
        session.event("verdict", step, **report)
        self._setting.say(f"step {step}: verdict {verdict.action}, {len(verdict.entries)} cuts")
        if verdict.action == "give_up":
            self._tell(session, verdict.outcomes, step)
            raise JobError(
                "TR-SPIKE-GIVEN-UP", str(verdict.report.get("why", "the run still spikes")), f"step {step}",
                str(verdict.report.get("advice", "another configuration")), f"tokenreel history {self._job.paths.root}",
            )  # fmt: skip
        if verdict.rollback_to is None or verdict.next_position is None:
            self._unpin()
            return False
        if trials_of(verdict):
            return self._confirm(session, verdict, step)
        return self._roll_back(session, verdict, step)

    def _roll_back(self, session: Session, verdict: Verdict, step: int) -> bool:
        self._tell(session, verdict.outcomes, step)
        session.flush()  # the branch that is left is never stepped again
        self._world.lead(lambda: _open_branch(self._job.paths, session, verdict))
        self._unpin()
        self._rollbacks += 1
        return True

    def _confirm(self, session: Session, verdict: Verdict, step: int) -> bool:
        """Trials first: cut if the spike stays in them, else go on as if nothing had been asked.

        Killed on the way, the run comes back here by replaying its steps, and finds the trials that were finished.
        """
        case = Confirmation(self._job.paths, session.branch, verdict, bool(verdict.report["finite"]))
        found = self._world.share(case.read)
        ran = case.missing(found)
        for name in ran:
            losses = self._try(session, case, name)
            if losses is None:
                self._stopped = True
                return True  # the weights are the trial's: the branch is opened anew, to be left as it was saved
            found[name] = case.result(losses)
            self._world.lead(lambda: case.write(found))
            session.event("trial", step, trial=name, **found[name])
        decision = case.decide(found)
        if "decision" not in found:
            self._world.lead(lambda: case.write({**found, **decision}))
            session.event("confirm", step, **decision)
            self._setting.say(f"step {step}: trials say {decision['decision']}")
        if not case.goes_on(decision["decision"]):
            return self._roll_back(session, case.with_trials(found, decision["decision"]), step)
        if ran:
            return True  # the newest checkpoint is behind this step, which will be asked about again
        session.event("outcome", step, rollback=case.record.number, outcome="not_data", why=decision["why"])
        session.watch.answer()
        self._unpin()
        return False

    def _try(self, session: Session, case: Confirmation, name: str) -> list[float] | None:
        paths, branches = self._job.paths, session.opened.branches
        start = case.record.checkpoint_step
        checkpoint = newest_valid(paths.checkpoints, branches, start, self._damaged, self._world)
        if checkpoint is None or checkpoint.facts.step != start:
            raise DamageError(
                "TR-CHECKPOINT-NONE", f"the checkpoint of step {start} is gone or damaged", str(paths.checkpoints),
                "the one that was just scored with", "the same command: an older one is taken",
            )  # fmt: skip
        plan = session.opened.plan
        if name == "placebo":
            entries = [*read_skips(paths, session.branch), *case.verdict.placebo]
            plan = _plan(self._job, self._sources, entries, branches)
        trial = Trial(plan, checkpoint, case.record)
        return run_trial(self._job.config, self._sources, self._state, trial, self._setting.stop_requested)


def _open_branch(paths: RunPaths, session: Session, verdict: Verdict) -> None:
    """Pin where the branch begins, then open it with its cuts; the leading process does."""
    step, position, reason = verdict.rollback_to, verdict.next_position, f"spike: {verdict.action}"
    assert step is not None
    assert position is not None
    # The alarm pinned the newest one; a spike that came back, or damage since, goes further back.
    for base in lineage_checkpoints(paths.checkpoints, session.opened.branches):
        if base.facts.step == step:
            pin(base)
    branch = open_branch(paths, step, position, reason, verdict.entries)
    details = {"from_branch": session.branch, "action": verdict.action, "entries": len(verdict.entries)}
    append_event(paths, "rollback", branch.number, step, **details)


def _plan(job: Job, sources: Sources, entries: Sequence[SkipEntry], branches: Sequence[Branch]) -> Plan:
    force = data_in_force(job.semantic, read_identity(job.paths), branches)
    kept, _ = entries_in_force(entries, force, sources)
    return build_plan(job.config.data, sources, SkipList(kept), force.start)
