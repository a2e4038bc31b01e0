"""Parquet by row group: a bounded number of rows at once, page checksums verified, and rows read again by Origin.

A file's own counts are believed only as far as memory goes: rows come in batches of a size that keeps their text near
``batch_bytes``, and where a chunk has a dictionary, its longest value bounds the batch as well, so that few bytes that
name a long value many times expand nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, DamageError

if TYPE_CHECKING:
    import pyarrow as pa

    from .records import RecordPlace

__all__ = [
    "column_chunks",
    "column_error",
    "group_rows",
    "is_text_type",
    "open_parquet",
    "read_group",
    "read_parquet_again",
    "rows_at_once",
]

_BUFFER_BYTES = 1 << 20
_MOST_ROWS = 1 << 13
_MOST_EXPANDED_BYTES = 1 << 28


def is_text_type(kind: Any) -> bool:
    """Whether an Arrow type holds text: the three string types, and dictionaries of them. Bytes, numbers and lists are
    never made into text."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def column_error(path: Path, name: str, names: Sequence[str]) -> ConfigError:
    """The error for a column that is not there, or there twice."""
    found = names.count(name)
    message = f"there are {found} columns {name!r}" if found else f"there is no column {name!r}"
    shown = ", ".join(names[:50]) + (", ..." if len(names) > 50 else "")
    return ConfigError("TR-INPUT-COLUMN", message, str(path), f"one of: {shown}" if names else "a column")


def open_parquet(path: Path, dictionary: Sequence[str] = ()) -> Any:
    """A ``ParquetFile`` that reads little at once and verifies page checksums.

    Raises:
        OSError, pyarrow.ArrowException: it cannot be opened, or the footer cannot be read.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        path,
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
        page_checksum_verification=True,
        read_dictionary=list(dictionary) or None,
    )


def group_rows(file: Any) -> list[int]:
    """Rows of each row group, as the footer says.

    Raises:
        ValueError: counts that cannot be.
    """
    metadata = file.metadata
    rows = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    if any(count < 0 for count in rows) or sum(rows) != metadata.num_rows:
        raise ValueError(f"the footer counts {metadata.num_rows} rows in all and {rows[:8]} in its row groups")
    return rows


def column_chunks(file: Any, group: int, columns: Sequence[str]) -> list[Any]:
    """The footer's words on the chunks of ``columns`` in a row group with rows.

    pyarrow ends the process where a footer lies about a chunk and is asked for it; a read of the same chunk raises. So
    one row is read first.

    Raises:
        OSError, pyarrow.ArrowException: the footer or the first page is damaged.
    """
    metadata = file.metadata.row_group(group)
    if metadata.num_rows == 0:
        return []
    next(file.iter_batches(batch_size=1, row_groups=[group], columns=list(columns), use_threads=False), None)
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    wanted = [place for place, path in enumerate(paths) if any(f"{path}.".startswith(f"{name}.") for name in columns)]
    return [metadata.column(place) for place in wanted]


def rows_at_once(path: Path, file: Any, group: int, columns: Sequence[str], batch_bytes: int) -> int:
    """Rows whose text is about ``batch_bytes``, by the footer's sizes and the longest value of a dictionary.

    Raises:
        OSError, pyarrow.ArrowException: the dictionary is damaged.
    """
    metadata = file.metadata.row_group(group)
    most = _MOST_ROWS
    for chunk in column_chunks(file, group, columns):
        average = max(1, chunk.total_uncompressed_size // max(1, metadata.num_rows))
        most = min(most, max(1, batch_bytes // average))
        if chunk.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in chunk.encodings):
            most = min(most, max(1, _MOST_EXPANDED_BYTES // _longest_value(path, group, chunk.path_in_schema)))
    return most


def _longest_value(path: Path, group: int, column: str) -> int:
    """Bytes of the longest value of a chunk's dictionary, at least 1; reads the dictionary and one row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with open_parquet(path, [column]) as file:
        for batch in file.iter_batches(batch_size=1, row_groups=[group], columns=[column], use_threads=False):
            values = batch.column(0)
            if isinstance(values, pa.DictionaryArray) and len(values.dictionary):
                return max(1, pc.max(pc.binary_length(values.dictionary.cast(pa.large_binary()))).as_py() or 0)
            break
    return 1


def read_group(path: Path, file: Any, group: int, columns: Sequence[str], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows of one row group, a batch at a time; only ``columns`` are touched.

    Raises:
        OSError, pyarrow.ArrowException: a page is damaged.
        ValueError: not the number of rows that the footer promises.
    """
    rows = rows_at_once(path, file, group, columns, batch_bytes)
    left = int(file.metadata.row_group(group).num_rows)
    if left == 0:
        return
    for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=list(columns), use_threads=False):
        left -= batch.num_rows
        yield batch
    if left:
        raise ValueError(f"{left} rows fewer than the footer promises")


def read_parquet_again(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """Texts of rows at ascending ``places``; a place's start is its row group."""
    with open_parquet(path) as file:
        if file.schema_arrow.names.count(text_field) != 1:
            raise column_error(path, text_field, file.schema_arrow.names)
        first_G = np.concatenate(([0], np.cumsum(np.array(group_rows(file), np.int64))))
        batches: Iterator[pa.RecordBatch] = iter(())
        group, first, batch = -1, 0, None
        for place in places:
            if place.record_start != group:
                group = place.record_start
                batches = read_group(path, file, group, [text_field], 1 << 22)
                first, batch = int(first_G[group]), None
            while batch is None or place.record >= first + batch.num_rows:
                first += batch.num_rows if batch is not None else 0
                batch = next(batches, None)
                if batch is None:
                    raise IndexError(f"row group {group} has no row {place.record}")
            text = batch.column(0)[place.record - first].as_py() if place.record >= first else None
            if not isinstance(text, str):
                raise DamageError("TR-TEXT-RECORD", "no text in the row", f"{path} record {place.record}")
            yield text
