"""How much of what a new skip entry asks for earlier entries cut already: nothing of it is to be counted, or added,
a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .collateral import CHUNK_SAMPLES, asked_segments, touched_samples

if TYPE_CHECKING:
    from .order.plan import Plan
    from .order.skips import SkipEntry
    from .shards.segments import SegmentTable
    from .sources import Sources

__all__ = ["CutAlready", "cut_already"]


@dataclass(frozen=True)
class CutAlready:
    """Attributes: new_tokens: asked for and cut by no earlier entry. by: numbers of the entries that cut the others."""

    new_tokens: int
    by: tuple[int, ...]


def cut_already(plan: Plan, sources: Sources, entry: SkipEntry, earlier: Mapping[int, SkipEntry]) -> CutAlready | None:
    """Compare an entry with those in force, by number; None where none of them cuts any of it.

    A dropped sample is gone for whoever would mask it; a masked one is not for whoever drops it, which moves what
    follows. Positions are counted against positions alone, for the same reason.
    """
    candidates = {number: one for number, one in earlier.items() if _may_cover(one, entry)}
    if not candidates:
        return None
    new_tokens, by = 0, set[int]()
    for source, samples_N, positions_N in touched_samples(plan, sources, entry):
        name = sources.names[source]
        for first in range(0, len(samples_N), CHUNK_SAMPLES):
            chunk = slice(first, first + CHUNK_SAMPLES)
            table = sources.segments_of(source, samples_N[chunk])
            table = table.take(~table.padding_S)
            left_S = asked_segments(table, entry)
            for number, one in candidates.items():
                if entry.kind == "positions":
                    covered_S = one.acting.contains(positions_N[chunk])[table.sample_index_S]
                else:
                    covered_S = _covered(table, samples_N[chunk][table.sample_index_S], name, one)
                if (left_S & covered_S).any():
                    by.add(number)
                left_S &= ~covered_S
            new_tokens += int(table.num_tokens_S[left_S].sum())
    return CutAlready(new_tokens, tuple(sorted(by))) if by else None


def _may_cover(one: SkipEntry, entry: SkipEntry) -> bool:
    if entry.kind == "positions" or one.kind == "positions":
        return entry.kind == one.kind
    if one.stamp > entry.stamp or (entry.mode == "drop" and one.mode == "mask"):
        return False
    return one.source is None or entry.source is None or one.source == entry.source


def _covered(table: SegmentTable, sample_S: NDArray[np.int64], name: str, one: SkipEntry) -> NDArray[np.bool_]:
    """Which segments of a source an entry cuts."""
    if one.source is not None and one.source != name:
        return np.zeros(len(table), np.bool_)
    if one.kind == "samples":
        return one.acting.contains(sample_S)
    named_S = asked_segments(table, one)
    if one.mode == "drop":  # of documents: their samples go whole
        return np.isin(table.sample_index_S, table.sample_index_S[named_S])
    return named_S
