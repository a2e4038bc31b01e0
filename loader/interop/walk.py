"""A source's documents one by one, with their tokens in order, out of the samples that packing scattered them over.

A document stands with the first shard that holds part of it: first the documents that this shard holds whole, in the
order of its ``.docs``, then those that later shards go on with, by id. What is held is one shard's tokens and segments,
and the tokens of one document that lies in several shards.

Shape letters: N samples of a shard, T tokens of a sample, S segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..shards.dataset import Dataset
from ..shards.index_blocks import shared_documents
from ..shards.layout import TokenArray
from ..shards.segments import SegmentTable
from .request import shard_rows

__all__ = ["DocumentPart", "DocumentWalk"]


@dataclass(frozen=True)
class DocumentPart:
    """A document; where tokens between its segments are missing from the Dataset, a run of it without a gap.

    Attributes:
        document: its id.
        first_token: its first token here, counted inside the document: 0 unless this is a later run.
        table, rows_S: its segments, in order, are ``rows_S`` of ``table``.
        pieces: token ids of each segment, u2 or u4.
    """

    document: int
    first_token: int
    table: SegmentTable
    rows_S: NDArray[np.int64]
    pieces: list[TokenArray]

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments."""
        return sum(len(piece) for piece in self.pieces)


class DocumentWalk:
    """The documents of a Dataset's sources; everything read is verified."""

    def __init__(self, dataset: Dataset) -> None:
        """Find out which documents lie in several shards.

        Raises:
            DamageError: documents.npy is not what was written.
        """
        self._dataset = dataset
        self._shared = shared_documents(dataset)
        self._shared_ids = np.array(sorted(self._shared), np.uint64)

    def shards(self, source: str) -> Iterator[tuple[int, Iterator[DocumentPart]]]:
        """(row of shards.npy, the documents that stand there) of each shard of a source, in order.

        Raises:
            DamageError: while iterating: a shard is not what was written.
        """
        start = 0
        for row in shard_rows(self._dataset, source):
            stop = start + int(self._dataset.shards_R["num_samples"][row])
            yield row, self._documents(source, row, np.arange(start, stop))
            start = stop

    def _documents(self, source: str, row: int, sample_N: NDArray[np.int64]) -> Iterator[DocumentPart]:
        table = self._dataset.segments_of(source, sample_N)
        tokens = self._dataset.read_samples(source, sample_N).reshape(-1)
        rows_S = np.flatnonzero(~table.padding_S)
        order_S = np.lexsort((table.document_token_start_S[rows_S], table.document_row_S[rows_S]))
        rows_S = rows_S[order_S]
        ids_S = table.document_id_S[rows_S]
        shared_S = np.isin(ids_S, self._shared_ids)
        first_S = table.sample_index_S[rows_S] * self._dataset.manifest.seq_len + table.token_start_S[rows_S]
        firsts, stops = first_S.tolist(), (first_S + table.num_tokens_S[rows_S]).tolist()
        borders = _borders(table, rows_S)
        for start, stop in itertools.pairwise(borders):
            if not shared_S[start]:
                pieces = [tokens[firsts[i] : stops[i]] for i in range(start, stop)]
                yield _part(table, rows_S[start:stop], pieces)
        for document in np.unique(ids_S[shared_S]).tolist():
            if self._shared[document] == row:
                yield from self._shared_document(source, document)

    def _shared_document(self, source: str, document: int) -> Iterator[DocumentPart]:
        places = [samples_N for name, samples_N in self._dataset.samples_of_document(document) if name == source]
        sample_N = np.concatenate(places)
        table = self._dataset.segments_of(source, sample_N)
        rows_S = np.flatnonzero(table.document_id_S == np.uint64(document))
        rows_S = rows_S[~table.padding_S[rows_S]]
        rows_S = rows_S[np.argsort(table.document_token_start_S[rows_S], kind="stable")]
        for start, stop in itertools.pairwise(_gaps(table, rows_S)):
            mine_S = rows_S[start:stop]
            yield _part(table, mine_S, [self._piece(source, table, row) for row in mine_S.tolist()])

    def _piece(self, source: str, table: SegmentTable, row: int) -> TokenArray:
        start = int(table.token_start_S[row])
        sample = int(table.source_sample_S[row])
        return self._dataset.read_samples(source, [sample])[0, start : start + int(table.num_tokens_S[row])]


def _part(table: SegmentTable, rows_S: NDArray[np.int64], pieces: list[TokenArray]) -> DocumentPart:
    first = int(rows_S[0])
    return DocumentPart(
        int(table.document_id_S[first]), int(table.document_token_start_S[first]), table, rows_S, pieces
    )


def _borders(table: SegmentTable, rows_S: NDArray[np.int64]) -> list[int]:
    """Where, in segments sorted by document and place in it, another document or a gap begins; and the end."""
    if not len(rows_S):
        return [0]
    row_S = table.document_row_S[rows_S]
    start_S = table.document_token_start_S[rows_S]
    stop_S = start_S + table.num_tokens_S[rows_S]
    changes_S = (row_S[1:] != row_S[:-1]) | (start_S[1:] != stop_S[:-1])
    return [0, *(np.flatnonzero(changes_S) + 1).tolist(), len(rows_S)]


def _gaps(table: SegmentTable, rows_S: NDArray[np.int64]) -> list[int]:
    """As :func:`_borders` for segments of one document, whose rows differ from shard to shard."""
    start_S = table.document_token_start_S[rows_S]
    stop_S = start_S + table.num_tokens_S[rows_S]
    return [0, *(np.flatnonzero(start_S[1:] != stop_S[:-1]) + 1).tolist(), len(rows_S)]
