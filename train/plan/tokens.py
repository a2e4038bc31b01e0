"""How many tokens a run reads, and how often each source: through the loader's own Plan, or from the mixture alone.

A sample counts with all its tokens, padding included, as the step computes it. Nothing is read but manifests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loader.errors import ConfigError, JobError

from ..config import TrainConfig
from ..job import Job

if TYPE_CHECKING:
    from loader.order.schedule import Schedule
    from loader.sources import Sources

__all__ = [
    "NodeTraffic",
    "PlannedTokens",
    "SourceTokens",
    "batches_reached",
    "mixture_tokens",
    "open_or_none",
    "planned_tokens",
]


@dataclass(frozen=True)
class SourceTokens:
    """One source.

    Attributes:
        name: of it. tokens: that the run reads. share: of all of them.
        held: tokens in its Dataset without padding, None where no Dataset is there. epochs: how often it is read.
    """

    name: str
    tokens: int
    share: float
    held: int | None = None
    epochs: float | None = None


@dataclass(frozen=True)
class NodeTraffic:
    """What one machine fetches: before the first step, open at once, from the first step to the last."""

    cold_bytes: int
    live_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class PlannedTokens:
    """What the steps of a run read.

    Attributes:
        steps: of the configuration, or fewer where the plan ends before. positions: they read.
        tokens: positions x sequence length. seq_len, vocab_size: of the Datasets.
        sources: of the plan; empty where neither Datasets nor a mixture say.
        traffic: of one machine, None without Datasets.
        token_bytes: of a token as stored.
    """

    steps: int
    positions: int
    tokens: int
    seq_len: int
    vocab_size: int
    sources: tuple[SourceTokens, ...]
    traffic: NodeTraffic | None
    token_bytes: int


def open_or_none(job: Job) -> tuple[Sources | None, str]:
    """The Datasets of a job, or None and why they are not there.

    Raises:
        DamageError, RefusedError: they are there, and damaged, or do not fit each other.
    """
    from loader.remote.store import is_url
    from loader.sources import open_sources
    from loader.stream.store import StoreOptions, look_into_dataset, place_in

    places = [place_in(job.paths.root, location) for location in job.config.data.datasets]
    gone = next((place for place in places if not is_url(place) and not Path(place).is_dir()), None)
    if gone is not None:
        return None, f"no Dataset there: {gone}"
    options = StoreOptions(job.config.run.cache, job.config.run.cache_bytes)
    try:
        return open_sources([look_into_dataset(place, options) for place in places]), ""
    except (ConfigError, JobError) as error:
        return None, f"{error.message}: {error.place}" if error.place else error.message


def planned_tokens(config: TrainConfig, sources: Sources) -> PlannedTokens:
    """What a run over opened Datasets reads.

    Raises:
        ConfigError, RefusedError: the mixture and the Datasets do not fit.
    """
    from loader.order.skips import SkipList
    from loader.order.traffic import order_traffic
    from loader.run_config import build_plan

    plan = build_plan(config.data, sources, SkipList())
    steps = min(config.steps, plan.num_steps)
    stop = plan.next_position(steps - 1)
    before_S = plan.mixture.counts_before(stop)
    bytes_by_source = {}
    for name in sources.names:
        dataset = sources.datasets[sources.dataset_of[sources.names.index(name)]]
        rows_R = dataset.shards_R["source"] == dataset.source_names.index(name)
        bytes_by_source[name] = dataset.shards_R["size_bytes"][rows_R].astype(np.int64)
    traffic = order_traffic(plan, bytes_by_source, 0, steps)
    epochs = {source.name: source.epochs for source in traffic.sources}
    rows = tuple(
        SourceTokens(
            name, int(count) * sources.seq_len, int(count) / stop, sources.info(name).num_tokens, epochs.get(name, 0.0)
        )
        for name, count in zip(plan.source_names, before_S.tolist(), strict=True)
    )
    return PlannedTokens(
        steps=steps,
        positions=stop,
        tokens=stop * sources.seq_len,
        seq_len=sources.seq_len,
        vocab_size=sources.datasets[0].manifest.vocab_size,
        sources=rows,
        traffic=NodeTraffic(traffic.cold_bytes, traffic.live_bytes, traffic.total_bytes),
        token_bytes=sources.dtype.itemsize,
    )


def batches_reached(config: TrainConfig, steps: int | None = None) -> tuple[int, int]:
    """Samples of the smallest and of the largest step of a run, all ranks together.

    Args:
        steps: that its data allow; None: the configuration's.
    """
    schedule = _schedule(config)
    last = min(config.steps if steps is None else steps, schedule.num_steps)
    # A stage's first step holds its start, or follows the step that does; a short stage may have none.
    around = schedule.steps_of(np.array([stage.start for stage in config.data.batch], np.int64)).tolist()
    found = {step for first in around for step in (first, first + 1) if 0 <= step < last}
    sizes = [stop - start for start, stop in map(schedule.live_range, found)]
    return min(sizes), max(sizes)


def _schedule(config: TrainConfig) -> Schedule:
    """The steps of a run whose data have no end."""
    from loader.order.ranges import union_of
    from loader.order.schedule import BatchStage, Schedule

    nothing = np.empty(0, np.int64)
    stages = [BatchStage(stage.start, stage.global_batch) for stage in config.data.batch]
    return Schedule(stages, union_of(nothing, nothing))


def mixture_tokens(config: TrainConfig, seq_len: int, vocab_size: int) -> PlannedTokens:
    """What a run reads as far as its configuration alone says: batches, and the mixture if it has one."""
    from loader.order.mixture import MixtureStage, compile_mixture

    schedule = _schedule(config)
    steps = min(config.steps, schedule.num_steps)
    stop = int(schedule.live_range(steps - 1)[1])
    limit = config.data.exhaustion
    if limit is not None and limit.total is not None:
        stop = min(stop, limit.total)
    rows: tuple[SourceTokens, ...] = ()
    if config.data.mixture:
        names = tuple(dict.fromkeys(name for stage in config.data.mixture for name in stage.weights))
        stages = tuple(MixtureStage(stage.start, dict(stage.weights)) for stage in config.data.mixture)
        counts_S = compile_mixture(names, stages, config.data.seed).counts_before(stop)
        rows = tuple(
            SourceTokens(name, int(count) * seq_len, int(count) / stop)
            for name, count in zip(names, counts_S.tolist(), strict=True)
        )
    token_bytes = 2 if vocab_size <= 1 << 16 else 4
    return PlannedTokens(steps, stop, stop * seq_len, seq_len, vocab_size, rows, None, token_bytes)
