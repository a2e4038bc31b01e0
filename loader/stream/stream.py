"""The stream a data rank trains from: batches of the plan in order, prefetched by threads, resumed by a Cursor.

What it yields depends on plan, sources and data rank alone, never on threads, prefetch or where it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..sources import Sources, open_sources
from .batch import Batch, read_batch
from .prefetch import Note, Prefetcher

if TYPE_CHECKING:
    from ..order.cursor import Cursor
    from ..order.plan import Plan
    from ..shards.dataset import Dataset

__all__ = ["Stream", "StreamConfig"]


@dataclass(frozen=True)
class StreamConfig:
    """How a data rank reads.

    Attributes:
        data_rank, num_data_ranks: this rank and their number; ranks of one tensor, context or pipeline group share one.
        threads: that read ahead.
        prefetch_steps: batches read ahead at most.
        timeout_s: longest wait for one batch.
    """

    data_rank: int = 0
    num_data_ranks: int = 1
    threads: int = 2
    prefetch_steps: int = 4
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.data_rank < self.num_data_ranks:
            raise ConfigError("TR-STREAM-RANK", f"data rank {self.data_rank} of {self.num_data_ranks}")
        if self.threads < 1 or self.prefetch_steps < 1 or self.timeout_s <= 0:
            raise ConfigError("TR-STREAM-CONFIG", "threads, prefetch_steps and timeout_s must be positive")


class Stream(Iterator[Batch]):
    """Endless iterator over the batches of one data rank; a context manager.

    Threads start with the first batch and end with :meth:`close`. An error is raised at the very step it belongs to and
    the stream stays there: the next call reads the step again, so a repaired file heals it.
    """

    def __init__(
        self,
        plan: Plan,
        datasets: Sequence[Dataset] | Sources,
        config: StreamConfig | None = None,
        cursor: Cursor | None = None,
    ) -> None:
        """Open at ``cursor``, or at step 0.

        Raises:
            RefusedError: the cursor belongs to other data, another order or other skips; or the Datasets do not fit.
        """
        self.plan = plan
        self.sources = datasets if isinstance(datasets, Sources) else open_sources(datasets)
        self.config = config or StreamConfig()
        self._next_step = 0
        self._prefetcher: Prefetcher[Batch] | None = None
        self._closed = False
        if cursor is not None:
            self._seek(cursor)

    @property
    def next_step(self) -> int:
        """The step that the next batch belongs to."""
        return self._next_step

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            DamageError: its samples are damaged; file and sample are named.
            JobError: it did not arrive in time; what is waited for is named.
            ConfigError: the stream is closed.
        """
        if self._prefetcher is None:
            if self._closed:
                raise ConfigError(
                    "TR-STREAM-CLOSED", "the stream is closed", f"step {self._next_step}", "an open stream"
                )
            config = self.config
            produce = _Producer(self.plan, self.sources, config.data_rank, config.num_data_ranks)
            self._prefetcher = Prefetcher(produce, self._next_step, config.prefetch_steps, config.threads)
        batch = self._prefetcher.get(self.config.timeout_s)
        self._next_step = batch.step + 1
        return batch

    def cursor(self) -> Cursor:
        """Where the stream stands: what was handed out, not what was prefetched. Equal on every rank."""
        from ..order.cursor import make_cursor

        return make_cursor(self.plan, self.sources.digest_by_source, next_step=self._next_step)

    def state_dict(self) -> dict[str, Any]:
        """The Cursor as a JSON-able dictionary, below 1 KB and free of rank and world size."""
        return self.cursor().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a state of :meth:`state_dict`, on any number of ranks.

        Raises:
            RefusedError: it belongs to other data, another order or other skips.
        """
        from ..order.cursor import Cursor

        cursor = Cursor.from_json(dict(state))
        self._stop()
        self._seek(cursor)

    def _seek(self, cursor: Cursor) -> None:
        from ..order.cursor import check_cursor

        check_cursor(cursor, self.plan, self.sources.digest_by_source)
        self._next_step = cursor.next_step

    def _stop(self) -> None:
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            prefetcher.close(self.config.timeout_s)

    def close(self) -> None:
        """End and join the threads; a second call does nothing.

        Raises:
            JobError: a thread did not end in time.
        """
        self._closed = True
        self._stop()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Producer:
    """Reads one step; a value of its own so that the threads do not keep the Stream alive."""

    plan: Plan
    sources: Sources
    data_rank: int
    num_data_ranks: int

    def __call__(self, step: int, note: Note) -> Batch:
        note(f"reading samples of step {step} from {self.sources.place}")
        return read_batch(self.plan, self.sources, step, self.data_rank, self.num_data_ranks)
