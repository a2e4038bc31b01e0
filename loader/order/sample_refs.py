"""Which samples positions read, as arrays, and the keeping of some ahead for who reads on.

Legend: N positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .weights import POSITION_LIMIT

__all__ = ["PORTION", "ReadOn", "SampleRefs"]

PORTION = 4096
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SampleRefs:
    """Which sample each of N positions reads.

    Attributes:
        position_N: the positions.
        source_N: index into the plan's sources.
        rank_N: slots of that source before this one (since the plan's start).
        epoch_N: epoch of the source.
        sample_N: source sample number, through the source's shards.
    """

    position_N: _Ints
    source_N: NDArray[np.int32]
    rank_N: _Ints
    epoch_N: _Ints
    sample_N: _Ints

    def __len__(self) -> int:
        return len(self.position_N)

    def copy_of(self, rows: slice) -> SampleRefs:
        """The positions that ``rows`` picks, in arrays of their own."""
        return SampleRefs(
            self.position_N[rows].copy(),
            self.source_N[rows].copy(),
            self.rank_N[rows].copy(),
            self.epoch_N[rows].copy(),
            self.sample_N[rows].copy(),
        )

    @staticmethod
    def join(parts: Sequence[SampleRefs]) -> SampleRefs:
        """All of ``parts`` in order."""
        return SampleRefs(
            np.concatenate([part.position_N for part in parts]),
            np.concatenate([part.source_N for part in parts]),
            np.concatenate([part.rank_N for part in parts]),
            np.concatenate([part.epoch_N for part in parts]),
            np.concatenate([part.sample_N for part in parts]),
        )


class ReadOn:
    """Samples of positions, some ahead for who reads on where the last question ended.

    Array operations on a thousand numbers cost as much to start as to do: 4,096 positions together cost half as much
    each as 1,024. Threads may share it: each attribute is read once, what is kept never changes, and the worst that a
    race does is to repeat work.
    """

    def __init__(self) -> None:
        self._kept: SampleRefs | None = None
        self._asked_stop = -1

    def samples(self, positions_N: _Ints, read: Callable[[_Ints], SampleRefs]) -> SampleRefs:
        """What ``read``, always the same, says of the positions, in arrays of the caller's own."""
        num = len(positions_N)
        if not 0 < num <= PORTION // 2:
            return read(positions_N)
        start, stop, kept, asked_stop = int(positions_N[0]), int(positions_N[-1]) + 1, self._kept, self._asked_stop
        if stop - start != num or not (positions_N[1:] > positions_N[:-1]).all():
            return read(positions_N)
        self._asked_stop = stop
        if kept is None or not int(kept.position_N[0]) <= start <= stop <= int(kept.position_N[-1]) + 1:
            # twice as far as the last time: who stops early has wasted no more than was used
            ahead = min(PORTION, 2 * max(num, len(kept) if kept is not None else 0))
            if start != asked_stop or start + ahead > POSITION_LIMIT:
                return read(positions_N)
            self._kept = kept = read(np.arange(start, start + ahead))
        first = start - int(kept.position_N[0])
        return kept.copy_of(slice(first, first + num))
