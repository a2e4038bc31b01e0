"""The documents that a run cut, with the beginning of their text, as report blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import TokenreelError
from loader.page import Block, Excerpt, Prose, Table

if TYPE_CHECKING:
    from loader.sources import Sources

__all__ = ["MOST_EXCERPTS", "MOST_ROWS", "SHOWN_CHARACTERS", "document_blocks"]

MOST_ROWS = 200
MOST_EXCERPTS = 40
SHOWN_CHARACTERS = 400


def document_blocks(sources: Sources, documents: Iterable[int], told: Mapping[int, Mapping[str, Any]]) -> list[Block]:
    """A table of cut documents, and the beginning of the first ones' texts.

    Args:
        sources: the run's Datasets.
        documents: ids, in the order to show.
        told: what the investigation said of an id (``score``, ``tokens``).
    """
    ids = list(dict.fromkeys(documents))
    rows: list[Sequence[object]] = []
    excerpts: list[Block] = []
    for document in ids[:MOST_ROWS]:
        found = _place_of(sources, document)
        said = told.get(document, {})
        name = f"{document:016x}"
        if found is None:
            rows.append((name, "in no Dataset", "", "", said.get("tokens"), said.get("score")))
            continue
        source, dataset, file, record, record_start = found
        path = sources.datasets[dataset].file_path(file)
        rows.append((name, source, path, record, said.get("tokens"), said.get("score")))
        if len(excerpts) < MOST_EXCERPTS:
            text = _text_of(sources, dataset, file, (record_start, record))
            excerpts.append(Excerpt(f"{name} · {source}/{path} record {record}", text, is_cut=True))
    blocks: list[Block] = [Table(("document", "source", "file", "record", "tokens in the window", "score"), rows)]
    if len(ids) > len(rows):
        blocks.append(Prose(f"and {len(ids) - len(rows):,} more: `tokenreel history` lists all."))
    return [*blocks, *excerpts]


def _place_of(sources: Sources, document: int) -> tuple[str, int, int, int, int] | None:
    """(source, Dataset, file, record, record start) of a document; None if no Dataset holds it."""
    for number, dataset in enumerate(sources.datasets):
        for source, samples_N in dataset.samples_of_document(document):
            table = dataset.segments_of(source, samples_N[:1])
            rows = np.flatnonzero(table.document_id_S == np.uint64(document))
            if rows.size:
                row = int(rows[0])
                file, record = int(table.file_S[row]), int(table.record_S[row])
                return source, number, file, record, int(table.record_start_S[row])
    return None


def _text_of(sources: Sources, dataset: int, file: int, place: tuple[int, int]) -> str:
    """The beginning of a document's text, or why it cannot be shown."""
    from loader.text.records import RecordPlace
    from loader.text.roots import TextSource

    where = RecordPlace(*place)
    try:
        text = TextSource(sources.datasets[dataset], {}).texts(file, [where])[where]
    except TokenreelError as error:
        return f"({error.code}: {error.message})"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
