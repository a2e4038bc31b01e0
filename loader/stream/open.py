"""A stream in one call, for a training loop of the user's own; also where its plan comes from one place to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..order.permute import CELL_LIMIT
from ..order.tables import MOST_SLICES
from ..order.weights import LARGEST_BATCH
from ..run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan
from ..sources import open_sources
from .arguments import integer_problems, refuse, weight_problems
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

    Raises:
        ConfigError: ``TR-STREAM-CONFIG``: a value of another type, or out of range.
    """

    seed: int = 17
    weights: Mapping[str, float] | None = None
    window_shards: int = 8
    slices: int = 2
    skips: Iterable[SkipEntry] = field(default=())

    def __post_init__(self) -> None:
        problems = [
            *integer_problems("seed", self.seed, 0, (1 << 63) - 1),
            *integer_problems("window_shards", self.window_shards, 1, CELL_LIMIT - 1),
            *integer_problems("slices", self.slices, 1, MOST_SLICES),
        ]
        if self.weights is not None:
            problems += weight_problems("weights", self.weights)
        if not isinstance(self.skips, Iterable):
            problems.append(f"skips is {self.skips!r}, not skip entries")
        refuse("OrderOptions", problems)


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
        DamageError: a manifest is damaged, or ``state`` is none.
        RefusedError: the state belongs to other data or another order.
    """
    from ..order.skips import SkipList

    order, config = order or OrderOptions(), config or StreamConfig()
    folders = [datasets] if isinstance(datasets, str | Path) or not isinstance(datasets, Sequence) else list(datasets)
    problems = integer_problems("global_batch", global_batch, 1, LARGEST_BATCH)
    problems += [f"{one!r} is no folder and no URL" for one in folders if not isinstance(one, str | Path)]
    problems += [] if folders else ["datasets is empty"]
    refuse("open_stream", problems)
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
