"""What a run reads and in which order: the ``data:`` block of a training configuration, and the Plan it makes.

``train/config.py`` embeds :class:`DataConfig`; look-up needs nothing else of a run's configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .order.exhaustion import ExhaustionPolicy
from .order.permute import CELL_LIMIT
from .order.tables import MOST_SLICES
from .order.weights import BLOCK, LARGEST_BATCH, POSITION_LIMIT

if TYPE_CHECKING:
    from .order.exhaustion import DerivedStages
    from .order.plan import Plan
    from .order.skips import SkipList
    from .order.start import PlanStart
    from .sources import Sources

__all__ = [
    "BatchStageConfig",
    "DataConfig",
    "ExhaustionConfig",
    "MixtureStageConfig",
    "build_plan",
    "default_stages",
    "default_weights",
    "derived_mixture",
    "mixture_of",
    "planned_positions",
]


@dataclass(frozen=True)
class MixtureStageConfig:
    """Weights of the sources from a position on.

    Attributes:
        start: first position, a multiple of 256.
        weights: source name to weight, any scale; a source that is not named gets 0.
    """

    start: int
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        problems = []
        if self.start < 0 or self.start % BLOCK:
            problems.append(f"start: must be a multiple of {BLOCK}, >= 0")
        if not self.weights or not all(0 <= weight < float("inf") for weight in self.weights.values()):
            problems.append("weights: must be finite and >= 0, for one source at least")
        elif not any(self.weights.values()):
            problems.append("weights: one must be > 0")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class BatchStageConfig:
    """Samples an optimizer step reads, all ranks together, from a position on."""

    start: int
    global_batch: int

    def __post_init__(self) -> None:
        problems = []
        if self.start < 0:
            problems.append("start: must be >= 0")
        if not 1 <= self.global_batch <= LARGEST_BATCH:
            problems.append("global_batch: must lie in 1 .. 2^24")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class ExhaustionConfig:
    """What happens when a source was read through; without this block sources repeat without end.

    Attributes:
        policy: repeat: sources start again, but one that would pass its max_epochs is refused; stop: the plan ends
            before the first source passes its own; renormalise: such a source leaves at the last border of a block of
            256 positions before that, so less than a block of it stays unread, and the others share its weight, until
            nobody is left.
        max_epochs: source name to how often it may be read through (after a remap: its data in force, from there on if
            they were replaced); a source that is not named: any number of times under repeat, else once.
        total: position at which the plan ends at the latest; null = no such position.
    """

    policy: ExhaustionPolicy = "repeat"
    max_epochs: Mapping[str, float] = field(default_factory=dict)
    total: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if not all(0 < epochs < float("inf") for epochs in self.max_epochs.values()):
            problems.append("max_epochs: must be finite and > 0")
        if self.total is not None and not 1 <= self.total <= POSITION_LIMIT:
            problems.append("total: must lie in 1 .. 2^36")
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class DataConfig:
    """The ``data:`` block.

    Attributes:
        datasets: Datasets: URLs, or folders relative to the configuration's (in ``RUN/config.yaml``: to RUN).
        seed: of the order.
        window_shards: shards shuffled together.
        slices: staggered slices a shard is cut in.
        mixture: stages of weights; none = what the Datasets were mixed for (:func:`default_stages`).
        batch: stages of the global batch.
        exhaustion: what happens when a source was read through; null = it starts again.
    """

    datasets: tuple[str, ...]
    batch: tuple[BatchStageConfig, ...]
    seed: int = 17
    window_shards: int = 8
    slices: int = 2
    mixture: tuple[MixtureStageConfig, ...] = field(default=())
    exhaustion: ExhaustionConfig | None = None

    def __post_init__(self) -> None:
        from .remote.store_failures import location_problem

        problems = []
        if not self.datasets:
            problems.append("datasets: one is needed at least")
        problems += [f"datasets: {problem}" for problem in map(location_problem, self.datasets) if problem]
        if not self.batch or self.batch[0].start != 0:
            problems.append("batch: the first stage must start at 0")
        if self.mixture and self.mixture[0].start != 0:
            problems.append("mixture: the first stage must start at 0")
        for name, stages in (("batch", self.batch), ("mixture", self.mixture)):
            starts = [stage.start for stage in stages]
            if any(after <= before for before, after in itertools.pairwise(starts)):
                problems.append(f"{name}: starts must ascend")
        if not 0 <= self.seed < 1 << 63:
            problems.append("seed: must lie in 0 .. 2^63 - 1")
        if not 1 <= self.window_shards < CELL_LIMIT:
            problems.append("window_shards: must lie in 1 .. 2^31 - 1")
        if not 1 <= self.slices <= MOST_SLICES:
            problems.append(f"slices: must lie in 1 .. {MOST_SLICES}")
        if problems:
            raise ValueError("\n".join(problems))


def mixture_of(data: DataConfig, sources: Sources, start: PlanStart | None = None) -> tuple[MixtureStageConfig, ...]:
    """The stages in force: those of the run, or else of its Datasets, as :func:`derived_mixture` makes them.

    Raises:
        ConfigError, RefusedError: as :func:`derived_mixture`.
    """
    stages = derived_mixture(data, sources, start).stages
    return tuple(MixtureStageConfig(stage.start, stage.weights) for stage in stages)


def derived_mixture(data: DataConfig, sources: Sources, start: PlanStart | None = None) -> DerivedStages:
    """The stages of the run, or else of its Datasets, with what ``exhaustion`` makes of them, and where the plan ends.

    From a remap on (``start``), how often a source is read through counts anew, but for sources whose Dataset stayed.

    Raises:
        ConfigError: as :func:`default_stages`; a stage or ``max_epochs`` names a source that no Dataset holds.
        RefusedError: a source would be read more often than it may; the position is named.
    """
    from .errors import ConfigError
    from .order.exhaustion import DerivedStages, Exhaustion, derive_stages
    from .order.mixture import MixtureStage

    given = data.mixture or default_stages(sources)
    for stage in given:
        unknown = sorted(set(stage.weights) - set(sources.names))
        if unknown:
            raise ConfigError(
                "TR-CONFIG-SOURCE",
                f"no Dataset holds source {unknown[0]!r}",
                f"data.mixture, stage at {stage.start}",
                f"one of {', '.join(sources.names)}",
            )
    stages = tuple(MixtureStage(stage.start, dict(stage.weights)) for stage in given)
    if data.exhaustion is None:
        return DerivedStages(stages, POSITION_LIMIT, {})
    wanted = data.exhaustion
    total = POSITION_LIMIT if wanted.total is None else wanted.total
    num_samples = {name: int(sources.shard_samples(name).sum()) for name in sources.names}
    begins = (0, {}) if start is None else (start.position, start.carried)
    return derive_stages(stages, num_samples, Exhaustion(wanted.policy, wanted.max_epochs, total, *begins), data.seed)


def default_stages(sources: Sources) -> tuple[MixtureStageConfig, ...]:
    """The mixture of a run that names none.

    One Dataset: the stages in its manifest, or, without any, each source by its tokens (:func:`default_weights`).
    Several: one stage, each source by what its Dataset's plan reads of it. A Dataset whose shares change on the way
    says nothing about how they should beside others, so that is refused.

    Raises:
        ConfigError: several Datasets, one of which has stages (``TR-MIXTURE-SEVERAL``).
    """
    from .errors import ConfigError

    for dataset in sources.datasets:
        mixture = dataset.manifest.mixture
        if mixture is None:
            continue
        if len(sources.datasets) == 1:
            return tuple(MixtureStageConfig(stage.start, stage.weights) for stage in mixture.stages)
        if len(mixture.stages) > 1:
            raise ConfigError(
                "TR-MIXTURE-SEVERAL",
                f"the shares of this Dataset change at position {mixture.stages[1].start}, and what that means beside "
                "other Datasets is not known",
                dataset.location,
                "data.mixture, with the weights of every source of every Dataset",
            )
    return (MixtureStageConfig(0, default_weights(sources)),)


def default_weights(sources: Sources) -> dict[str, float]:
    """What a whole plan reads of each source, in tokens, so that several Datasets can be weighed against each other.

    By the Dataset's mixture (its positions, by the weights of their stages, x sequence length) where it has one, else
    the source's tokens without padding, times the epochs that its Dataset's account says.
    """
    weights = {}
    for number, name in enumerate(sources.names):
        manifest = sources.dataset(number).manifest
        if manifest.mixture is not None:
            weights[name] = manifest.mixture.positions_of(name) * sources.seq_len
        else:
            weights[name] = sources.info(name).num_tokens * _planned_epochs(manifest.accounting, name)
    return {name: weight for name, weight in weights.items() if weight}


def planned_positions(data: DataConfig, sources: Sources) -> int | None:
    """How many positions the mixture in force was planned for; None where nobody said."""
    mixture = sources.datasets[0].manifest.mixture
    if data.mixture or len(sources.datasets) > 1 or mixture is None:
        return None
    return mixture.total_positions


def _planned_epochs(accounting: Mapping[str, Any], source: str) -> float:
    """How often the mix wants the source to be seen, 1 where a Dataset says nothing; below 1 never: the rest was left
    out.
    """
    rows = accounting.get("mix", [])
    for row in rows if isinstance(rows, list) else []:
        epochs = row.get("epochs") if isinstance(row, Mapping) and row.get("source") == source else None
        if isinstance(epochs, int | float) and 1 <= epochs < 1e6:
            return float(epochs)
    return 1.0


def build_plan(data: DataConfig, sources: Sources, skips: SkipList, start: PlanStart | None = None) -> Plan:
    """The plan of a run over opened sources.

    Args:
        start: where it takes over from a plan over other data (``tokenreel remap``).

    Raises:
        ConfigError: a stage names a source that no Dataset holds, or weights that the mixture refuses; or no mixture
            is named where one must be.
        RefusedError: a source would be read more often than ``exhaustion`` allows, or the plan ends before its first
            step.
    """
    from .errors import RefusedError
    from .order.plan import BatchStage, Plan, PlanConfig, SourceShape

    derived = derived_mixture(data, sources, start)
    if derived.stop_position < data.batch[0].global_batch:
        raise RefusedError(
            "TR-PLAN-EMPTY",
            f"the plan ends at position {derived.stop_position}, inside step 0",
            "data.exhaustion",
            f"room for a step of {data.batch[0].global_batch} samples",
        )
    config = PlanConfig(
        sources=tuple(SourceShape(name, sources.shard_samples(name)) for name in sources.names),
        seed=data.seed,
        stages=derived.stages,
        batch=tuple(BatchStage(stage.start, stage.global_batch) for stage in data.batch),
        window_shards=data.window_shards,
        slices=data.slices,
        start=start,
        stop_position=derived.stop_position,
    )
    plan = Plan(config, skips, resolver=sources)
    if start is not None and plan.num_steps <= start.step:
        raise RefusedError(
            "TR-PLAN-EMPTY",
            f"the plan ends at position {derived.stop_position}, before its first step, {start.step}, is whole",
            "data.exhaustion",
            f"room for a step from position {start.position} on",
        )
    return plan
