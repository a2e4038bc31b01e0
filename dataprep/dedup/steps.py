"""The two dedup stages as datatrove pipeline steps: sign every document, then decide once.

``SignDocuments`` (any number of tasks; file ``i`` belongs to task ``i % world_size``) writes into its folder, per
file index, what ``signatures`` describes: ``documents.N.npy`` (record, record_start, size_bytes, hash_low, hash_high,
num_shingles, order_key), ``signatures.N.npy`` with ``minhash``, ``simhash.N.npy`` with ``simhash``, ``rejects.N.npy``
and last ``file.N.json``.

``DecideDocuments`` (one task, after all of them) reads these and the candidates' texts again, and writes into its
own folder::

    status.00012.npy      uint8 per record number of the file (Status), blank lines included
    rank.00012.npy        int64 per document of the file: its place in the priority order, -1 where a screen took it;
                          only if passages are cut or an Index is written
    removed.parquet       document u8, source, file, record, method, witness_document u8, witness_source, witness_file,
                          witness_record, similarity f8, reason; file = relative path; in (source rank, source, path,
                          record) order. Removals by screens have a reason and no witness; a witness of an earlier run
                          has no file
    superseded.parquet    those of them that would outrank their witness, which an earlier run had kept already
    rejected.parquet      source, file, record, record_start, reason; same order
    counts.json           per source: files, records, blank, documents, bytes, rejected{reason}, removed{method},
                          held_out, kept, kept_bytes; and the dedup figures (candidates, similarities computed,
                          unverified pairs, miss table); written last = decided

Both are functions of data and configuration: task count, file order, threads, memory and partitions change nothing but
file indices. Errors: DamageError (truncated input), RefusedError (input changed since it was signed), JobError (a
source over ``max_reject_fraction`` or ``max_removed_fraction``, or without any document).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import ConfigError, JobError
from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.text.records import document_ids

from ..documents import InputFile, Status
from ..formats import FileSummary, read_options
from ..holdout import hold_out
from ..tables import REMOVED_SCHEMA, write_batches
from . import METHODS, outputs, signatures
from .canary import NO_CANARIES, plant
from .candidates import CandidateReader, SignedFiles, SignedReader
from .config import DecideConfig, SignConfig
from .decide import Decision, Reads, decide, pair_methods
from .index import Index, load_index
from .minhash import miss_table
from .screens import Screens
from .spill import Workspace, forget_pages, scratch_folder
from .table import DocumentTable, SignedFile, make_table

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
        self,
        inputs: Sequence[InputFile],
        config: DecideConfig,
        *folders: str | Path,
        screens: Sequence[tuple[Status, str | Path]] = (),
        indexes: Sequence[str | Path] = (),
        memory_bytes: int = 4 << 30,
        partitions: int = 1,
    ) -> None:
        """
        Args:
            inputs: the files.
            config: what shapes the output.
            folders: the one that ``SignDocuments`` filled, and the one for the output (and scratch files meanwhile).
            screens: (status, folder with verdicts) of the screens in front, in their order.
            indexes: what earlier runs kept (``config.dedup.against``), better ones first.
            memory_bytes: bound of memory, beside the program itself. Columns of about 150 bytes a document are always
                held; from what they leave (at least an eighth) everything else takes its part.
            partitions: at least so many partitions of the work, for tests.
        """
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.signed, self.folder = (Path(folder) for folder in folders)
        self.screens = tuple((status, Path(place)) for status, place in screens)
        self.indexes = tuple(Path(place) for place in indexes)
        self.memory_bytes = memory_bytes
        self.partitions = partitions

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write status, tables and counts; rank 0 works, other ranks have nothing to do."""
        if rank == 0:
            with self.track_time("job"), scratch_folder(self.folder) as scratch:
                self._decide(Workspace(scratch, self.memory_bytes, self.partitions))
        yield from ()

    def _decide(self, workspace: Workspace) -> None:
        config, dedup = self.config, self.config.dedup
        summaries = [signatures.load_summary(self.signed, file) for file in range(len(self.inputs))]
        write_batches(self.folder / "rejected.parquet", outputs.REJECT_SCHEMA, self._reject_rows())
        outputs.check_rejects(self.inputs, summaries, config.ingest, self.folder)
        missing_F = [signatures.missing_order_keys(self.signed, file) for file in range(len(self.inputs))]
        unranked = outputs.check_order_keys(self.inputs, missing_F, summaries, dedup)
        load = SignedFiles(self.signed, dedup)
        screens = Screens(self.screens, [summary.num_records for summary in summaries])
        table, decision, id_P = self._decided(summaries, load, screens, workspace)
        fates = _Fates(self, load, (table, decision, id_P), screens)
        for name, superseding in (("removed", False), ("superseded", True)):
            rows = fates.removal_rows(superseding)
            write_batches(self.folder / f"{name}.parquet", REMOVED_SCHEMA, rows)
        superseded = pq.read_metadata(self.folder / "superseded.parquet").num_rows
        counts = outputs.SourceCounts(self.inputs)
        for file, summary in enumerate(summaries):
            counts.add(file, summary, signatures.load_rejects(self.signed, file), fates.of_file(file))
        outputs.check_removals(counts.counts, dedup, self.folder)
        self._write_status(summaries, fates)
        misses = miss_table(dedup.minhash) if "minhash" in dedup.methods else {}
        figures = {**decision.figures, "superseded": superseded, "without_order_key": unranked}
        record = {"sources": counts.counts, "dedup": figures, "miss_probability": misses}
        write_atomic(self.folder / "counts.json", canonical_json(record))
        self.stat_update("documents", value=decision.figures["documents"], unit="job")
        self.stat_update("kept", value=sum(count["kept"] for count in counts.counts.values()), unit="job")

    def _decided(
        self,
        summaries: Sequence[FileSummary],
        load: Callable[[int], SignedFile],
        screens: Screens,
        workspace: Workspace,
    ) -> tuple[DocumentTable, Decision, NDArray[np.uint64]]:
        """The table, what was decided of it, and the ids of all documents by position."""
        config, dedup = self.config, self.config.dedup
        if self.indexes and dedup.decision == "union_find":
            raise ConfigError(
                "TR-DEDUP-AGAINST",
                "clusters know no document that stays whatever happens",
                "dedup.against",
                "decision leader or estimate",
            )
        earlier = [load_index(place, dedup) for place in self.indexes]
        id_P = _all_ids(self.inputs, load, earlier, config.salt)
        canaries = NO_CANARIES
        if dedup.canary and dedup.decision != "union_find":
            new_id_P = id_P[sum(len(index.documents) for index in earlier) :]
            canaries = plant(self.inputs, config, load, screens.took, new_id_P)
        inputs = (*self.inputs, *canaries.inputs)
        load_any = canaries.behind(len(self.inputs), load)

        def took(file: int) -> NDArray[np.bool_] | None:
            return screens.took(file) if file < len(self.inputs) else None

        table = make_table(inputs, load_any, dedup, pair_methods(METHODS, dedup), took, earlier)
        table = replace(table, num_planted=len(canaries.inputs))
        options = read_options(config.ingest)
        read_sets = CandidateReader(self.inputs, summaries, table, options, earlier)
        reads = Reads(SignedReader(table, load_any, earlier), canaries.with_sets(table, read_sets))
        decision = decide(table, METHODS, (dedup, config.holdout), reads, workspace)
        if dedup.canary:
            decision.figures["canaries"] = canaries.check(table, decision, dedup)
        return table, decision, id_P

    def _reject_rows(self) -> Iterator[pa.RecordBatch]:
        for file in outputs.file_order(self.inputs):
            yield outputs.reject_rows(self.inputs[file], signatures.load_rejects(self.signed, file))

    def _write_status(self, summaries: Sequence[FileSummary], fates: _Fates) -> None:
        dedup = self.config.dedup
        ranks = dedup.write_index or any(METHODS[name].kind == "spans" for name in dedup.methods)
        for file, summary in enumerate(summaries):
            mine = fates.of_file(file)
            status_R = outputs.status_of_file(summary, signatures.load_rejects(self.signed, file), mine)
            write_atomic(self.folder / f"status.{file:05d}.npy", npy_bytes(status_R))
            if ranks:
                write_atomic(self.folder / f"rank.{file:05d}.npy", npy_bytes(mine.number_D.astype(np.int64)))


class _Fates:
    """A decision and the verdicts of screens, file by file."""

    def __init__(
        self,
        step: DecideDocuments,
        load: Callable[[int], SignedFile],
        decided: tuple[DocumentTable, Decision, NDArray[np.uint64]],
        screens: Screens,
    ) -> None:
        table, decision, id_P = decided
        self._inputs, self._load, self._table, self._screens = step.inputs, load, table, screens
        number_P = table.number_P[: len(id_P)]
        going = number_P >= 0
        id_N = np.zeros(len(table.file_N), np.uint64)
        id_N[: table.num_earlier] = id_P[: table.num_earlier]
        id_N[number_P[going]] = id_P[going]
        self._id_P = id_P
        component_N = decision.component_N.astype(np.int64)
        fraction = step.config.holdout.fraction
        self._status_N = hold_out(decision.status_N, component_N, id_N, fraction, step.config.seed)
        self._witnesses = outputs.Witnesses(id_N, decision.witness_N, decision.similarity_N)

    def of_file(self, file: int) -> outputs.FileFates:
        """The documents of one file."""
        documents = self._load(file).documents
        mine = slice(*self._table.start_F[file : file + 2].tolist())
        number_D = self._table.number_P[mine]
        record_D = np.ascontiguousarray(documents["record"])
        status_D, reason_D = self._screens.fates(file, record_D)
        going = number_D >= 0
        status_D[going] = self._status_N[number_D[going]]
        sizes = np.ascontiguousarray(documents["size_bytes"])
        forget_pages(documents)
        return outputs.FileFates(record_D, sizes, number_D, status_D, self._id_P[mine], reason_D)

    def removal_rows(self, superseding: bool) -> Iterator[pa.RecordBatch]:
        """Rows of the removal table (or of that of superseded documents) in its order."""
        for file in outputs.file_order(self._inputs):
            if superseding and not self._table.num_earlier:
                continue
            fates = self.of_file(file)
            yield outputs.removal_rows(self._inputs, file, self._table, fates, self._witnesses, superseding)


def _all_ids(
    inputs: Sequence[InputFile], load: Callable[[int], SignedFile], earlier: Sequence[Index], salt: int
) -> NDArray[np.uint64]:
    """Document ids (uint64) by position.

    Raises:
        JobError: two documents share an id; another seed parts them.
    """
    parts = []
    for file, one in enumerate(inputs):
        documents = load(file).documents
        parts.append(document_ids(one.source, one.path, np.ascontiguousarray(documents["record"]), salt))
        forget_pages(documents)
    id_P = np.concatenate([np.zeros(0, np.uint64), *parts])
    ordered = np.sort(id_P)
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(same):
        pair = np.flatnonzero(id_P == ordered[same[0]])[:2].tolist()
        stops = np.cumsum([len(part) for part in parts])
        places = []
        for position in pair:
            file = int(np.searchsorted(stops, position, side="right"))
            record = load(file).documents["record"][position - int(stops[file]) + len(parts[file])]
            places.append(f"{inputs[file].path} record {record}")
        raise JobError(
            "TR-DOCUMENT-COLLISION",
            f"two documents have the id {int(ordered[same[0]]):016x}",
            " and ".join(places),
            "distinct ids (each input file listed once)",
            "set another seed",
        )
    return np.concatenate([*(index.documents["id"] for index in earlier), id_P])
