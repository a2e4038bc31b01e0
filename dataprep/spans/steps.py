"""The four span stages as datatrove pipeline steps; what they compute is said in the package's docstring.

``FindAnchors`` (file ``i`` belongs to task ``i % world_size``), ``FindRepeats`` (one task) and ``ListGrams`` (like the
first) leave scratch for the next stage. ``CutSpans`` (one task) writes, per file index::

    cuts.00012.npy        rows of dataprep.cuts.CUT_DTYPE, method "ngram"; the witness is the document of the first
                          occurrence, which may be the document itself
    status.00012.npy      uint8 per record (Status): as decided, documents cut whole turned to REMOVED_NGRAM
    removed.parquet       documents cut whole; the witness is kept, and its n-gram is the document's first one, or that
                          of a removed document in between; similarity and reason are null
    spans.json            per source: documents_cut and bytes_cut of documents that stay, documents_removed,
                          bytes_removed; written last

A cut's row is a passage of which every n-gram has its first occurrence in the witness; rows of one document may
overlap, and touch wherever the words they cover do. Documents that are neither kept nor held out, and sources that opt
out of ``ngram``, are neither cut nor witnesses. All this is a function of data and configuration: neither
``memory_bytes``, nor task count, nor file order shapes it.

Errors: DamageError (an earlier stage's file is missing, cut short, or does not fit), RefusedError (an input changed
since it was signed), JobError (``canary``: a planted passage was not found).

Memory beside the interpreter: about ``memory_bytes``, and what the longest document needs (18 bytes a byte at worst, 5
usually); in ``CutSpans`` also 60 bytes a document of the job and 300 bytes a cut of the largest file. On disk
``anchors`` takes 40 bytes for every 13 words, ``grams`` at most 30 a word of repeated text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep

from loader.canonical import canonical_json
from loader.files import write_atomic
from loader.shards.access import npy_bytes

from ..cuts import save_cuts
from ..dedup.config import DecideConfig
from ..documents import InputFile, Status
from .anchors import find_repeats, list_anchors
from .canary import check_canary
from .grams import list_file_grams
from .outputs import Places, file_outcome, removed_places, write_removals
from .resolve import file_pieces, gram_runs, settle_runs
from .store import AppendedFiles, FileDocuments, SpanFolders, load_array, load_documents

__all__ = ["CutSpans", "FindAnchors", "FindRepeats", "ListGrams"]


class _SpanStep(PipelineStep):  # type: ignore[misc]
    """What all four are made of."""

    type = "tokenreel"

    def __init__(
        self, inputs: Sequence[InputFile], config: DecideConfig, folders: SpanFolders, memory_bytes: int = 1 << 30
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.folders = folders
        self.memory_bytes = max(memory_bytes, 1 << 10)

    def _count(self, figures: dict[str, int], unit: str) -> None:
        for name, value in figures.items():
            self.stat_update(name, value=value, unit=unit)


class FindAnchors(_SpanStep):
    """Read each file's documents that take part and write their anchors."""

    name = "find anchors"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Work on the files of this task; passes nothing on."""
        for file in range(rank, len(self.inputs), world_size):
            with self.track_time("file"):
                self._count(list_anchors(self.inputs[file], file, self.config, self.folders, self.memory_bytes), "file")
        yield from ()


class FindRepeats(_SpanStep):
    """Find the anchors that occur at least twice; one task. With ``canary`` the self-test comes first."""

    name = "find repeated anchors"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Rank 0 works, other ranks have nothing to do."""
        if rank == 0:
            if self.config.dedup.canary:
                self._count({"planted": check_canary(self.config.dedup.ngram.n)}, "job")
            with self.track_time("job"):
                repeated = find_repeats(len(self.inputs), self.folders, self.memory_bytes)
            self._count({"repeated anchors": repeated}, "job")
        yield from ()


class ListGrams(_SpanStep):
    """Read the documents with repeated anchors again and write their n-grams."""

    name = "list n-grams"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Work on the files of this task; passes nothing on."""
        for file in range(rank, len(self.inputs), world_size):
            with self.track_time("file"):
                self._count(
                    list_file_grams(self.inputs[file], file, self.config, self.folders, self.memory_bytes), "file"
                )
        yield from ()


class CutSpans(_SpanStep):
    """Find first occurrences and write cuts, statuses, removals and the account; one task."""

    name = "cut spans"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Rank 0 works, other ranks have nothing to do."""
        if rank == 0:
            with self.track_time("job"):
                self._cut()
        yield from ()

    def _cut(self) -> None:
        folders = self.folders
        folders.spans.mkdir(parents=True, exist_ok=True)
        documents = [load_documents(one, file, folders) for file, one in enumerate(self.inputs)]
        places = Places(self.inputs, documents, self.config.salt)
        runs = gram_runs(len(self.inputs), folders)
        account = {one.source: _no_cuts() for one in self.inputs}
        ranks, witnesses = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        with AppendedFiles() as scratch:
            settle_runs(runs, documents, folders, self.memory_bytes, scratch)
            for file, one in enumerate(self.inputs):
                mine = [run for run in runs if run.file == file]
                pieces = file_pieces(mine, folders, scratch, self.config.dedup.ngram.n)
                words_D = load_array(folders.grams / f"words.{file:05d}.npy", len(documents[file].record_D))
                outcome = file_outcome(pieces, words_D, documents[file], places)
                save_cuts(folders.spans, file, outcome.cuts)
                self._write_status(file, documents[file], outcome.removed_D)
                ranks.append(documents[file].rank_D[outcome.removed_D])
                witnesses.append(outcome.removed_witness_K)
                counts = account[one.source]
                counts["documents_cut"] += outcome.documents_cut
                counts["bytes_cut"] += outcome.bytes_cut
                counts["documents_removed"] += int(outcome.removed_D.sum())
                counts["bytes_removed"] += int(documents[file].size_D[outcome.removed_D].sum())
        rank_K = np.concatenate(ranks)
        witness_K = removed_places(rank_K, np.concatenate(witnesses))
        write_removals(folders.spans / "removed.parquet", self.inputs, places, rank_K, witness_K)
        write_atomic(folders.spans / "spans.json", canonical_json({"sources": account}))

    def _write_status(self, file: int, documents: FileDocuments, removed_D: Any) -> None:
        status_R = documents.status_R.copy()
        status_R[documents.record_D[removed_D]] = Status.REMOVED_NGRAM
        write_atomic(self.folders.spans / f"status.{file:05d}.npy", npy_bytes(status_R))


def _no_cuts() -> dict[str, int]:
    return {"documents_cut": 0, "bytes_cut": 0, "documents_removed": 0, "bytes_removed": 0}
