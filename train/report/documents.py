"""The table of cut segments: which pieces of which documents were taken out, why, and how they begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loader.errors import TokenreelError
from loader.page import Block, Prose, Table
from loader.run_view import RunView

from .reasons import reason_of
from .segments import CutSegment, cut_segments

if TYPE_CHECKING:
    from loader.order.skips import SkipEntry

__all__ = ["MOST_SEGMENTS", "SHOWN_CHARACTERS", "Told", "segment_blocks", "shown_text"]

MOST_SEGMENTS = 500
SHOWN_CHARACTERS = 400
_TEXTS_AT_ONCE = 16
_HEADS = ("entry", "source", "file", "record", "score", "why", "text", "document", "bytes", "tokens", "step")

Told = Mapping[int, Mapping[str, Any]]
"""What investigations said of flagged documents: id -> ``score``, ``evidence``, ``source``, ``tokens``."""


def segment_blocks(view: RunView, told: Sequence[Told], threshold: float) -> list[Block]:
    """The table of cut segments, in the order of the skip entries.

    Args:
        view: of the current branch.
        told: for each skip entry what the investigation that made it said of the documents; empty for one by hand.
        threshold: score above which a document was flagged.
    """
    named = [_first(entry, one) for entry, one in zip(view.entries, told, strict=True)]
    segments, is_more = cut_segments(view, named, MOST_SEGMENTS)
    if not segments:
        return [Prose("What the skip entries name has not been read, or is not known here.")]
    texts = _texts_of(segments)
    rows = []
    for segment, text in zip(segments, texts, strict=True):
        entry, said = view.entries[segment.entry - 1], told[segment.entry - 1].get(segment.document, {})
        is_known = segment.holder is not None
        rows.append(
            (
                segment.entry,
                segment.source or "unknown",
                segment.path,
                segment.record if is_known else "",
                said.get("score"),
                _why(entry, said, threshold),
                text,
                f"{segment.document:016x}",
                f"{segment.byte_start:,}:{segment.byte_stop:,}" if is_known else "",
                segment.tokens,
                segment.step,
            )
        )
    blocks: list[Block] = [Table(_HEADS, rows, filters=("entry", "source"), texts=("text",), wide=("why",))]
    if is_more:
        blocks.append(
            Prose("There is more: of long documents the first segments are shown; `tokenreel locate` finds all.")
        )
    return blocks


def _first(entry: SkipEntry, told: Told) -> list[int]:
    """Documents to show first, most tokens first: of an entry that cuts a whole source those of that source."""
    named = sorted(told, key=lambda document: -int(told[document].get("tokens", 0)))
    if entry.kind == "source":
        return [document for document in named if told[document].get("source") == entry.source]
    known = set(entry.documents)
    return [document for document in named if document in known]


def _why(entry: SkipEntry, said: Mapping[str, Any], threshold: float) -> str:
    """Why this segment went, in words."""
    if said:
        return reason_of(said, threshold, is_whole=entry.kind == "source")
    if entry.kind == "positions":
        by_spike = "no document stood out while the parameters broke: all that these steps had read was left out"
        return by_spike if entry.evidence else "all that these positions read was left out"
    if entry.evidence:
        return "flagged by the investigation of the same spike"
    return f"by hand: {entry.reason}" if entry.reason else "by hand"


def _texts_of(segments: Sequence[CutSegment]) -> list[str]:
    """How each segment begins, or why it cannot be shown; a file is read a few records at a time."""
    from loader.text.records import RecordPlace
    from loader.text.roots import TextSource

    shown = [""] * len(segments)
    by_file: dict[tuple[int, int], list[int]] = {}
    for index, segment in enumerate(segments):
        if segment.holder is not None:
            by_file.setdefault((id(segment.holder), segment.file), []).append(index)
    readers: dict[int, TextSource] = {}
    for (holder, file), indices in by_file.items():
        owner = segments[indices[0]].holder
        assert owner is not None
        reader = readers.setdefault(holder, TextSource(owner, {}))
        places = {index: RecordPlace(segments[index].record_start, segments[index].record) for index in indices}
        wanted = sorted(set(places.values()))
        for first in range(0, len(wanted), _TEXTS_AT_ONCE):
            some = wanted[first : first + _TEXTS_AT_ONCE]
            found, fault = _read(reader, file, some)
            for index in indices:
                if places[index] in some:
                    text = found.get(places[index])
                    shown[index] = fault if text is None else shown_text(text, segments[index])
    return shown


def _read(reader: Any, file: int, places: Sequence[Any]) -> tuple[Mapping[Any, str], str]:
    try:
        return reader.texts(file, places), "(no such record)"
    except TokenreelError as error:
        return {}, f"({error.code}: {error.message})"


def shown_text(text: str, segment: CutSegment) -> str:
    """The beginning of a segment's text; its byte range is that of the decoded UTF-8 text, whole characters or not."""
    # Four bytes a character at most: nothing behind them can be shown.
    stop = min(segment.byte_stop, segment.byte_start + 4 * SHOWN_CHARACTERS + 4)
    piece = text.encode("utf-8", "replace")[segment.byte_start : stop].decode("utf-8", "replace")
    is_cut = len(piece) > SHOWN_CHARACTERS or stop < segment.byte_stop
    return piece[:SHOWN_CHARACTERS] + " …" if is_cut else piece
