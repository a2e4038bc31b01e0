"""Parquet tables of a job, written and put together in bounded memory; equal rows give equal bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loader.files import fsync_folder, make_folder, temporary_path
from loader.text.records import document_ids

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = [
    "CUTS_SCHEMA",
    "REMOVED_SCHEMA",
    "copy_tables",
    "cut_batches",
    "emptied_batches",
    "followed_rows",
    "rows_of",
    "write_batches",
    "write_parquet",
]

REMOVED_SCHEMA = pa.schema(
    [
        ("document", pa.uint64()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("record", pa.int64()),
        ("method", pa.string()),
        ("witness_document", pa.uint64()),
        ("witness_source", pa.string()),
        ("witness_file", pa.string()),
        ("witness_record", pa.int64()),
        ("similarity", pa.float64()),
        ("reason", pa.string()),
    ]
)
"""Columns of removed.parquet, whoever removed."""
CUTS_SCHEMA = pa.schema(
    [
        ("document", pa.uint64()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("record", pa.int64()),
        ("method", pa.string()),
        ("byte_start", pa.int64()),
        ("byte_count", pa.int64()),
        ("witness_document", pa.uint64()),
    ]
)
_ROWS_PER_GROUP = 1 << 16


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches as one Parquet file, durably and under a temporary name first. Row groups have a fixed number of
    rows however the batches were cut, so the bytes depend on the rows alone."""
    make_folder(path.parent)
    temporary = temporary_path(path)
    try:
        with pq.ParquetWriter(
            temporary, schema, compression="zstd", write_page_checksum=True, store_schema=False
        ) as out:
            for table in _regrouped(schema, batches):
                out.write_table(table, row_group_size=_ROWS_PER_GROUP)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a failing write does not say where
        raise
    finally:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a whole table so that equal tables give equal bytes."""
    write_batches(path, table.schema, table.to_batches())


def _regrouped(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of ``_ROWS_PER_GROUP``; the last one may be shorter."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        while rows >= _ROWS_PER_GROUP:
            table = pa.Table.from_batches(waiting, schema)
            yield table.slice(0, _ROWS_PER_GROUP).combine_chunks()
            waiting = table.slice(_ROWS_PER_GROUP).to_batches()
            rows -= _ROWS_PER_GROUP
    if rows:
        yield pa.Table.from_batches(waiting, schema).combine_chunks()


def copy_tables(path: Path, parts: Sequence[Path], schema: pa.Schema) -> None:
    """All rows of ``parts`` one after another in one table of ``schema``; a column that a part lacks is null."""
    write_batches(path, schema, rows_of(parts, schema))


def rows_of(parts: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of tables one after another, as batches of ``schema``."""
    for part in parts:
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(_ROWS_PER_GROUP):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def followed_rows(batches: Iterable[pa.RecordBatch], later: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows of removed.parquet whose witness was removed by a ``later`` table (same columns) get that one's witness.

    Dedup decides before passages are cut, so a witness may be cut whole afterwards: all it said stands in its own
    witness, which stays; where several stages together cut it there is none, and the row says so by a null. The row
    keeps its similarity, and a ``reason`` that names the document in between.
    """
    order = np.argsort(later.column("document").to_numpy(), kind="stable")
    later = later.take(pa.array(order)).combine_chunks()
    gone = later.column("document").to_numpy()
    if not len(gone):
        yield from batches
        return
    names = ("witness_document", "witness_source", "witness_file", "witness_record")
    for batch in batches:
        witness = batch.column("witness_document").fill_null(0).to_numpy()
        place = np.minimum(np.searchsorted(gone, witness), len(gone) - 1)
        moved = (gone[place] == witness) & batch.column("witness_document").is_valid().to_numpy(zero_copy_only=False)
        if moved.any():
            found, mask = later.take(pa.array(place)), pa.array(moved)
            between = pa.array([f"by way of {one:016x}, cut whole" for one in witness.tolist()], pa.string())
            columns = {
                **{name: pc.if_else(mask, found.column(name).combine_chunks(), batch.column(name)) for name in names},
                "reason": pc.if_else(mask, between, batch.column("reason")),
            }
            arrays = [columns.get(name, batch.column(name)) for name in batch.schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        else:
            yield batch


def emptied_batches(pipeline: Pipeline, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of removed.parquet (``schema``) for documents that several stages together cut whole; no witness."""
    fates, salt = pipeline.fates(), pipeline.job.config.seed
    for number, file in enumerate(pipeline.job.inputs):
        rows = [
            {"source": file.source, "file": file.path, "record": record, "method": status.method, "reason": reason}
            for record, status, reason in fates.emptied_of_file(number)
        ]
        if rows:
            records_K = np.array([row["record"] for row in rows], np.int64)
            for row, document in zip(rows, document_ids(file.source, file.path, records_K, salt).tolist(), strict=True):
                row["document"] = document
            yield pa.RecordBatch.from_pylist(rows, schema)


def cut_batches(pipeline: Pipeline) -> Iterator[pa.RecordBatch]:
    """Rows of cuts.parquet, file by file: cuts of the documents that go on."""
    fates, salt = pipeline.fates(), pipeline.job.config.seed
    if not fates.cuts:
        return
    for number, file in enumerate(pipeline.job.inputs):
        rows_C = fates.cuts_of_file(number)
        if not len(rows_C):
            continue
        rows_C = rows_C[fates.status_of_file(number)[rows_C["record"]] <= 1]  # KEPT, HELD_OUT
        count = len(rows_C)
        columns = [
            pa.array(document_ids(file.source, file.path, rows_C["record"], salt), pa.uint64()),
            pa.array([file.source] * count, pa.string()),
            pa.array([file.path] * count, pa.string()),
            pa.array(rows_C["record"].astype(np.int64)),
            pa.array([method.decode("ascii") for method in rows_C["method"].tolist()], pa.string()),
            pa.array(rows_C["byte_start"].astype(np.int64)),
            pa.array(rows_C["byte_count"].astype(np.int64)),
            pa.array(rows_C["witness"].astype(np.uint64), pa.uint64(), mask=~rows_C["has_witness"]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=CUTS_SCHEMA)
