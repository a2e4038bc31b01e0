"""The batches of a stream, each with the labels of its global batch, which are counted while the step before computes.

A step divides its loss by that count before anything else. Summed over the ranks when the step begins, the count would
make every rank wait for the slowest reader with nothing to do; so the next batch is taken, and its sum begun, before a
step computes. Every rank begins the sums in the order of steps, in a group that carries nothing else; a sum that
nobody asks for (a rollback, a stop) was begun by all ranks and ends by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .world import World

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = ["CountedBatch", "CountedBatches"]


@dataclass(frozen=True)
class CountedBatch:
    """A batch to train on.

    Attributes:
        batch: this data rank's part of the global batch.
        label_count: labels of the global batch, equal on all ranks; waits for the sum.
        waited_s: seconds that this process waited for batches, this one or the one behind it, since the batch before.
    """

    batch: Batch
    label_count: Callable[[], int]
    waited_s: float


class CountedBatches:
    """Takes batches one step ahead of the training; every rank takes them alike.

    Args:
        stream: of this data rank; it stands one batch further than was handed out.
        world: whose ranks count. stop_step: no batch of this step or a later one is taken ahead.
    """

    def __init__(self, stream: Iterator[Batch], world: World, stop_step: int) -> None:
        self._stream, self._world, self._stop_step = stream, world, stop_step
        self._ready: tuple[Batch, Callable[[], int]] | Exception | None = None

    def take(self) -> CountedBatch:
        """The next batch; the sum of the one behind it has begun.

        Raises:
            StopIteration: the plan ends here.
            TokenreelError: what reading this very batch raised. It is read again at the next call.
        """
        begin_s = time.perf_counter()
        ready, self._ready = self._ready, None
        if isinstance(ready, Exception):
            raise ready
        batch, label_count = ready or self._counted(next(self._stream))
        if batch.step + 1 < self._stop_step:
            try:
                following = next(self._stream)
            except Exception as error:  # raised where it belongs: this step can still be trained
                self._ready = error
                self._world.begin_sum(0)  # the other ranks begin theirs: sums of one group are paired by their order
            else:
                self._ready = self._counted(following)
        return CountedBatch(batch, label_count, time.perf_counter() - begin_s)

    def _counted(self, batch: Batch) -> tuple[Batch, Callable[[], int]]:
        return batch, self._world.begin_sum(batch.num_labels if self._world.counts else 0)
