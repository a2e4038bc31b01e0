"""What a configuration and a plan say of steps: for the session that trains them and for trials that repeat some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader.sources import Sources
from loader.stream.stream import Stream, StreamConfig

from .config import TrainConfig
from .schedule import learning_rate
from .state import TrainState, input_options
from .step import StepOptions, StepPlan
from .world import World

if TYPE_CHECKING:
    from loader.order.plan import Plan

__all__ = ["batches_to_come", "most_samples", "open_rank_stream", "plan_step", "step_options"]


def step_options(config: TrainConfig, sources: Sources, state: TrainState) -> StepOptions:
    """What is constant over the steps of a run."""
    world = state.world
    return StepOptions(
        input_options(config, sources, world.mesh),
        config.micro_batch,
        sources.names,
        world,
        state.pipeline,
        config.parallel.reduce == "each",
    )


def most_samples(plan: Plan, step: int, world: World) -> int:
    """Samples of the data rank that has the most in a step."""
    return -(-plan.step_samples(step) // world.mesh.shape.data)


def plan_step(config: TrainConfig, plan: Plan, step: int, world: World, label_count: int) -> StepPlan:
    """What is known of one step; its learning rate follows its first position.

    Args:
        label_count: labels of its global batch, see ``ahead.CountedBatches``.
    """
    position = int(plan.first_position(step))
    lr = learning_rate(position, config.optimizer.lr, config.schedule, config.anneal)
    return StepPlan(position, most_samples(plan, step, world), lr, label_count)


def open_rank_stream(config: TrainConfig, plan: Plan, sources: Sources, world: World) -> Stream:
    """The stream of this process's data rank, at step 0."""
    mesh = world.mesh
    return Stream(plan, sources, StreamConfig(mesh.place.data, mesh.shape.data, threads=config.run.reader_threads))


def batches_to_come(plan: Plan, step: int) -> set[int]:
    """Samples of the steps from ``step`` on, all ranks together."""
    if step >= plan.num_steps:
        return set()
    position = int(plan.first_position(step))
    later = {stage.global_batch for stage in plan.config.batch if stage.start > position}
    return {plan.step_samples(step), *later}
