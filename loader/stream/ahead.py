"""Fetching ahead: the plan says which shards the next steps read, and threads fetch them before anybody waits.

A thread walks the plan in portions of steps. Shards of the portions from the next step to the horizon are kept: fetched
in the order of their first use, and evicted by nobody as long as anything else can go. The horizon moves on while what
is kept fills no more than four fifths of the cache, and 65,536 samples ahead at most.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import TokenreelError
from .batch import rank_span
from .remote import CachedStorage

if TYPE_CHECKING:
    from ..order.plan import Plan
    from ..shards.dataset import Dataset
    from ..sources import Sources

__all__ = ["FetchAhead", "Shard", "live_bytes", "plan_shards"]

_HORIZON_SAMPLES = 1 << 16
_PORTION_SAMPLES = 4096
_THREADS = 6
_LOG = logging.getLogger("tokenreel.store")


@dataclass(frozen=True, order=True)
class Shard:
    """A shard: number of its Dataset among the sources', row of that Dataset's shards.npy."""

    dataset: int
    row: int


def _cached(dataset: Dataset) -> CachedStorage | None:
    """The Dataset's storage if its files are fetched."""
    return dataset.storage if isinstance(dataset.storage, CachedStorage) else None


def plan_shards(plan: Plan, sources: Sources, steps: range, ranks: tuple[int, int]) -> list[Shard]:
    """The shards that ``ranks`` = (data rank, number of them) reads in ``steps``, by first use; only those of Datasets
    whose files are fetched.

    Raises:
        ConfigError: the plan has no such step.
    """
    spans = []
    for step in steps:
        positions_N = plan.step_positions(step)
        span = rank_span(len(positions_N), *ranks)
        spans.append(positions_N[span.start : span.stop])
    refs = plan.samples(np.concatenate(spans))
    source_N = np.asarray(refs.source_N)
    first: dict[Shard, int] = {}
    for source in np.unique(source_N).tolist():
        dataset = sources.dataset(source)
        if _cached(dataset) is None:
            continue
        here = np.flatnonzero(source_N == source)
        row_N, place_N = dataset.first_uses(sources.names[source], refs.sample_N[here])
        for row, place in zip(row_N.tolist(), here[place_N].tolist(), strict=True):
            first[Shard(sources.dataset_of[source], row)] = place
    return sorted(first, key=lambda shard: first[shard])


def live_bytes(plan: Plan, sources: Sources) -> int:
    """What the live windows need at once: of each source that is read, the largest ``window_shards * slices`` shards,
    with all their files. An upper bound, up to shards that are far larger than others."""
    total = 0
    used = {name for stage in plan.mixture.stages for name, weight in stage.weights.items() if weight}
    for number, name in enumerate(sources.names):
        dataset = sources.dataset(number)
        storage = _cached(dataset)
        if storage is None or name not in used:
            continue
        rows_K = np.flatnonzero(dataset.shards_R["source"] == dataset.source_names.index(name))
        live = min(len(rows_K), plan.config.window_shards * plan.config.slices)
        largest_K = rows_K[np.argsort(dataset.shards_R["size_bytes"][rows_K], kind="stable")[::-1][:live]]
        total += sum(storage.shard_bytes(dataset.shard_files(row)) for row in largest_K.tolist())
    return total


@dataclass
class _Work:
    """What the threads share. ``next_step``, ``queue`` and ``closed`` are guarded by ``changed``; the rest is written
    by the walking thread alone."""

    plan: Plan
    sources: Sources
    ranks: tuple[int, int]
    limit_bytes: int
    next_step: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    portions: deque[tuple[range, list[Shard]]] = field(default_factory=deque)
    uses: Counter[Shard] = field(default_factory=Counter)
    queue: deque[Shard] = field(default_factory=deque)
    kept_bytes: int = 0
    closed: bool = False
    process: int = field(default_factory=os.getpid)

    def close(self) -> None:
        if self.process != os.getpid():  # in a forked child a thread of the parent may hold the lock for ever
            return
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def storage(self, shard: Shard) -> tuple[Dataset, CachedStorage]:
        dataset = self.sources.datasets[shard.dataset]
        storage = _cached(dataset)
        assert storage is not None
        return dataset, storage

    def bytes_of(self, shard: Shard) -> int:
        dataset, storage = self.storage(shard)
        return storage.shard_bytes(dataset.shard_files(shard.row))

    def wait_for_room(self) -> range | None:
        """Let go of portions that are behind; wait until the horizon may move, and return its next portion of steps,
        none behind the plan's end; None when closed."""
        while True:
            with self.changed:
                behind = []
                while self.portions and self.portions[0][0].stop <= self.next_step:
                    behind.append(self.portions.popleft()[1])
                if not behind:
                    if self.closed:
                        return None
                    start = max(self.next_step, self.portions[-1][0].stop if self.portions else 0)
                    if start < self.plan.num_steps and self._has_room(start):
                        return range(start, min(start + self._portion_steps(start), self.plan.num_steps))
                    self.changed.wait()
                    continue
            for shards in behind:
                self.let_go(shards)

    def _has_room(self, start: int) -> bool:
        samples = (start - self.next_step) * self._step_samples(start)
        return not self.portions or (self.kept_bytes < self.limit_bytes and samples < _HORIZON_SAMPLES)

    def _step_samples(self, step: int) -> int:
        return max(1, len(self.plan.step_positions(step)) // self.ranks[1])

    def _portion_steps(self, step: int) -> int:
        """As many steps as the plan is cheap to ask for, if a small part of the cache at most can come of them."""
        step_samples = self._step_samples(step)
        sample_bytes = self.sources.seq_len * self.sources.dtype.itemsize
        most = min(_PORTION_SAMPLES, self.limit_bytes // (16 * sample_bytes))
        return max(1, most // step_samples)

    def add(self, steps: range, shards: list[Shard]) -> None:
        """Keep the shards of a portion; those that are new are to be fetched."""
        new = [shard for shard in shards if not self.uses[shard]]
        for shard in new:
            dataset, storage = self.storage(shard)
            storage.keep(dataset.shard_files(shard.row))
        size_bytes = sum(map(self.bytes_of, new))
        self.portions.append((steps, shards))
        self.uses.update(shards)
        self.kept_bytes += size_bytes
        with self.changed:
            self.queue.extend(new)
            self.changed.notify_all()

    def let_go(self, shards: Iterable[Shard]) -> None:
        """Keep them once less."""
        for shard in shards:
            self.uses[shard] -= 1
            if not self.uses[shard]:
                del self.uses[shard]
                self.kept_bytes -= self.bytes_of(shard)
                dataset, storage = self.storage(shard)
                storage.let_go(dataset.shard_files(shard.row))
                dataset.release(shard.row)

    def take(self) -> Shard | None:
        """The next shard to fetch that is still kept; None when closed."""
        with self.changed:
            while not self.closed:
                while self.queue:
                    shard = self.queue.popleft()
                    if self.uses[shard]:
                        return shard
                self.changed.wait()
            return None


def _walk(work: _Work) -> None:
    """Follow the plan. What cannot be asked (what lies before its start) ends the walk; the readers say so."""
    try:
        while (steps := work.wait_for_room()) is not None:
            work.add(steps, plan_shards(work.plan, work.sources, steps, work.ranks))
    except TokenreelError:
        pass
    finally:
        with suppress(OSError):
            for _, shards in work.portions:
                work.let_go(shards)


def _fetch(work: _Work) -> None:
    """Fetch what is kept. What fails here fails again where it is read, in the consumer; here nobody would hear it."""
    while (shard := work.take()) is not None:
        dataset, storage = work.storage(shard)
        with suppress(TokenreelError, OSError):
            storage.prefetch(dataset.shard_files(shard.row))


class FetchAhead:
    """Fetches for one Stream; ends its threads when closed or forgotten."""

    def __init__(self, plan: Plan, sources: Sources, ranks: tuple[int, int], next_step: int) -> None:
        """Start at ``next_step``. Says, once, when the cache is smaller than what the live windows need."""
        caches = {storage.cache.root: storage.cache for storage in map(_cached, sources.datasets) if storage}
        limit = min(cache.limit_bytes() for cache in caches.values())
        needed = live_bytes(plan, sources)
        if limit < needed:
            _LOG.warning(
                "the cache %s holds %s bytes; the live windows of the plan need up to %s: shards will be fetched again"
                " and again",
                ", ".join(str(root) for root in caches), f"{limit:,}", f"{needed:,}",
            )  # fmt: skip
        self._work = _Work(plan, sources, ranks, limit * 4 // 5, next_step)
        targets: list[Callable[[_Work], None]] = [_walk, *[_fetch] * _THREADS]
        self._threads = [
            threading.Thread(target=target, args=(self._work,), name=f"tokenreel-fetch-{number}", daemon=True)
            for number, target in enumerate(targets)
        ]
        self._finalizer = weakref.finalize(self, self._work.close)
        for thread in self._threads:
            thread.start()

    def advance(self, next_step: int) -> None:
        """The consumer has come to ``next_step``; never waits for storage."""
        with self._work.changed:
            self._work.next_step = next_step
            self._work.changed.notify_all()

    def close(self) -> None:
        """End the threads; one that is fetching ends when its file is there, or has failed."""
        self._finalizer()
