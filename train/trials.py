"""A trial: the steps from a checkpoint to a window's end once more, with another cut or none.

It borrows the run's model and optimizer, since a second pair would not fit beside them, and leaves them as the trial
ended: the caller opens the branch anew from a checkpoint. Nothing is written to ledger or checkpoints: a trial's steps
are no part of the run's history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader.sources import Sources

from .ahead import CountedBatches
from .checkpoint import Checkpoint, load_tensors
from .config import TrainConfig
from .spikes.rollback import RollbackRecord
from .state import TrainState
from .step import train_step
from .stepping import batches_to_come, open_rank_stream, plan_step, step_options

if TYPE_CHECKING:
    from loader.order.plan import Plan

__all__ = ["Trial", "run_trial"]


@dataclass(frozen=True)
class Trial:
    """What a trial runs.

    Attributes:
        plan: with the cut to try. checkpoint: where it begins, verified. record: which steps count.
    """

    plan: Plan
    checkpoint: Checkpoint
    record: RollbackRecord


def run_trial(
    config: TrainConfig, sources: Sources, state: TrainState, trial: Trial, stop_requested: Callable[[], bool]
) -> list[float] | None:
    """Train until the window's end; every process calls it.

    Returns:
        The losses of the steps from the alarm on that have labels, nats, equal on all processes; None: a stop was
        requested.

    Raises:
        DamageError: the checkpoint holds other tensors. ConfigError: a batch that the pipeline cannot cut.
    """
    tensors, world = state.tensors(), state.world
    load_tensors(trial.checkpoint, tensors, world)
    TrainState.loaded(tensors)
    plan, first = trial.plan, trial.checkpoint.facts.step
    options = step_options(config, sources, state)
    if state.pipeline is not None:
        state.pipeline.prepare(batches_to_come(plan, first), config.micro_batch)
    stream = open_rank_stream(config, plan, sources, world)
    losses: list[float] = []
    try:
        stream.load_state_dict(trial.checkpoint.facts.cursor)
        stop_step = min(trial.record.stop, plan.num_steps)
        batches = CountedBatches(stream, world, stop_step)
        for step in range(first, stop_step):
            counted = batches.take()
            planned = plan_step(config, plan, step, world, counted.label_count())
            read = train_step(state, counted.batch, planned, options, stop=stop_requested()).read()
            if read.stop:
                return None
            if step >= trial.record.alarm and (read.record.label_count or not read.record.finite):
                losses.append(read.record.loss if read.record.finite else float("nan"))
    finally:
        stream.close()
    return losses
