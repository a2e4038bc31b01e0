"""Which segments a skip list masks at which position.

Legend: S segments, M masked documents, C sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ranges import StampedRanges
from .skips import SkipEntry
from .weights import POSITION_LIMIT

__all__ = ["MaskQuery", "Masks"]

_Ints = NDArray[np.int64]
_NEVER = POSITION_LIMIT


@dataclass(frozen=True)
class MaskQuery:
    """Segments in a plan, one array entry a segment.

    Attributes:
        position_S: plan position of the segment's sample.
        source_S: index into the plan's sources.
        sample_S: source sample number. segment_S: source segment number.
        document_S: document id, u8.
    """

    position_S: _Ints
    source_S: _Ints
    sample_S: _Ints
    segment_S: _Ints
    document_S: NDArray[np.uint64]


class Masks:
    """The mask entries of a skip list, indexed. Immutable."""

    def __init__(self, entries: Iterable[SkipEntry], source_numbers: Mapping[str, int]) -> None:
        masks = [entry for entry in entries if entry.mode == "mask"]
        self._ranges = {kind: _ranges_by_source(masks, kind, source_numbers) for kind in ("samples", "segments")}
        self._source_stamp_C = np.full(max(1, len(source_numbers)), _NEVER, np.int64)
        pairs: list[tuple[int, int]] = []
        for entry in masks:
            if entry.kind == "source" and entry.source is not None:
                number = source_numbers[entry.source]
                self._source_stamp_C[number] = min(self._source_stamp_C[number], entry.stamp)
            elif entry.kind == "documents":
                pairs.extend((document, entry.stamp) for document in entry.documents)
        # of equal documents the smallest stamp comes last and wins
        stamps = dict(sorted(pairs, key=lambda pair: -pair[1]))
        self._document_M = np.array(sorted(stamps), np.uint64)
        self._document_stamp_M = np.array([stamps[document] for document in sorted(stamps)], np.int64)
        self.any = bool(masks)

    def mask_of(self, query: MaskQuery) -> NDArray[np.bool_]:
        """masked_S: whether an entry hides each segment where it stands."""
        position_S = np.asarray(query.position_S, np.int64)
        if not self.any:
            return np.zeros(len(position_S), np.bool_)
        stamp_S = self._source_stamp_C[query.source_S]
        if len(self._document_M):
            documents_S = np.asarray(query.document_S, np.uint64)
            row_S = np.minimum(np.searchsorted(self._document_M, documents_S), len(self._document_M) - 1)
            found_S = self._document_M[row_S] == documents_S
            stamp_S = np.where(found_S, np.minimum(stamp_S, self._document_stamp_M[row_S]), stamp_S)
        for kind, numbers_S in (("samples", query.sample_S), ("segments", query.segment_S)):
            for source, stamped in self._ranges[kind].items():
                here = np.flatnonzero(query.source_S == source)
                if len(here):
                    stamp_S[here] = np.minimum(stamp_S[here], stamped.stamps_of(np.asarray(numbers_S, np.int64)[here]))
        return position_S >= stamp_S


def _ranges_by_source(masks: Iterable[SkipEntry], kind: str, numbers: Mapping[str, int]) -> dict[int, StampedRanges]:
    entries: dict[int, list[SkipEntry]] = {}
    for entry in masks:
        if entry.kind == kind and entry.source is not None:
            entries.setdefault(numbers[entry.source], []).append(entry)
    result = {}
    for source, some in entries.items():
        ranges_R2 = np.concatenate([entry.ranges_R2 for entry in some])
        stamp_R = np.repeat([entry.stamp for entry in some], [len(entry.ranges) for entry in some])
        result[source] = StampedRanges.build(ranges_R2[:, 0], ranges_R2[:, 1], stamp_R, _NEVER)
    return result
