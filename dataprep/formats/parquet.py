"""Parquet: row group by row group, fully validated, page checksums verified where the writer left them.

A record's start is its row group. What is hashed is the text column as it lies in the file, and the footer: in a later
pass a row group of which nothing is wanted is hashed, at several GB/s, and not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import xxhash

from loader.errors import DamageError, TokenreelError
from loader.text.decompress import is_system_error
from loader.text.parquet_records import column_chunks, group_rows, is_text_type, open_parquet, read_group

from .base import RawBatch, ReadRequest, RejectSink
from .columns import ColumnReader, wanted_columns
from .decompress import BombGuard, missing, unreadable
from .first_bytes import first_bytes_kind

__all__ = ["damage", "read_parquet"]

_TAIL_BYTES = 8
_CHUNK_BYTES = 1 << 20


def damage(path: Path, where: str, error: object) -> TokenreelError:
    """The error for a file that is not what its format says, ``where`` inside it; another one if the system did not
    give the file."""
    if isinstance(error, OSError) and is_system_error(error):
        return unreadable(path, error)
    kind = first_bytes_kind(path)
    begins = f" (the file begins like {kind})" if kind is not None else ""
    return DamageError(
        "TR-INPUT-DAMAGED",
        f"the file is cut short or corrupt: {' '.join(str(error).split())[:500]}{begins}",
        f"{path}, {where}",
        "whole data, to the checksum",
        "fetch the file again",
    )


class _Bytes:
    """The bytes of a file that make up a column, hashed where they lie."""

    def __init__(self, path: Path, file: BinaryIO, column: str) -> None:
        self._path, self._file, self._column = path, file, column
        self.size = file.seek(0, 2)
        self.digest = xxhash.xxh3_128()
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def add(self, start: int, size_bytes: int) -> None:
        """Hash a range.

        Raises:
            ValueError: it lies outside the file.
        """
        if start < 0 or size_bytes < 0 or start + size_bytes > self.size:
            raise ValueError(f"bytes {start} to {start + size_bytes} of a file of {self.size}")
        self._file.seek(start)
        while size_bytes > 0:
            got = self._file.readinto(self._buffer[: min(size_bytes, _CHUNK_BYTES)])  # type: ignore[attr-defined]
            if not got:
                raise ValueError("the file became shorter")
            self.digest.update(self._buffer[:got])
            size_bytes -= got

    def add_group(self, file: Any, group: int) -> None:
        """Hash the column of one row group."""
        for chunk in column_chunks(file, group, [self._column]):
            starts = [chunk.data_page_offset]
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                starts.append(chunk.dictionary_page_offset)
            self.add(min(starts), chunk.total_compressed_size)

    def add_footer(self) -> None:
        """Hash the footer, with the magic behind it."""
        self._file.seek(max(0, self.size - _TAIL_BYTES))
        size_bytes = int.from_bytes(self._file.read(4), "little") + _TAIL_BYTES
        self.add(self.size - size_bytes, size_bytes)


def read_parquet(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read the text column of a Parquet file.

    Raises:
        ConfigError: there is no such file; no such column, with those there are.
        DamageError: cut short, corrupt, or a bomb; names file and row group; the rows in front of it have been yielded.
    """
    try:
        raw = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise missing(path, error) from error
    with raw:
        source = _Bytes(path, raw, request.text_field)
        try:
            file = open_parquet(path)
            rows = group_rows(file)
        except (OSError, ValueError, LookupError, pa.ArrowException) as error:
            raise damage(path, "its footer", error) from error
        with file:
            yield from _read_groups(path, (file, rows), source, request, rejects)


def _read_groups(
    path: Path, opened: tuple[Any, list[int]], source: _Bytes, request: ReadRequest, rejects: RejectSink
) -> Iterator[RawBatch]:
    file, rows = opened
    columns = wanted_columns(path, file.schema_arrow.names, request)
    is_text = is_text_type(file.schema_arrow.field(request.text_field).type)
    reader = ColumnReader(request, rejects, BombGuard(path, source.size, request.options))
    for group, count in enumerate(rows):
        try:
            source.add_group(file, group)
            if not reader.wants_any(count):
                reader.pass_over(count)
                continue
            if not is_text:
                reader.reject_rows(count, group)
                continue
            for batch in read_group(path, file, group, columns, request.options.batch_bytes):
                by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
                extra = by_name.get(request.options.extra_field or "")
                yield from reader.read(by_name[request.text_field], extra, group)
        except (OSError, ValueError, LookupError, pa.ArrowException) as error:
            raise damage(path, f"row group {group}, {reader.last_good}", error) from error
    try:
        source.add_footer()
    except ValueError as error:
        raise damage(path, "its footer", error) from error
    reader.finish((source.size, source.digest.hexdigest()))
