"""Pipeline schedules by what they ask for, and which blocks a rank holds: arithmetic alone, for training and for plans.

A step of a schedule runs as many micro-batches as it pleases (``any``), at least as many as there are stages
(``stages``), or whole rounds of them (``rounds``): ``max(1, micro_batches // ranks)`` equal ones, as torch's
interleaved schedules want it. Below twice the ranks that is any number; beyond, 5 on 2 ranks is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loader.errors import ConfigError

from .config import ParallelConfig

__all__ = [
    "SCHEDULES",
    "PipelineSchedule",
    "block_counts",
    "num_stages",
    "split_blocks",
    "stages_of_rank",
    "too_few_blocks",
]


@dataclass(frozen=True)
class PipelineSchedule:
    """One row of the table.

    Attributes:
        torch_class: its name in ``torch.distributed.pipelining.schedules``.
        takes: which numbers of micro-batches it runs, see the file.
        many: several stages a rank. folded: the second half of the stages runs back over the ranks, so that the first
            rank holds both ends.
        splits_backward: gradients of activations and of weights are two passes over a block, so that ``recompute:
            full`` runs it twice more; ``selective``, which hands out what it kept once, and compiled blocks, whose
            backward pass is one piece, cannot run.
    """

    torch_class: str
    takes: Literal["any", "stages", "rounds"] = "any"
    many: bool = False
    folded: bool = False
    splits_backward: bool = False

    def runs(self, micro_batches: int, ranks: int, stages: int) -> bool:
        """Whether a step of so many micro-batches of a rank can be run."""
        if self.takes == "stages":
            return micro_batches >= stages
        return self.takes == "any" or micro_batches % max(1, micro_batches // ranks) == 0

    def stages_of(self, stages_per_rank: int) -> int:
        """Stages that a rank holds. ``stages_per_rank``: of the configuration, which not every schedule follows."""
        return 2 if self.folded else stages_per_rank if self.many else 1


SCHEDULES: dict[str, PipelineSchedule] = {
    "gpipe": PipelineSchedule("ScheduleGPipe"),
    "1f1b": PipelineSchedule("Schedule1F1B", "stages"),
    "interleaved": PipelineSchedule("ScheduleInterleaved1F1B", "rounds", many=True),
    "zero_bubble": PipelineSchedule("ScheduleInterleavedZeroBubble", "rounds", many=True, splits_backward=True),
    "zbv": PipelineSchedule("ScheduleZBVZeroBubble", many=True, folded=True, splits_backward=True),
}
"""``parallel.schedule`` -> how."""


def num_stages(config: ParallelConfig) -> int:
    """Stages of all ranks of a pipeline together."""
    return config.pipeline * SCHEDULES[config.schedule].stages_of(config.stages_per_rank)


def stages_of_rank(config: ParallelConfig, rank: int) -> tuple[list[int], int]:
    """The stage numbers that a pipeline rank holds, and the number of stages in all."""
    count = num_stages(config)
    if SCHEDULES[config.schedule].folded:
        return [rank, count - 1 - rank], count
    return list(range(rank, count, config.pipeline)), count


def block_counts(layers: int, stages: int) -> list[int]:
    """Blocks of each stage: as even as can be, the first and last ones lighter where it does not divide, as they hold
    embedding and head too. With fewer blocks than stages some have none."""
    least, extra = divmod(layers, stages)
    first_long = (stages - extra) // 2
    return [least + (first_long <= stage < first_long + extra) for stage in range(stages)]


def split_blocks(layers: int, stages: int) -> list[range]:
    """Blocks of each stage, see :func:`block_counts`.

    Raises:
        ConfigError: fewer blocks than stages.
    """
    if layers < stages:
        raise too_few_blocks(layers, stages)
    sizes = block_counts(layers, stages)
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def too_few_blocks(layers: int, stages: int) -> ConfigError:
    """What is said of fewer blocks than stages."""
    return ConfigError(
        "TR-PARALLEL-PIPELINE", f"{layers} blocks for {stages} stages", "parallel.pipeline",
        f"at most {layers} stages (pipeline x stages_per_rank)",
    )  # fmt: skip
