"""The stream a data rank trains from: batches of the plan in order, prefetched by threads, resumed by a Cursor.

What it yields depends on plan, sources and data rank alone, never on threads, prefetch or where it was stopped.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ConfigError
from ..sources import Sources, open_sources
from .arguments import integer_problems, number_problems, refuse
from .batch import Batch, read_batch
from .prefetch import Note, Prefetcher
from .waits import tell, told

if TYPE_CHECKING:
    from ..order.cursor import Cursor
    from ..order.plan import Plan
    from ..shards.dataset import Dataset
    from .ahead import FetchAhead

__all__ = ["Stream", "StreamConfig"]

_LOG = logging.getLogger("tokenreel.stream")
_MOST_RANKS, _MOST_THREADS, _MOST_STEPS_AHEAD = 1 << 24, 1 << 10, 1 << 20
_LONGEST_WAIT_S = 1e9  # the operating system's clocks end at about ten times as much


@dataclass(frozen=True)
class StreamConfig:
    """How a data rank reads.

    Attributes:
        data_rank, num_data_ranks: this rank and their number; ranks of one tensor, context or pipeline group share one.
        threads: that read ahead.
        prefetch_steps: batches read ahead at most.
        timeout_s: longest wait for a batch during which its storage gets no further.
        cache, cache_bytes: for ``open_stream`` of Datasets at URLs; see ``store.StoreOptions``.

    Raises:
        ConfigError: ``TR-STREAM-RANK``, ``TR-STREAM-CONFIG``: a value of another type, or out of range.
    """

    data_rank: int = 0
    num_data_ranks: int = 1
    threads: int = 2
    prefetch_steps: int = 4
    timeout_s: float = 60.0
    cache: str | Path | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        problems = [
            *integer_problems("data_rank", self.data_rank, 0, _MOST_RANKS),
            *integer_problems("num_data_ranks", self.num_data_ranks, 1, _MOST_RANKS),
            *integer_problems("threads", self.threads, 1, _MOST_THREADS),
            *integer_problems("prefetch_steps", self.prefetch_steps, 1, _MOST_STEPS_AHEAD),
            *number_problems("timeout_s", self.timeout_s, _LONGEST_WAIT_S),
        ]
        if self.cache is not None and not isinstance(self.cache, str | Path):
            problems.append(f"cache is {self.cache!r}, not a folder")
        if self.cache_bytes is not None:
            problems += integer_problems("cache_bytes", self.cache_bytes, 1, sys.maxsize)
        refuse("StreamConfig", problems)
        if self.data_rank >= self.num_data_ranks:
            expected = "a rank below the number of data ranks"
            raise ConfigError(
                "TR-STREAM-RANK", f"data rank {self.data_rank} of {self.num_data_ranks}", "StreamConfig", expected
            )


class Stream(Iterator[Batch]):
    """Iterator over the batches of one data rank, without end unless the plan has one; a context manager.

    Threads start with the first batch and end with :meth:`close`. An error is raised at the very step it belongs to and
    the stream stays there: the next call reads the step again, so a repaired file heals it.

    The first batch, and the first one after each resume, is told in one line of the log ``tokenreel.stream``: step and
    digest, to be compared with the run that it goes on from.

    Threads do not cross a fork: a stream that was read before is refused in the child, one that was not works there.
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
        self._ahead: FetchAhead | None = None
        self._closed = False
        self._told = False
        self._reader = 0  # the process that reads it, once one does
        if cursor is not None:
            self._seek(cursor)

    @property
    def next_step(self) -> int:
        """The step that the next batch belongs to."""
        return self._next_step

    def __next__(self) -> Batch:
        """The next batch; StopIteration where the plan ends: whole batches only.

        Raises:
            DamageError: its samples are damaged; file and sample are named.
            JobError: it did not arrive in time; what is waited for is named.
            ConfigError: the stream is closed, or was read by the process that this one was forked from.
        """
        if self._closed:
            raise ConfigError("TR-STREAM-CLOSED", "the stream is closed", f"step {self._next_step}", "an open stream")
        if self._reader not in (0, os.getpid()):
            self._refuse_process("TR-STREAM-FORKED", f"process {self._reader} reads this stream, with its threads")
        if self._next_step >= self.plan.num_steps:
            raise StopIteration
        if self._prefetcher is None:
            self._reader = os.getpid()
            self._prefetcher = self._start()
        batch = self._prefetcher.get(self.config.timeout_s)
        self._next_step = batch.step + 1
        if not self._told:
            self._tell(batch)
        if self._ahead is not None:
            self._ahead.advance(self._next_step)
        return batch

    def _start(self) -> Prefetcher[Batch]:
        config, ranks = self.config, (self.config.data_rank, self.config.num_data_ranks)
        if any(dataset.storage.is_fetched for dataset in self.sources.datasets):
            from .ahead import FetchAhead

            self._ahead = FetchAhead(self.plan, self.sources, ranks, self._next_step)
        produce = _Producer(self.plan, self.sources, *ranks)
        return Prefetcher(produce, self._next_step, config.prefetch_steps, config.threads)

    def _tell(self, batch: Batch) -> None:
        self._told = True
        rank, ranks = self.config.data_rank, self.config.num_data_ranks
        _LOG.info("first batch: step %d, digest %016x, data rank %d of %d", batch.step, batch.token_digest, rank, ranks)

    def _refuse_process(self, code: str, message: str) -> NoReturn:
        place, expected = f"step {self._next_step}", "a stream opened in the process that reads it"
        raise ConfigError(code, message, place, expected, "open_stream(..., state=stream.state_dict())")

    def __reduce__(self) -> NoReturn:
        """A stream does not travel to other processes; its state does."""
        self._refuse_process("TR-STREAM-PICKLED", "a stream cannot be sent to another process")

    def cursor(self, next_step: int | None = None) -> Cursor:
        """Where the stream stands: what was handed out, not what was prefetched. Equal on every rank.

        Args:
            next_step: stand before this step instead, for a loop that took batches it has not trained on yet.

        Raises:
            ConfigError: ``next_step`` is no step, or one that was not reached: a run resumed there would miss batches.
                (To read from any step, make its Cursor with ``order.make_cursor``.)
        """
        from ..order.cursor import make_cursor

        step = self._next_step if next_step is None else next_step
        refuse("state_dict", integer_problems("next_step", step, 0, self._next_step))
        return make_cursor(self.plan, self.sources.digest_by_source, next_step=step)

    def state_dict(self, next_step: int | None = None) -> dict[str, Any]:
        """The Cursor as a JSON-able dictionary, below 1 KB and free of rank and world size.

        Raises:
            ConfigError: as :meth:`cursor`.
        """
        return self.cursor(next_step).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a state of :meth:`state_dict`, on any number of ranks.

        Raises:
            DamageError: it is no such state.
            RefusedError: it belongs to other data, another order or other skips.
        """
        from ..order.cursor import Cursor

        cursor = Cursor.from_json(state)
        self._stop()
        self._seek(cursor)

    def _seek(self, cursor: Cursor) -> None:
        from ..order.cursor import check_cursor

        check_cursor(cursor, self.plan, self.sources.digest_by_source)
        self._next_step, self._told = cursor.next_step, False

    def _stop(self) -> None:
        prefetcher, self._prefetcher = self._prefetcher, None
        ahead, self._ahead = self._ahead, None
        if self._reader not in (0, os.getpid()):
            return  # a forked child has neither the threads nor a claim on their locks
        if ahead is not None:
            ahead.close()
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
        with told(note):
            tell(f"reading samples of step {step} from {self.sources.place}")
            return read_batch(self.plan, self.sources, step, self.data_rank, self.num_data_ranks)
