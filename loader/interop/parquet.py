"""Parquet: a row a document with its ids, its origin, and the byte range of each segment; a file a shard.

``input_ids`` is a list of int32 (every id is < 2^31), so Hugging Face datasets and torch take it as it is. A document
that lies in several shards is one row, in the file of the first; one with a gap (see ``walk.py``) is a row for each
run, told apart by ``first_token``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..shards.access import hash_regular
from ..shards.dataset import Dataset
from .request import ExportedFile, ExportRequest, PlannedFile, shard_rows
from .walk import DocumentPart, DocumentWalk

__all__ = ["plan_parquet", "write_parquet"]

_GROUP_TOKENS = 1 << 22
_GROUP_ROWS = 1 << 16
_MOST_TOKENS = (1 << 31) - 1  # offsets of a list column are 32-bit; a document alone always fits
_COLUMNS = {
    "document": "uint64",
    "source": "string",
    "file": "string",
    "record": "int64",
    "record_start": "int64",
    "first_token": "int64",
    "input_ids": "list<int32>",
    "segment_tokens": "list<int32>",
    "byte_start": "list<int64>",
    "byte_count": "list<int64>",
    "sample": "list<int64>",
}
"""The last four have an entry a segment; bytes count in the document's decoded UTF-8 text, samples in its source."""


def plan_parquet(request: ExportRequest) -> list[PlannedFile]:
    """The files there may be; how long they get, compression decides. A shard that only goes on with documents of
    earlier ones has none."""
    return [
        PlannedFile(_name(source, number), None)
        for source in request.sources
        for number in range(len(shard_rows(request.dataset, source)))
    ]


def _name(source: str, number: int) -> str:
    return f"{source}/part.{number:05d}.parquet"


def write_parquet(request: ExportRequest) -> list[ExportedFile]:
    """``SOURCE/part.NNNNN.parquet`` for each shard that a document begins in, zstd, with page checksums.

    Raises:
        DamageError: a shard, files.txt or documents.npy is not what was written.
    """
    written = []
    walk = DocumentWalk(request.dataset)
    for source in request.sources:
        for number, (row, parts) in enumerate(walk.shards(source)):
            path = request.folder / _name(source, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            if _write(path, request.dataset, source, parts):
                size_bytes, digest = hash_regular(path)
                written.append(ExportedFile(_name(source, number), size_bytes, digest))
            request.progress(int(request.dataset.shards_R["size_bytes"][row]))
    return written


def _write(path: Path, dataset: Dataset, source: str, parts: Iterable[DocumentPart]) -> bool:
    """Write one file unless there is nothing to write: Hugging Face datasets fails at a file without a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, _type(kind)) for name, kind in _COLUMNS.items()])
    options = {"compression": "zstd", "write_page_checksum": True, "store_schema": False}
    groups = _groups(parts)
    first = next(groups, None)
    if first is None:
        return False
    with pq.ParquetWriter(path, schema, **options) as out:
        for group in itertools.chain([first], groups):
            out.write_table(pa.table(_columns(dataset, source, group), schema=schema))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _type(kind: str) -> Any:
    import pyarrow as pa

    if kind.startswith("list<"):
        return pa.list_(pa.field("element", _type(kind[5:-1])))
    return pa.type_for_alias(kind)


def _groups(parts: Iterable[DocumentPart]) -> Iterator[list[DocumentPart]]:
    """Documents of a row group: at most 65,536 of them, and some 4 million tokens."""
    group: list[DocumentPart] = []
    tokens = 0
    for part in parts:
        if group and tokens + part.num_tokens > _MOST_TOKENS:
            yield group
            group, tokens = [], 0
        group.append(part)
        tokens += part.num_tokens
        if tokens >= _GROUP_TOKENS or len(group) == _GROUP_ROWS:
            yield group
            group, tokens = [], 0
    if group:
        yield group


def _columns(dataset: Dataset, source: str, group: list[DocumentPart]) -> dict[str, Any]:
    first_G = [int(part.rows_S[0]) for part in group]
    heads = list(zip(group, first_G, strict=True))
    return {
        "document": np.array([part.document for part in group], np.uint64),
        "source": [source] * len(group),
        "file": [dataset.file_path(int(part.table.file_S[row])) for part, row in heads],
        "record": [int(part.table.record_S[row]) for part, row in heads],
        "record_start": [int(part.table.record_start_S[row]) for part, row in heads],
        "first_token": [part.first_token for part in group],
        "input_ids": _lists([np.concatenate(part.pieces) for part in group], "int32"),
        "segment_tokens": _lists([part.table.num_tokens_S[part.rows_S] for part in group], "int32"),
        "byte_start": _lists([part.table.byte_start_S[part.rows_S] for part in group], "int64"),
        "byte_count": _lists([part.table.byte_count_S[part.rows_S] for part in group], "int64"),
        "sample": _lists([part.table.source_sample_S[part.rows_S] for part in group], "int64"),
    }


def _lists(rows: list[Any], kind: str) -> Any:
    """A list column of arrays, without a Python object a value."""
    import pyarrow as pa

    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = pa.array(np.concatenate(rows).astype(kind))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=_type(f"list<{kind}>"))
