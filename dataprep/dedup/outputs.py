"""What a decision leaves on disk: a status per record, the removal and reject tables, the counts and their limits.

Everything is written file by file of the input, in the order of (source rank, source, path), so memory does not grow
with the job. Shapes: N documents in priority order, D documents of a file, R records of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.errors import JobError

from ..documents import REMOVED, InputFile, RejectReason, Status
from ..formats import FileSummary
from ..tables import REMOVED_SCHEMA
from .config import DedupConfig, IngestConfig
from .order_keys import order_field
from .table import DocumentTable

__all__ = [
    "REJECT_SCHEMA",
    "FileFates",
    "SourceCounts",
    "Witnesses",
    "check_order_keys",
    "check_rejects",
    "check_removals",
    "file_order",
    "reject_rows",
    "removal_rows",
    "status_of_file",
]

REJECT_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("file", pa.string()),
        ("record", pa.int64()),
        ("record_start", pa.int64()),
        ("reason", pa.string()),
    ]
)
_IS_REMOVED = np.isin(np.arange(256), REMOVED)
_METHODS = pa.array([Status(code).method if _IS_REMOVED[code] else None for code in range(256)], pa.string())


def file_order(inputs: Sequence[InputFile]) -> list[int]:
    """File indices by (source rank, source, path): the order of all tables, whatever the order of ``inputs``."""
    return sorted(range(len(inputs)), key=lambda file: (inputs[file].rank, inputs[file].source, inputs[file].path))


@dataclass(frozen=True)
class FileFates:
    """The D documents of one file in record order.

    Attributes:
        record_D, size_D: int64 record numbers and bytes.
        number_D: int32 numbers in the table, -1 where a screen took the document.
        status_D: uint8, ``Status``.
        id_D: uint64 document ids.
        reason_D: why a screen took it; None elsewhere.
    """

    record_D: NDArray[np.int64]
    size_D: NDArray[np.int64]
    number_D: NDArray[np.int32]
    status_D: NDArray[np.uint8]
    id_D: NDArray[np.uint64]
    reason_D: Sequence[str | None]


def status_of_file(summary: FileSummary, rejects: NDArray[Any], fates: FileFates) -> NDArray[np.uint8]:
    """Status (uint8) of the R records of one file from those of its documents."""
    status_R = np.full(summary.num_records, Status.BLANK, np.uint8)
    status_R[rejects["record"]] = Status.REJECTED
    status_R[fates.record_D] = fates.status_D
    return status_R


def reject_rows(inputs: InputFile, rejects: NDArray[Any]) -> pa.RecordBatch:
    """Rejects of one file."""
    labels = {int(reason): reason.label for reason in RejectReason}
    columns = [
        _constant(inputs.source, len(rejects)),
        _constant(inputs.path, len(rejects)),
        pa.array(rejects["record"], pa.int64()),
        pa.array(rejects["record_start"], pa.int64()),
        pa.array([labels[reason] for reason in rejects["reason"].tolist()], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REJECT_SCHEMA)


def _constant(value: str, count: int) -> pa.Array:
    return pa.array([value], pa.string()).take(pa.array(np.zeros(count, np.int64)))


@dataclass(frozen=True)
class Witnesses:
    """Of N documents their ids, which one is whose witness, and how similar the two are."""

    id_N: NDArray[np.uint64]
    witness_N: NDArray[np.int32]
    similarity_N: NDArray[np.float64]


def removal_rows(
    inputs: Sequence[InputFile],
    file: int,
    table: DocumentTable,
    fates: FileFates,
    witnesses: Witnesses,
    superseding: bool = False,
) -> pa.RecordBatch:
    """Removals of one file with their witnesses; those by screens have none, those by dedup no reason.

    With ``superseding`` only those that would have outranked their witness, a document of an earlier run.
    """
    gone = np.flatnonzero(_IS_REMOVED[fates.status_D])
    if superseding:
        gone = gone[fates.number_D[gone] >= 0]
        gone = gone[table.outranks(fates.number_D[gone], witnesses.witness_N[fates.number_D[gone]])]
    number = fates.number_D[gone]
    columns = [
        pa.array(fates.id_D[gone], pa.uint64()),
        _constant(inputs[file].source, len(gone)),
        _constant(inputs[file].path, len(gone)),
        pa.array(fates.record_D[gone], pa.int64()),
        _METHODS.take(pa.array(fates.status_D[gone])),
        *_witness_columns(inputs, table, number, witnesses),
        pa.array([fates.reason_D[place] for place in gone.tolist()], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REMOVED_SCHEMA)


def _witness_columns(
    inputs: Sequence[InputFile], table: DocumentTable, number_C: NDArray[np.int32], witnesses: Witnesses
) -> list[pa.Array]:
    """The five columns about the witnesses of documents; null where the number is -1. An earlier document has no
    file."""
    if not len(witnesses.id_N):
        return [pa.nulls(len(number_C), field.type) for field in list(REMOVED_SCHEMA)[5:10]]
    alone = number_C < 0
    witness_C = np.where(alone, 0, witnesses.witness_N[number_C])
    file_C = table.file_N[witness_C]
    paths, sources = pa.array([one.path for one in inputs]), pa.array(table.source_names)
    in_file = file_C >= 0
    return [
        pa.array(witnesses.id_N[witness_C], pa.uint64(), mask=alone),
        sources.take(pa.array(table.source_N[witness_C], mask=alone)),
        paths.take(pa.array(file_C, mask=alone | ~in_file)),
        pa.array(table.record_N[witness_C], pa.int64(), mask=alone | ~in_file),
        pa.array(witnesses.similarity_N[number_C], pa.float64(), mask=alone),
    ]


class SourceCounts:
    """Counts per source, file by file; documents = kept + held out + removed, records = documents + rejected +
    blank."""

    def __init__(self, inputs: Sequence[InputFile]) -> None:
        self._inputs = inputs
        self.counts: dict[str, dict[str, Any]] = {
            inputs[file].source: {
                **dict.fromkeys(("files", "records", "blank", "documents", "bytes"), 0),
                "rejected": {},
                "removed": {status.method: 0 for status in REMOVED},
                **dict.fromkeys(("held_out", "held_out_bytes", "kept", "kept_bytes"), 0),
            }
            for file in file_order(inputs)
        }

    def add(self, file: int, summary: FileSummary, rejects: NDArray[Any], fates: FileFates) -> None:
        """Count one file.

        Raises:
            AssertionError: the parts are not the whole (an error of this program).
        """
        count = self.counts[self._inputs[file].source]
        documents_S = np.bincount(fates.status_D, minlength=256)
        bytes_S = np.zeros(256, np.int64)
        np.add.at(bytes_S, fates.status_D, fates.size_D)
        count["files"] += 1
        count["records"] += summary.num_records
        count["blank"] += summary.num_blank
        count["documents"] += len(fates.status_D)
        count["bytes"] += int(bytes_S.sum())
        for name, status in (("held_out", Status.HELD_OUT), ("kept", Status.KEPT)):
            count[name] += int(documents_S[status])
            count[f"{name}_bytes"] += int(bytes_S[status])
        for status in REMOVED:
            count["removed"][status.method] += int(documents_S[status])
        for reason in RejectReason:
            found = int((rejects["reason"] == reason).sum())
            if found:
                count["rejected"][reason.label] = count["rejected"].get(reason.label, 0) + found
        parts = documents_S[[Status.HELD_OUT, Status.KEPT, *REMOVED]].sum() + summary.num_blank + len(rejects)
        if parts != summary.num_records:
            raise AssertionError(f"file {file}: {parts} of {summary.num_records} records have a fate")


def check_rejects(
    inputs: Sequence[InputFile], summaries: Sequence[FileSummary], config: IngestConfig, folder: Path
) -> None:
    """Fail where a source rejects too much or holds nothing; ``folder`` has the table of rejects.

    Raises:
        JobError: naming the source.
    """
    for source, files in _source_files(inputs).items():
        rejected = sum(summaries[file].num_rejected for file in files)
        documents = sum(summaries[file].num_documents for file in files)
        if _share(rejected, rejected + documents) > config.max_reject_fraction:
            raise JobError(
                "TR-INGEST-REJECTS",
                f"source {source!r}: {rejected} of {rejected + documents} records are rejected",
                f"source {source}, see {folder / 'rejected.parquet'}",
                f"at most {config.max_reject_fraction:.2%}",
                "look at the reasons; text or format of the source may be wrong, or raise ingest.max_reject_fraction",
            )
        if documents == 0:
            raise JobError(
                "TR-INGEST-EMPTY", f"source {source!r} holds no document", f"source {source}", "at least one document"
            )


def _share(part: int, whole: int) -> float:
    """A share that equals the decimal it is compared with: 29 of 100 are 0.29, but 0.29 of 100 are less than 29."""
    return part / whole if whole else 0.0


def _source_files(inputs: Sequence[InputFile]) -> dict[str, list[int]]:
    files: dict[str, list[int]] = {}
    for file in file_order(inputs):
        files.setdefault(inputs[file].source, []).append(file)
    return files


def check_order_keys(
    inputs: Sequence[InputFile], missing_F: Sequence[int], summaries: Sequence[FileSummary], config: DedupConfig
) -> dict[str, int]:
    """Documents per source without the date or quality that the keep policy ranks by; {} for other policies.

    Raises:
        JobError: none of a source's documents has what its ``date`` or ``quality`` names: most likely it is misspelled.
    """
    missing = {}
    for source, files in _source_files(inputs).items():
        field_name = order_field(inputs[files[0]], config.keep)
        if field_name is None:
            continue
        missing[source] = sum(missing_F[file] for file in files)
        if 1 < missing[source] == sum(summaries[file].num_documents for file in files):
            raise JobError(
                "TR-DEDUP-NOFIELD",
                f"source {source!r}: no document has a readable {field_name!r}, which dedup.keep ranks by",
                f"source {source}",
                "ISO 8601 text or seconds for newest, a number for quality",
                "correct the field's name in the source's date or quality, or leave it out",
            )
    return missing


def check_removals(counts: dict[str, dict[str, Any]], config: DedupConfig, folder: Path) -> None:
    """Fail where dedup takes too much of a source; what screens take is theirs to judge. ``folder`` has the table of
    removals.

    Raises:
        JobError: naming the source.
    """
    from . import METHODS

    pairs = [method.status.method for method in METHODS.values() if method.kind == "pairs"]
    for source, count in counts.items():
        removed = sum(count["removed"][name] for name in pairs)
        if _share(removed, count["documents"]) > config.max_removed_fraction:
            raise JobError(
                "TR-DEDUP-REMOVED",
                f"source {source!r}: {removed} of {count['documents']} documents are duplicates",
                f"source {source}, see {folder / 'removed.parquet'}",
                f"at most {config.max_removed_fraction:.2%}",
                "look at the witnesses; let the source opt out, or raise dedup.max_removed_fraction",
            )
