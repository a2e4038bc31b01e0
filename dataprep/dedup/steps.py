"""The two dedup stages as datatrove pipeline steps: sign every document, then decide once.

``SignDocuments`` (any number of tasks; file ``i`` belongs to task ``i % world_size``) writes into its folder, per
file index::

    documents.00012.npy   structured: record i8, record_start i8, size_bytes i8, hash_low u8, hash_high u8,
                          num_shingles i4
    signatures.00012.npy  (N, num_permutations) u4; absent unless "minhash" is among the methods
    rejects.00012.npy     structured: record i8, record_start i8, reason u1 (RejectReason)
    file.00012.json       FileSummary: num_records (lines, blank included), num_blank, num_documents, num_rejected,
                          stream_bytes, stream_hash (xxh3-128 of the decompressed bytes) under "summary", and the
                          xxh3-128 of the other files; written last = the file is signed

``DecideDocuments`` (one task, after all of them) reads these and the candidates' texts again, and writes into its
own folder::

    status.00012.npy      uint8 per record number of the file (Status), blank lines included
    removed.parquet       document u8, source, file, record, method, witness_document u8, witness_source, witness_file,
                          witness_record, similarity f8; file = relative path; in (source rank, path, record) order
    rejected.parquet      source, file, record, record_start, reason; same order
    counts.json           per source: files, records, blank, documents, bytes, rejected{reason}, removed{method},
                          held_out, kept, kept_bytes; and the dedup figures (candidates, similarities computed,
                          unverified pairs, miss table); written last = decided

Both are functions of data and configuration: task count, file order and threads change nothing but file indices.
Errors: DamageError (truncated input), RefusedError (input changed since it was signed), JobError (a source over
``max_reject_fraction`` or ``max_removed_fraction``, or without any document).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import JobError
from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.text.records import document_ids

from ..documents import InputFile, Status
from ..formats import FileSummary, ReadOptions
from ..holdout import hold_out
from . import METHODS, outputs, signatures
from .candidates import CandidateReader
from .config import DecideConfig, SignConfig
from .decide import decide
from .minhash import miss_table
from .table import DocumentTable, make_table

__all__ = ["DecideDocuments", "SignDocuments"]


class SignDocuments(PipelineStep):  # type: ignore[misc]
    """Read each input file once: rejects, content hashes, MinHash signatures."""

    name = "sign documents"
    type = "tokenreel"

    def __init__(self, inputs: Sequence[InputFile], config: SignConfig, folder: str | Path) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.folder = Path(folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Sign the files of this task; passes nothing on. Files whose ``file.N.json`` exists are signed already."""
        for file in range(rank, len(self.inputs), world_size):
            if not signatures.is_signed(self.inputs[file], file, self.folder):
                with self.track_time("file"):
                    summary = signatures.sign_file(self.inputs[file], file, self.config, self.folder)
                self.stat_update("documents", value=summary.num_documents, unit="file")
                self.stat_update("rejected", value=summary.num_rejected, unit="file")
                self.stat_update("bytes", value=summary.stream_bytes, unit="file")
        yield from ()


class DecideDocuments(PipelineStep):  # type: ignore[misc]
    """Decide the fate of every record from all signatures; one task."""

    name = "decide documents"
    type = "tokenreel"

    def __init__(
        self, inputs: Sequence[InputFile], config: DecideConfig, signed: str | Path, folder: str | Path
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.signed = Path(signed)
        self.folder = Path(folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write status, tables and counts; rank 0 works, other ranks have nothing to do."""
        if rank == 0:
            with self.track_time("job"):
                self._decide()
        yield from ()

    def _decide(self) -> None:
        config, files = self.config, range(len(self.inputs))
        summaries = [signatures.load_summary(self.signed, file) for file in files]
        rejects = [signatures.load_rejects(self.signed, file) for file in files]
        outputs.write_parquet(self.folder / "rejected.parquet", outputs.reject_table(self.inputs, rejects))
        outputs.check_rejects(self.inputs, summaries, config.ingest)
        table = make_table(self.inputs, [signatures.load_signed(self.signed, file) for file in files], config.dedup)
        id_N = _all_ids(self.inputs, table, config.salt)
        reader = CandidateReader(self.inputs, summaries, table, self._options())
        decision = decide(table, METHODS, config.dedup, config.holdout, reader)
        status_N = hold_out(decision.status_N, decision.component_N, id_N, config.holdout.fraction, config.seed)
        removals = outputs.removal_table(self.inputs, table, decision, id_N)
        outputs.write_parquet(self.folder / "removed.parquet", removals)
        counts = outputs.count_sources(self.inputs, summaries, rejects, table, status_N)
        outputs.check_removals(counts, config.dedup)
        self._write_status(summaries, rejects, table, status_N)
        misses = miss_table(config.dedup.minhash) if "minhash" in config.dedup.methods else {}
        record = {"sources": counts, "dedup": decision.figures, "miss_probability": misses}
        write_atomic(self.folder / "counts.json", canonical_json(record))
        self.stat_update("documents", value=len(status_N), unit="job")
        self.stat_update("kept", value=int((status_N == Status.KEPT).sum()), unit="job")

    def _options(self) -> ReadOptions:
        return ReadOptions(line_limit_bytes=self.config.ingest.line_limit_bytes)

    def _write_status(
        self,
        summaries: Sequence[FileSummary],
        rejects: Sequence[NDArray[Any]],
        table: DocumentTable,
        status_N: NDArray[np.uint8],
    ) -> None:
        order = np.argsort(table.file_N, kind="stable")
        stops = np.searchsorted(table.file_N[order], np.arange(len(self.inputs) + 1))
        for file, summary in enumerate(summaries):
            mine = order[stops[file] : stops[file + 1]]
            status_R = outputs.status_of_file(summary, rejects[file], table.record_N[mine], status_N[mine])
            write_atomic(self.folder / f"status.{file:05d}.npy", npy_bytes(status_R))


def _all_ids(inputs: Sequence[InputFile], table: DocumentTable, salt: int) -> NDArray[np.uint64]:
    """Document ids (uint64, N) of all documents.

    Raises:
        JobError: two documents share an id; another seed parts them.
    """
    id_N = np.zeros(len(table.file_N), np.uint64)
    order = np.argsort(table.file_N, kind="stable")
    stops = np.searchsorted(table.file_N[order], np.arange(len(inputs) + 1))
    for file, input_file in enumerate(inputs):
        mine = order[stops[file] : stops[file + 1]]
        id_N[mine] = document_ids(input_file.source, input_file.path, table.record_N[mine], salt)
    by_id = np.argsort(id_N, kind="stable")
    same = np.flatnonzero(id_N[by_id[1:]] == id_N[by_id[:-1]])
    if len(same):
        pair = [by_id[same[0]], by_id[same[0] + 1]]
        places = [f"{inputs[table.file_N[d]].path} record {table.record_N[d]}" for d in pair]
        raise JobError(
            "TR-DOCUMENT-COLLISION",
            f"two documents have the id {int(id_N[pair[0]]):016x}",
            " and ".join(places),
            "distinct ids (each input file listed once)",
            "set another seed",
        )
    return id_N
