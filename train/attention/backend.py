"""What a row of the attention table is, and what several rows need.

Shape legend: B samples, T tokens of a sample, t tokens of a sample that the queries are, H query heads, K key/value
heads, C numbers of a head.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "WHOLE",
    "Attend",
    "AttentionBackend",
    "Availability",
    "Available",
    "LayoutOptions",
    "Piece",
    "Prepare",
    "query_index",
    "query_pieces",
    "segment_borders",
    "share_heads",
]


@dataclass(frozen=True)
class LayoutOptions:
    """What a layout may know beside the segment numbers.

    Attributes:
        max_segments: most segments of a sample in the whole run. Given, a layout's shapes do not depend on the packing
            (one compiled graph, one CUDA graph); None: as many as the batch has.
        query_ranges: token ranges ``(start, stop)`` of every sample that the queries are, in the queries' order; keys
            and values are whole samples all the same. None: queries are whole samples too.
    """

    max_segments: int | None = None
    query_ranges: tuple[tuple[int, int], ...] | None = None


WHOLE = LayoutOptions()
"""Queries are whole samples, shapes follow the batch."""


@dataclass(frozen=True)
class Availability:
    """Whether a row can train on a device; true if so.

    Attributes:
        missing: what it lacks, in words; empty if nothing.
        install: the command that mends it, if one does.
    """

    missing: tuple[str, ...] = ()
    install: str | None = None

    def __bool__(self) -> bool:
        return not self.missing

    def __str__(self) -> str:
        return "; ".join(self.missing) if self.missing else "available"


class Prepare(Protocol):
    """Turns segment numbers into a layout; once per micro-batch."""

    def __call__(
        self,
        segment_of_BT: NDArray[np.integer[Any]],
        device: torch.device,
        dtype: torch.dtype,
        options: LayoutOptions = WHOLE,
        /,
    ) -> Any:
        """Segment numbers lie on the host; equal ones stand together. ``dtype`` is the compute dtype."""


class Attend(Protocol):
    """Attention of one layer; never waits for the device."""

    def __call__(
        self, q_BHtC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, layout: Any, scale: float | None = None, /
    ) -> Tensor:
        """-> (B, H, t, C). H is a multiple of K. Scores are multiplied by ``scale``, 1 / sqrt(C) if None."""


class Available(Protocol):
    """Whether a row can train."""

    def __call__(self, device: torch.device, dtype: torch.dtype, head_dim: int | None = None, /) -> Availability:
        """``dtype`` is the compute dtype; ``head_dim`` is C, None: not yet known, not checked."""


def _nothing_to_start(device: torch.device) -> str:
    del device
    return ""


@dataclass(frozen=True)
class AttentionBackend:
    """One row of the table.

    Attributes:
        name: the key in the configuration.
        prepare: ``(segment_of_BT, device, compute dtype, options) -> layout``, see :class:`Prepare`.
        attend: ``(q_BHtC, k_BKTC, v_BKTC, layout, scale) -> out_BHtC``, see :class:`Attend`.
        available: ``(device, compute dtype, head_dim) -> Availability``.
        start: called when the row is chosen, any number of times; says which kernel serves, for the log.
    """

    name: str
    prepare: Prepare
    attend: Attend
    available: Available
    start: Callable[[torch.device], str] = _nothing_to_start


def segment_borders(segment_of_BT: NDArray[np.integer[Any]]) -> list[list[int]]:
    """For every sample the token indices at which its segments begin, and T last."""
    num_tokens = segment_of_BT.shape[1]
    changes_BT = np.diff(segment_of_BT, axis=1) != 0
    return [[0, *(np.flatnonzero(changes_T) + 1).tolist(), num_tokens] for changes_T in changes_BT]


@dataclass(frozen=True)
class Piece:
    """A run of queries of one segment, and the keys that its last query sees; each earlier query sees one key less.

    Attributes:
        query_start, query_stop: among the t queries. key_start, key_stop: among the T keys.
    """

    query_start: int
    query_stop: int
    key_start: int
    key_stop: int

    @property
    def num_earlier(self) -> int:
        """Keys of the segment before the first query."""
        return self.key_stop - self.key_start - (self.query_stop - self.query_start)


def query_pieces(borders: list[int], options: LayoutOptions) -> list[list[Piece]]:
    """The pieces of one sample, for each of the query ranges; ``borders`` as :func:`segment_borders` gives them."""
    found, offset = [], 0
    for first, last in options.query_ranges or ((0, borders[-1]),):
        pieces = []
        for start, stop in itertools.pairwise(borders):
            if stop > first and start < last:
                end = min(stop, last)
                pieces.append(Piece(offset + max(start, first) - first, offset + end - first, start, end))
        found.append(pieces)
        offset += last - first
    return found


def query_index(num_tokens: int, options: LayoutOptions) -> NDArray[np.int64]:
    """Where the t queries lie among the T tokens of a sample."""
    ranges = options.query_ranges or ((0, num_tokens),)
    return np.concatenate([np.arange(first, last) for first, last in ranges])


def share_heads(q_BHtC: Tensor, x_BKTC: Tensor) -> Tensor:
    """Grouped-query attention: (B, H, T, C), each key/value head repeated for the query heads that share it."""
    repeats = q_BHtC.shape[1] // x_BKTC.shape[1]
    return x_BKTC if repeats == 1 else x_BKTC.repeat_interleave(repeats, dim=1)
