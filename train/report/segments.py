"""The segments that a run's skip entries cut, found again where the run had read them. Nothing here shows anything.

An entry that was made with a branch acts from the step at which the branch before it was left: what it cut is what
that branch had read there. What the entry names but nobody read (an entry made by hand for steps to come) is told by
its place in the Dataset, without a step.

Legend: N samples or positions, S segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import TokenreelError
from loader.run_view import RunView, open_run
from loader.runs import read_branches
from loader.stream.batch import read_segments

if TYPE_CHECKING:
    from loader.order.skips import SkipEntry
    from loader.shards.dataset import Dataset
    from loader.sources import Sources

__all__ = ["CutSegment", "cut_segments"]

_MOST_POSITIONS = 512
"""Of dropped ranges so many positions or samples are looked at."""
_MOST_SCANNED = 1 << 15
"""Samples of a source in which segments that were cut by number are looked for."""
_MOST_OF_DOCUMENT = 20
_COLUMNS = ("document_id_S", "file_S", "record_S", "record_start_S", "byte_start_S", "byte_count_S", "num_tokens_S")


@dataclass(frozen=True)
class CutSegment:
    """A contiguous piece of a document that was cut.

    Attributes:
        entry: number of the skip entry. document: its id. source: its source; empty if no Dataset holds it.
        holder: the Dataset, None if none holds it. file: a line of its files.txt.
        record, record_start: Origin in the file. byte_start, byte_stop: in the document's decoded UTF-8 text.
        tokens: how many. step: that read it in the branch that was left; None if none did.
    """

    entry: int
    document: int
    source: str = ""
    holder: Dataset | None = field(default=None, compare=False)
    file: int = -1
    record: int = 0
    record_start: int = 0
    byte_start: int = 0
    byte_stop: int = 0
    tokens: int = 0
    step: int | None = None

    @property
    def path(self) -> str:
        """Of the file, relative to the source's root."""
        return "in no Dataset" if self.holder is None else self.holder.file_path(self.file)


def cut_segments(view: RunView, named: Sequence[Sequence[int]], most: int) -> tuple[list[CutSegment], bool]:
    """What the entries of a run cut: at most ``most`` segments, and whether there is more. An entry that names little
    is not crowded out by one that names much.

    Args:
        view: of the current branch.
        named: for each entry the documents to show first; an entry that cuts a whole source names none itself.
    """
    finder = _Finder(view)
    open_entries = [finder.of_entry(number, documents) for number, documents in enumerate(named, 1)]
    out: list[CutSegment] = []
    while open_entries and len(out) < most:
        for one in list(open_entries):
            found = next(one, None)
            if found is None:
                open_entries.remove(one)
            else:
                out.append(found)
    is_more = finder.is_more or len(out) > most or any(next(one, None) is not None for one in open_entries)
    return sorted(out[:most], key=lambda segment: segment.entry), is_more


class _Finder:
    """Looks segments up; the branches that were left are opened once each.

    Attributes:
        is_more: of some document only the first segments were told.
    """

    def __init__(self, view: RunView) -> None:
        self.is_more = False
        self._view = view
        self._branches = read_branches(view.paths)
        self._left: dict[int, RunView | None] = {}

    def of_entry(self, number: int, documents: Sequence[int]) -> Iterator[CutSegment]:
        """Of one entry, ``documents`` first."""
        entry, left = self._view.entries[number - 1], self._left_by(number)
        if entry.kind == "source" and not documents:
            yield from _of_source(left or self._view, number, entry)
        elif entry.kind in ("documents", "source"):
            for document in dict.fromkeys((*documents, *entry.documents)):
                segments = self._of_document(left, number, document)
                yield from islice(segments, _MOST_OF_DOCUMENT)
                self.is_more = self.is_more or next(segments, None) is not None
        elif entry.kind == "positions":
            yield from _of_positions(left or self._view, number, entry)
        else:
            yield from self._of_samples(number, entry)

    def _left_by(self, number: int) -> RunView | None:
        """The run as the branch saw it that was left when the entry was made; None where there is none, or where its
        Datasets are gone."""
        own = max(branch.number for branch in self._branches if branch.first_skip <= number)
        if own not in self._left:
            try:
                self._left[own] = open_run(self._view.paths.root, own - 1) if own else None
            except TokenreelError:
                self._left[own] = None
        return self._left[own]

    def _of_document(self, left: RunView | None, number: int, document: int) -> Iterator[CutSegment]:
        """With the steps of ``left`` that read it from the entry's stamp on; without such steps all its segments; one
        row without a place if no Dataset of the run holds it."""
        if left is not None:
            stamp = max(self._view.entries[number - 1].stamp, _first_position(left))
            for name, samples_N in left.sources.samples_of_document(document, proven=False):
                positions_N = left.plan.positions_of_samples(name, samples_N, left.next_position)[0]
                read = list(_rows(left, number, np.unique(positions_N[positions_N >= stamp]), document))
                if read:
                    yield from read
                    return
        sources, found = self._view.sources, False
        for name, samples_N in sources.samples_of_document(document, proven=False):
            table = sources.segments_of(sources.names.index(name), samples_N)
            for row in _columns_of(table.take(table.document_id_S == np.uint64(document))):
                found = True
                yield _segment(sources, number, (sources.names.index(name), None), row)
        if not found:
            yield CutSegment(number, document)

    def _of_samples(self, number: int, entry: SkipEntry) -> Iterator[CutSegment]:
        """Samples or segments of a source, cut by hand."""
        sources = self._view.sources
        if entry.source not in sources.names:
            return
        source = sources.names.index(entry.source)
        num_samples = int(sources.shard_samples(entry.source).sum())
        ranges_R2 = entry.ranges_R2
        spans = [(0, _MOST_SCANNED)]
        if entry.kind == "samples":
            spans = [(start, min(stop, start + _MOST_POSITIONS)) for start, stop in ranges_R2.tolist()]
        for start, stop in spans:
            for first in range(start, min(stop, num_samples), _MOST_POSITIONS):
                table = sources.segments_of(source, np.arange(first, min(stop, num_samples, first + _MOST_POSITIONS)))
                table = table.take(~table.padding_S)
                if entry.kind == "segments":
                    number_S1 = table.segment_S[:, None]
                    cut_SR = (number_S1 >= ranges_R2[:, 0]) & (number_S1 < ranges_R2[:, 1])
                    table = table.take(cut_SR.any(axis=1))
                for row in _columns_of(table):
                    yield _segment(sources, number, (source, None), row)


def _columns_of(table: Any) -> Iterator[tuple[int, ...]]:
    """The values of ``_COLUMNS`` of each row."""
    return zip(*(getattr(table, column).tolist() for column in _COLUMNS), strict=True)


def _segment(sources: Sources, number: int, place: tuple[int, int | None], row: tuple[int, ...]) -> CutSegment:
    """``place``: source and step; ``row``: the values of ``_COLUMNS``."""
    (source, step), (document, file, record, record_start, byte_start, byte_count, tokens) = place, row
    stop = byte_start + byte_count
    origin = (sources.names[source], sources.dataset(source), file, record, record_start)
    return CutSegment(number, document, *origin, byte_start, stop, tokens, step)


def _first_position(view: RunView) -> int:
    return 0 if view.force.start is None else view.force.start.position


def _rows(
    view: RunView, number: int, positions_N: NDArray[np.int64], document: int | None = None
) -> Iterator[CutSegment]:
    """The segments at positions of a view, of one document or of all."""
    steps_N = view.plan.steps_of(positions_N)
    segments = read_segments(view.plan, view.sources, positions_N[steps_N >= 0])
    wanted_S = ~segments.padding_S
    if document is not None:
        wanted_S &= segments.document_id_S == np.uint64(document)
    segments = segments.take(wanted_S)
    step_at = dict(zip(positions_N.tolist(), steps_N.tolist(), strict=True))
    places = zip(segments.source_S.tolist(), segments.position_S.tolist(), strict=True)
    for (source, position), row in zip(places, _columns_of(segments), strict=True):
        yield _segment(view.sources, number, (source, step_at[position]), row)


def _of_source(view: RunView, number: int, entry: SkipEntry) -> Iterator[CutSegment]:
    """The first that a view read of a source from the entry's stamp on."""
    first, done = max(entry.stamp, _first_position(view)), view.next_position
    positions_N = np.arange(first, min(done, first + _MOST_SCANNED))
    if entry.source in view.sources.names and len(positions_N):
        mine_N = view.plan.samples(positions_N).source_N == view.sources.names.index(entry.source)
        yield from _rows(view, number, positions_N[mine_N][:_MOST_POSITIONS])


def _of_positions(view: RunView, number: int, entry: SkipEntry) -> Iterator[CutSegment]:
    """What the view that still read them had at dropped positions."""
    room = _MOST_POSITIONS
    for start, stop in zip(entry.acting.start_R.tolist(), entry.acting.stop_R.tolist(), strict=True):
        first = max(start, _first_position(view))
        last = min(stop, view.next_position, first + room)
        if first < last:
            room -= last - first
            yield from _rows(view, number, np.arange(first, last))
