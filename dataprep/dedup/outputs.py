"""What a decision leaves on disk: a status per record, the removal and reject tables, the counts and their limits.

Shapes: N documents in priority order, F files, R records of a file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.errors import JobError
from loader.files import write_atomic

from ..documents import InputFile, RejectReason, Status
from ..formats import FileSummary
from .config import DedupConfig, IngestConfig
from .decide import Decision
from .table import DocumentTable

__all__ = [
    "check_rejects",
    "check_removals",
    "count_sources",
    "file_order",
    "reject_table",
    "removal_table",
    "status_of_file",
    "write_parquet",
]

_REMOVED = {Status.REMOVED_EXACT: "exact", Status.REMOVED_MINHASH: "minhash"}


def file_order(inputs: Sequence[InputFile]) -> list[int]:
    """File indices by (source rank, source, path): the order of all tables, whatever the order of ``inputs``."""
    return sorted(range(len(inputs)), key=lambda file: (inputs[file].rank, inputs[file].source, inputs[file].path))


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table so that equal tables give equal bytes (one row group, no statistics of the writer's mood)."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=1 << 20, write_page_checksum=True)
    write_atomic(path, buffer.getvalue())


def status_of_file(
    summary: FileSummary, rejects: NDArray[Any], record_N: NDArray[np.int64], status_N: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Status (uint8) of the R records of one file from those of its N documents."""
    status_R = np.full(summary.num_records, Status.BLANK, np.uint8)
    status_R[rejects["record"]] = Status.REJECTED
    status_R[record_N] = status_N
    return status_R


def reject_table(inputs: Sequence[InputFile], rejects: Sequence[NDArray[Any]]) -> pa.Table:
    """All rejects: source, file, record, record_start, reason."""
    labels = {int(reason): reason.label for reason in RejectReason}
    columns: dict[str, list[Any]] = {"source": [], "file": [], "record": [], "record_start": [], "reason": []}
    for file in file_order(inputs):
        rows = rejects[file]
        columns["source"] += [inputs[file].source] * len(rows)
        columns["file"] += [inputs[file].path] * len(rows)
        columns["record"] += rows["record"].tolist()
        columns["record_start"] += rows["record_start"].tolist()
        columns["reason"] += [labels[reason] for reason in rows["reason"].tolist()]
    kinds = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.string())
    return pa.table(columns, schema=pa.schema(list(zip(columns, kinds, strict=True))))


def removal_table(
    inputs: Sequence[InputFile], table: DocumentTable, decision: Decision, id_N: NDArray[np.uint64]
) -> pa.Table:
    """All removals with their witnesses, in the order of (source rank, source, path, record)."""
    place_F = np.empty(len(inputs), np.int64)
    place_F[file_order(inputs)] = np.arange(len(inputs))
    gone = np.flatnonzero(decision.witness_N >= 0)
    gone = gone[np.lexsort((table.record_N[gone], place_F[table.file_N[gone]]))]
    witness = decision.witness_N[gone]

    def of_files(attribute: str, documents: NDArray[np.int64]) -> pa.Array:
        names = pa.array([getattr(file, attribute) for file in inputs], pa.string())
        return names.take(pa.array(table.file_N[documents]))

    methods = pa.array([_REMOVED[Status(status)] for status in decision.status_N[gone].tolist()], pa.string())
    return pa.table(
        {
            "document": pa.array(id_N[gone], pa.uint64()),
            "source": of_files("source", gone),
            "file": of_files("path", gone),
            "record": pa.array(table.record_N[gone], pa.int64()),
            "method": methods,
            "witness_document": pa.array(id_N[witness], pa.uint64()),
            "witness_source": of_files("source", witness),
            "witness_file": of_files("path", witness),
            "witness_record": pa.array(table.record_N[witness], pa.int64()),
            "similarity": pa.array(decision.similarity_N[gone], pa.float64()),
        }
    )


def _source_files(inputs: Sequence[InputFile]) -> dict[str, list[int]]:
    files: dict[str, list[int]] = {}
    for file in file_order(inputs):
        files.setdefault(inputs[file].source, []).append(file)
    return files


def count_sources(
    inputs: Sequence[InputFile],
    summaries: Sequence[FileSummary],
    rejects: Sequence[NDArray[Any]],
    table: DocumentTable,
    status_N: NDArray[np.uint8],
) -> dict[str, dict[str, Any]]:
    """Counts per source; documents = kept + held out + removed, records = documents + rejected + blank."""
    counts = {}
    for source, files in _source_files(inputs).items():
        mine = table.source_N == table.source_names.index(source)
        status, size = status_N[mine], table.size_N[mine]
        reasons = np.concatenate([rejects[file]["reason"] for file in files])
        counts[source] = {
            "files": len(files),
            "records": sum(summaries[file].num_records for file in files),
            "blank": sum(summaries[file].num_blank for file in files),
            "documents": int(mine.sum()),
            "bytes": int(size.sum()),
            "rejected": {reason.label: int((reasons == reason).sum()) for reason in RejectReason if reason in reasons},
            "removed": {name: int((status == code).sum()) for code, name in _REMOVED.items()},
            "held_out": int((status == Status.HELD_OUT).sum()),
            "held_out_bytes": int(size[status == Status.HELD_OUT].sum()),
            "kept": int((status == Status.KEPT).sum()),
            "kept_bytes": int(size[status == Status.KEPT].sum()),
        }
    return counts


def check_rejects(inputs: Sequence[InputFile], summaries: Sequence[FileSummary], config: IngestConfig) -> None:
    """Fail where a source rejects too much or holds nothing.

    Raises:
        JobError: naming the source.
    """
    for source, files in _source_files(inputs).items():
        rejected = sum(summaries[file].num_rejected for file in files)
        documents = sum(summaries[file].num_documents for file in files)
        if rejected > config.max_reject_fraction * (rejected + documents):
            raise JobError(
                "TR-INGEST-REJECTS",
                f"source {source!r}: {rejected} of {rejected + documents} records are rejected",
                f"source {source}, see rejected.parquet",
                f"at most {config.max_reject_fraction:.2%}",
                "look at the reasons; text or format of the source may be wrong, or raise ingest.max_reject_fraction",
            )
        if documents == 0:
            raise JobError(
                "TR-INGEST-EMPTY", f"source {source!r} holds no document", f"source {source}", "at least one document"
            )


def check_removals(counts: dict[str, dict[str, Any]], config: DedupConfig) -> None:
    """Fail where dedup takes too much of a source.

    Raises:
        JobError: naming the source.
    """
    for source, count in counts.items():
        removed = sum(count["removed"].values())
        if removed > config.max_removed_fraction * count["documents"]:
            raise JobError(
                "TR-DEDUP-REMOVED",
                f"source {source!r}: {removed} of {count['documents']} documents are duplicates",
                f"source {source}, see removed.parquet",
                f"at most {config.max_removed_fraction:.2%}",
                "look at the witnesses; let the source opt out, or raise dedup.max_removed_fraction",
            )
