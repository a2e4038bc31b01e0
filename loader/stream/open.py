"""A stream in one call, for a training loop of the user's own; also where its plan comes from one place to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan
from ..sources import open_sources
from .store import StoreOptions, fetch_dataset
from .stream import Stream, StreamConfig

if TYPE_CHECKING:
    from ..order.skips import SkipEntry

__all__ = ["OrderOptions", "open_stream"]


@dataclass(frozen=True)
class OrderOptions:
    """What shapes the order beside the Datasets and the batch.

    Attributes:
        seed: of the order.
        weights: source name to weight; None = the Datasets' own shares.
        window_shards, slices: shuffle window; see ``run_config.DataConfig``.
        skips: entries of a skip list, oldest first.
    """

    seed: int = 17
    weights: Mapping[str, float] | None = None
    window_shards: int = 8
    slices: int = 2
    skips: Sequence[SkipEntry] = field(default=())


def open_stream(
    datasets: str | Path | Sequence[str | Path],
    global_batch: int,
    order: OrderOptions | None = None,
    config: StreamConfig | None = None,
    state: Mapping[str, Any] | None = None,
) -> Stream:
    """A stream over ``datasets`` (folders or URLs), ``global_batch`` samples a step over all data ranks, continued at
    ``state`` if given (what ``Stream.state_dict`` returned, on any number of ranks).

    Raises:
        ConfigError: no Dataset there, or options that do not fit.
        DamageError: a manifest is damaged.
        RefusedError: the state belongs to other data or another order.
    """
    from ..order.skips import SkipList

    order, config = order or OrderOptions(), config or StreamConfig()
    folders = [datasets] if isinstance(datasets, str | Path) else list(datasets)
    options = StoreOptions(config.cache, config.cache_bytes, config.timeout_s)
    sources = open_sources([fetch_dataset(str(folder), options) for folder in folders])
    data = DataConfig(
        datasets=tuple(str(folder) for folder in folders),
        batch=(BatchStageConfig(0, global_batch),),
        seed=order.seed,
        window_shards=order.window_shards,
        slices=order.slices,
        mixture=() if order.weights is None else (MixtureStageConfig(0, dict(order.weights)),),
    )
    stream = Stream(build_plan(data, sources, SkipList(tuple(order.skips))), sources, config)
    if state is not None:
        stream.load_state_dict(state)
    return stream
