"""Training as one replica of several: the run's driver, where the leading replica writes the folder and all compute.

Every replica holds the whole state and is a world of one, but for the sums of a step (``step``). Who holds the lock of
the run's folder leads: it writes ledger, metrics and checkpoints; the others hold the same numbers in memory. When the
leading one is gone, another takes the lock, and writes first what is missing in the ledger; or, where the folder is
ahead of it, goes on from the newest checkpoint. No replica calls the run finished before its end is saved.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from loader.canonical import canonical_json
from loader.errors import ConfigError, JobError, RefusedError
from loader.ledger import LedgerRecord
from loader.run_folder import lock_run, read_identity
from loader.runs import ledger_of, read_branches
from loader.stream.stream import Stream

from ..checkpoint import Checkpoint, remove_unfinished
from ..job import Changes
from ..launch import place
from ..lineage import lineage_checkpoints
from ..loop import Driver, RunResult, begin_run
from ..session import Session, Setting, TakeStep, ledger_record
from ..spikes.watch import SpikeWatch
from ..state import TrainState
from ..step import ReadStep
from ..stepping import plan_step, step_options
from ..world import World
from .ledger import add_missing
from .members import PAUSE_S, Members, Replaced
from .step import ReplicaSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader.order.plan import Plan

    from .config import TorchftConfig

__all__ = ["ReplicaWorld", "train_replica"]

_REMEMBERED_STEPS = 1024
"""Steps that a new leader can add to the ledger; the old one wrote all but the newest, unless its machine lost them."""


@dataclass(frozen=True)
class ReplicaWorld(World):
    """A world of one process that writes the run's folder only while it leads.

    Attributes:
        leading: whether it does.
    """

    leading: bool = False

    @property
    def leads(self) -> bool:
        """Whether this replica writes the run's folder."""
        return self.leading

    @property
    def saves(self) -> bool:
        """The leading replica holds all that a checkpoint needs."""
        return self.leading

    def lead(self, work: Callable[[], object]) -> None:
        """The leading replica works; the others wait for nobody."""
        if self.leading:
            work()


def train_replica(setting: Setting, config: TorchftConfig) -> RunResult:
    """Train as one replica, until the configured steps are done or this replica is asked to leave.

    Args:
        setting: of a world of one. config: the ``run.torchft`` block.

    Raises:
        ConfigError: ``TR-REPLICA-PLACE``: a launcher started several processes; ``TR-REPLICA-PACKAGE``: no torchft.
        RefusedError: ``TR-REPLICA-CONFIG``: the other replicas train another configuration.
        JobError: no quorum, or no step, came together; ``TR-REPLICA-UNSAVED``: the last step is done and not saved.
        TokenreelError: see ``loop.train_run``.
    """
    if setting.world.size > 1:
        raise ConfigError(
            "TR-REPLICA-PLACE", f"{setting.world.size} processes under one launcher", "run.torchft",
            "one process a replica, each started by itself", "tokenreel train CONFIG, once for each replica",
        )  # fmt: skip
    driver = _ReplicaDriver(setting, config)
    try:
        return driver.run()
    finally:
        driver.close()


class _ReplicaDriver(Driver):
    """The driver of a run whose state may come from a peer instead of a checkpoint."""

    def __init__(self, setting: Setting, config: TorchftConfig) -> None:
        base, own = setting.world, place()
        world = ReplicaWorld(base.rank, base.size, base.saving, base.mesh, own.restarts, leading=False)
        super().__init__(replace(setting, world=world), Changes())
        self._config = config
        self._lock = ExitStack()
        self._step: int | None = None  # the next one; None: this replica has no state yet
        self._size = 0
        self._unwritten = 0  # steps in a row that counted while nobody led
        self._newest: deque[LedgerRecord] = deque(maxlen=_REMEMBERED_STEPS)
        self._members = Members(config, self._offer, self._take, setting.say)

    def run(self) -> RunResult:
        """Begin or join the run and train."""
        self._join()
        while True:
            try:
                result = super().run()
            except Replaced:
                self._setting.say(f"this replica was behind and goes on at step {self._step} with a peer's state")
                continue
            # One that is asked to leave leaves the saving to the others, where there are any.
            if not self._members.leads and (result.outcome == "finished" or self._members.size == 1):
                self._see_saved(result)
            return result

    def _see_saved(self, result: RunResult) -> None:
        """Wait until the state behind the last step is saved, by whoever holds the lock; take the lock and save it
        where nobody does. The leading replica may have left before that step, or die before it is safe.

        Raises:
            JobError: neither came.
        """
        self._members.close()  # nobody shall wait for this replica at the border of a step
        end_s = time.monotonic() + self._config.quorum_timeout_s
        told = False
        while not self._is_saved(result.step):
            if self._lead():
                break
            if time.monotonic() >= end_s:
                raise JobError(
                    "TR-REPLICA-UNSAVED", f"step {result.step} is reached, but who holds the run does not save it",
                    str(self._job.paths.root),
                    f"a checkpoint of that step within {self._config.quorum_timeout_s:g} s (quorum_timeout_s)",
                    "end that process, then the same command: it goes on from the newest checkpoint",
                )  # fmt: skip
            if not told:
                self._setting.say(f"step {result.step}: waiting for its checkpoint")
                told = True
            time.sleep(PAUSE_S)
        if self._members.leads and self._step is not None and not self._is_saved(result.step):
            self._save_end(result)

    def _is_saved(self, step: int) -> bool:
        """Whether the run's folder holds a checkpoint of that step, or of a later one."""
        paths = self._job.paths
        return any(one.facts.step >= step for one in lineage_checkpoints(paths.checkpoints, read_branches(paths)))

    def _save_end(self, result: RunResult) -> None:
        """Save as the leading replica, with what is missing in the ledger; no step follows."""
        with self._setting.undisturbed(), self._open() as session:
            session.save()
            session.saver.wait()
            session.event(result.outcome, session.next_step)
            self._setting.say(f"step {session.next_step}: saved by this replica")

    def close(self) -> None:
        """Leave the others and the folder."""
        self._members.close()
        self._lock.close()

    def _join(self) -> None:
        """Lead, where nobody does, or get a state from those who are there."""
        while not self._lead():
            try:
                self._members.ask()  # of any number: the lock may fall meanwhile
            except Replaced:
                self._setting.say(f"joined at step {self._step} with a peer's state")
                return
            self._members.leave()  # nobody there has a state
            time.sleep(PAUSE_S)
        self._changes = begin_run(self._setting)

    def _lead(self) -> bool:
        """Take the lock of the run's folder and lead; whether that worked. It never waits: who holds the lock may be a
        replica that waits for this one at the border of the next step."""
        try:
            self._lock.enter_context(lock_run(self._job.paths))
        except RefusedError:
            return False
        world = self._setting.world
        assert isinstance(world, ReplicaWorld)
        self._world = replace(world, leading=True)
        self._setting = replace(self._setting, world=self._world)
        self._members.leads = True
        self._size = 0  # told anew: nobody has written what this replica saw while it followed
        remove_unfinished(self._job.paths.checkpoints)  # of a leader that was lost while it saved
        self._drop_if_behind()
        return True

    def _drop_if_behind(self) -> None:
        """Give up the state where the folder holds later steps: others went on without this replica, and are gone. A
        checkpoint of theirs that the ledger of this replica's steps does not reach could not be resumed."""
        if self._step is None or len(ledger_of(self._job.paths)) <= self._step:
            return
        self._setting.say(f"this replica was behind the run's folder, at step {self._step}: its state is dropped")
        self._step = None
        self._newest.clear()

    def _offer(self) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        facts = {
            "run_id": str(read_identity(self._job.paths)["run_id"]),
            "semantic": self._job.semantic,
            "step": self._step,
            "newest": [asdict(record) for record in self._newest],
        }
        return facts, self._state.tensors()

    def _take(self, facts: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if canonical_json(facts["semantic"]) != canonical_json(self._job.semantic):
            raise RefusedError(
                "TR-REPLICA-CONFIG", "the other replicas train another configuration", str(self._job.paths.root),
                "the same configuration on all, but for its run block",
                f"compare it with {self._job.paths.config}, then the same command",
            )  # fmt: skip
        if facts["run_id"] != read_identity(self._job.paths)["run_id"]:
            raise RefusedError(
                "TR-REPLICA-CONFIG", "the other replicas train another run", str(self._job.paths.root),
                "one RUN folder that all replicas see", "set output to that folder, then the same command",
            )  # fmt: skip
        own = self._state.tensors()
        if own.keys() != tensors.keys():
            raise RefusedError(
                "TR-REPLICA-CONFIG", "a peer holds other tensors", "run.torchft", "the same release on all",
                "tokenreel --version on each machine; install that of the peers, then the same command",
            )  # fmt: skip
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        TrainState.loaded(own)
        self._step = int(facts["step"])
        self._newest = deque((LedgerRecord(**record) for record in facts["newest"]), _REMEMBERED_STEPS)

    def _load(self, branches: Any, watch: SpikeWatch, stream: Stream) -> Checkpoint | None:
        if self._step is None:
            found = super()._load(branches, watch, stream)
            self._step = stream.next_step
            self._members.stand_at(self._step)
            return found
        from loader.order.cursor import make_cursor

        cursor = make_cursor(stream.plan, stream.sources.digest_by_source, next_step=self._step)
        stream.load_state_dict(cursor.to_json())
        num_sources = len(self._sources.names)
        self._world.lead(lambda: add_missing(self._job.paths, branches[-1].number, self._newest, num_sources))
        return None

    def _steps(self, plan: Plan, stream: Stream) -> TakeStep:
        config = self._job.config

        def plan_of(step: int, label_count: int) -> Any:
            return plan_step(config, plan, step, World(), label_count)

        options = replace(step_options(config, self._sources, self._state), world=World())
        return ReplicaSteps(self._members, stream, self._state, options, plan_of, stream.next_step)

    def _act(self, session: Session, read: ReadStep) -> bool:
        self._step = read.record.step + 1
        self._newest.append(ledger_record(read, self._sources.names))
        if self._members.size != self._size:
            self._size = self._members.size
            session.event("replicas", read.record.step, count=self._size)
            session.setting.say(f"step {read.record.step}: {self._size} replicas")
        if self._takes_over(read.record.step):
            session.setting.say(f"step {read.record.step}: this replica leads now")
            return True
        return super()._act(session, read)

    def _takes_over(self, step: int) -> bool:
        """Whether nobody led in a step and this replica does from now on."""
        self._unwritten = self._unwritten + 1 if self._members.leaderless else 0
        if self._members.leads or not self._members.leaderless:
            return False
        if self._unwritten > _REMEMBERED_STEPS // 2:
            raise RefusedError(
                "TR-RUN-BUSY", f"no replica leads at step {step}, but a process holds the run",
                str(self._job.paths.root), "a run that no other process works on",
                "end that process, then the same command",
            )  # fmt: skip
        return self._members.rank == 0 and self._lead()
