"""The layout of every table on disk, from the dtypes and Arrow schemas that write and read them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .ledger import ledger_dtype
from .shards.layout import (
    DOCUMENT_DTYPE,
    DOCUMENT_INDEX_DTYPE,
    DOCUMENT_MAGIC,
    HEADER_DTYPE,
    SEGMENT_DTYPE,
    SEGMENT_MAGIC,
    SHARD_DTYPE,
)

__all__ = ["ARROW_TABLES", "table_layouts"]

ARROW_TABLES: dict[str, str] = {
    "removed.parquet": "dataprep.tables:REMOVED_SCHEMA",
    "cuts.parquet": "dataprep.tables:CUTS_SCHEMA",
    "rejected.parquet": "dataprep.dedup.outputs:REJECT_SCHEMA",
}
"""Parquet tables of a Dataset: name -> "module:schema", imported when asked for."""


def table_layouts() -> dict[str, Any]:
    """File name -> layout. ``fields`` have name, dtype, offset in bytes and, for arrays, a shape; integers are
    little-endian. ``parts`` of a file follow one another.
    """
    layouts: dict[str, Any] = {
        "shards.npy": {"format": "npy 1.0", "row": _struct(SHARD_DTYPE)},
        "documents.npy": {"format": "npy 1.0", "row": _struct(DOCUMENT_INDEX_DTYPE), "sorted_by": ["id", "shard"]},
        "files.txt": {
            "format": "UTF-8 lines",
            "columns": ["path", "size_bytes or -", "xxh3_128 or -"],
            "separator": "\t",
        },
        "SOURCE/shard.NNNNN.mds": {
            "parts": [
                {"name": "num_samples", "dtype": "<u4"},
                {"name": "offset", "dtype": "<u4", "shape": ["num_samples + 1"]},
                {
                    "name": "columns",
                    "dtype": "ASCII JSON, spaces up to a multiple of 4096 bytes",
                },
                {"name": "tokens", "dtype": "<u2 or <u4", "shape": ["num_samples", "seq_len"]},
            ]
        },
        "SOURCE/shard.NNNNN.segments": {
            "magic": SEGMENT_MAGIC.hex(),
            "parts": [
                {"name": "header", **_struct(HEADER_DTYPE)},
                {"name": "sample_hash", "dtype": "<u8", "shape": ["num_samples"]},
                {"name": "segment_offset", "dtype": "<u4", "shape": ["num_samples + 1"]},
                {"name": "segments", **_struct(SEGMENT_DTYPE), "shape": ["num_rows"]},
            ],
        },
        "SOURCE/shard.NNNNN.docs": {
            "magic": DOCUMENT_MAGIC.hex(),
            "parts": [
                {"name": "header", **_struct(HEADER_DTYPE)},
                {"name": "documents", **_struct(DOCUMENT_DTYPE), "shape": ["num_rows"]},
            ],
        },
        "RUN/ledger/BRANCH/ATTEMPT.bin": {
            "parts": [
                {"name": "header", "dtype": "64 bytes: docs/formats.md"},
                {"name": "records", **_struct(ledger_dtype(1)), "shape": ["steps"], "for_sources": 1},
            ]
        },
    }
    return {**layouts, **{name: _arrow(place) for name, place in ARROW_TABLES.items()}}


def _struct(dtype: np.dtype[Any]) -> dict[str, Any]:
    """A structured dtype as its fields."""
    fields = []
    for name, (kind, offset, *_) in (dtype.fields or {}).items():
        base, shape = kind.subdtype or (kind, ())
        fields.append({"name": name, "dtype": base.str, "offset": offset, **({"shape": list(shape)} if shape else {})})
    return {"size_bytes": dtype.itemsize, "fields": fields}


def _arrow(place: str) -> dict[str, Any]:
    module, _, name = place.partition(":")
    schema = getattr(importlib.import_module(module), name)
    return {"format": "parquet", "columns": [{"name": field.name, "type": str(field.type)} for field in schema]}
