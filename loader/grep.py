"""Text of what was read: segments with their words, and ``grep`` over the steps of a run or the documents of a Dataset.

Texts come from the input files by Origin, each file read in one pass for all that is asked of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .lookup import segments_json
from .stream.batch import BatchSegments, read_segments
from .text.records import RecordPlace
from .text.roots import Root, TextSource

if TYPE_CHECKING:
    from .run_view import RunView
    from .shards.dataset import Dataset
    from .sources import Sources

__all__ = ["SegmentTexts", "grep_dataset", "grep_run"]

_CHUNK_SAMPLES = 4096


@dataclass(frozen=True)
class _Record:
    """A document's Origin as numbers: Dataset, input file, record."""

    dataset: int
    file: int
    place: RecordPlace


class SegmentTexts:
    """Texts of documents, each input file read in one pass for all that is asked of it."""

    def __init__(self, datasets: Iterable[Dataset], roots: Mapping[str, Root]) -> None:
        """``roots``: see ``text.roots``."""
        self._readers = [TextSource(dataset, roots) for dataset in datasets]

    def read(self, records: Iterable[_Record]) -> dict[_Record, bytes]:
        """UTF-8 text of each record.

        Raises:
            ConfigError: an input file cannot be found.
            DamageError: it is not the file that was built.
        """
        by_file: dict[tuple[int, int], list[_Record]] = defaultdict(list)
        for record in records:
            by_file[record.dataset, record.file].append(record)
        texts: dict[_Record, bytes] = {}
        for (dataset, file), group in sorted(by_file.items()):
            found = self._readers[dataset].texts(file, [record.place for record in group])
            texts.update({record: found[record.place].encode("utf-8") for record in group})
        return texts

    def with_text(self, sources: Sources, samples: list[dict[str, Any]]) -> None:
        """Add ``text`` (bytes that are no whole character become U+FFFD) to each segment of located samples."""
        records: dict[_Record, list[dict[str, Any]]] = defaultdict(list)
        file_numbers: dict[str, dict[str, int]] = {}
        for sample in samples:
            name = sample["source"]
            dataset = sources.dataset_of[sources.names.index(name)]
            if name not in file_numbers:
                files = enumerate(sources.datasets[dataset].input_files())
                file_numbers[name] = {file.path: number for number, file in files if file.source == name}
            for segment in sample["segments"]:
                place = RecordPlace(segment["record_start"], segment["record"])
                records[_Record(dataset, file_numbers[name][segment["file"]], place)].append(segment)
        for record, text in self.read(records).items():
            for segment in records[record]:
                piece = text[segment["byte_start"] : segment["byte_stop"]]
                segment["text"] = piece.decode("utf-8", "replace")


def _matches(text: bytes, needle: bytes) -> list[tuple[int, int]]:
    """Byte ranges of all occurrences, overlapping ones too."""
    found, at = [], text.find(needle)
    while at >= 0:
        found.append((at, at + len(needle)))
        at = text.find(needle, at + 1)
    return found


def _hits(
    sources: Sources, segments: BatchSegments, matches: Mapping[int, list[tuple[int, int]]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index of the segment, hit) for each match that a segment holds at least one byte of."""
    wanted = np.isin(segments.document_id_S, np.fromiter(matches, np.uint64, len(matches))) & ~segments.padding_S
    for index in np.flatnonzero(wanted).tolist():
        start = int(segments.byte_start_S[index])
        stop = start + int(segments.byte_count_S[index])
        for match in matches[int(segments.document_id_S[index])]:
            if match[0] < stop and match[1] > start:
                shown = segments_json(sources, segments.take(slice(index, index + 1)))[0]
                yield index, {**shown, "match_start": match[0], "match_stop": match[1]}


def grep_run(view: RunView, text: str, steps: range, texts: SegmentTexts, limit: int = 1000) -> dict[str, Any]:
    """The segments of ``steps`` that hold ``text`` (a part of it, where a sample border cuts the match), by step.

    Raises:
        ConfigError: empty text, or an input file that cannot be found.
        DamageError: a shard or an input file is damaged.
    """
    needle = _needle(text)
    records: dict[int, _Record] = {}
    for segments in _step_segments(view, steps):
        records.update(_records(view.sources, segments))
    matches = dict(_search(records, texts, needle))
    hits: list[dict[str, Any]] = []
    for segments in _step_segments(view, steps) if matches else ():
        for index, hit in _hits(view.sources, segments, matches):
            position = int(segments.position_S[index])
            hits.append({"step": view.plan.step_of(position), "position": position,
                         "source": view.sources.names[int(segments.source_S[index])], **hit})  # fmt: skip
            if len(hits) >= limit:
                return _grep_result(text, steps, records, hits, truncated=True)
    return _grep_result(text, steps, records, hits, truncated=False)


def _needle(text: str) -> bytes:
    if not text:
        raise ConfigError("TR-LOOKUP-GREP", "nothing to search for", "--grep", "some text")
    return text.encode("utf-8", "surrogateescape")


def _grep_result(
    text: str, steps: range, records: Mapping[int, _Record], hits: list[dict[str, Any]], *, truncated: bool
) -> dict[str, Any]:
    searched = {"steps": [steps.start, steps.stop]} if len(steps) else {}
    return {"text": text, **searched, "num_documents": len(records), "truncated": truncated, "hits": hits}


def _search(
    records: Mapping[int, _Record], texts: SegmentTexts, needle: bytes
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(document, matches) of the documents that hold ``needle``."""
    documents: dict[tuple[int, int], list[int]] = defaultdict(list)
    for document, record in records.items():
        documents[record.dataset, record.file].append(document)
    for group in documents.values():
        found = texts.read([records[document] for document in group])
        for document in group:
            if matches := _matches(found[records[document]], needle):
                yield document, matches


def _records(sources: Sources, segments: BatchSegments) -> dict[int, _Record]:
    """Document id -> where its text is."""
    real = segments.take(~segments.padding_S)
    _, first = np.unique(real.document_id_S, return_index=True)
    real = real.take(first)
    columns = (real.document_id_S, real.source_S, real.file_S, real.record_start_S, real.record_S)
    return {
        document: _Record(sources.dataset_of[source], file, RecordPlace(record_start, record))
        for document, source, file, record_start, record in zip(*(column.tolist() for column in columns), strict=True)
    }


def _step_segments(view: RunView, steps: range) -> Iterator[BatchSegments]:
    """Segments of consecutive steps, some thousand samples at a time."""
    waiting: list[NDArray[np.int64]] = []
    for step in steps:
        waiting.append(np.asarray(view.plan.step_positions(step)))
        if sum(map(len, waiting)) >= _CHUNK_SAMPLES:
            yield read_segments(view.plan, view.sources, np.concatenate(waiting))
            waiting.clear()
    if waiting:
        yield read_segments(view.plan, view.sources, np.concatenate(waiting))


def grep_dataset(dataset: Dataset, text: str, texts: SegmentTexts, limit: int = 1000) -> dict[str, Any]:
    """The documents of a Dataset that hold ``text``.

    Raises:
        ConfigError, DamageError: as :func:`grep_run`.
    """
    needle = _needle(text)
    records: dict[int, _Record] = {}
    for info in dataset.manifest.sources:
        for first in range(0, info.num_samples, _CHUNK_SAMPLES):
            samples_N = np.arange(first, min(info.num_samples, first + _CHUNK_SAMPLES))
            table = dataset.segments_of(info.name, samples_N)
            table = table.take(~table.padding_S)
            columns = (table.document_id_S, table.file_S, table.record_start_S, table.record_S)
            for document, file, record_start, record in zip(*(column.tolist() for column in columns), strict=True):
                records[document] = _Record(0, file, RecordPlace(record_start, record))
    hits: list[dict[str, Any]] = []
    for document, matches in _search(records, texts, needle):
        record = records[document]
        for start, stop in matches:
            hits.append(
                {
                    "document": f"{document:016x}",
                    "source": dataset.input_files()[record.file].source,
                    "file": dataset.file_path(record.file),
                    "record": record.place.record,
                    "record_start": record.place.record_start,
                    "match_start": start,
                    "match_stop": stop,
                }
            )
            if len(hits) >= limit:
                return _grep_result(text, range(0), records, hits, truncated=True)
    return _grep_result(text, range(0), records, hits, truncated=False)
