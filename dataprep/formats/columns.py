"""From an Arrow column to batches of documents, judged value by value but without a Python object for each.

A value is a document if its column is text (see ``is_text_type``) and it is valid UTF-8, within the line limit and more
than ASCII white space. Null, and every value of a column of another type, is ``text-type``: bytes, numbers and lists
are never made into text.

Shapes: N values of a slice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loader.text.parquet_records import column_error

from ..documents import RejectReason
from .base import LONGEST_EXTRA, REJECT_DTYPE, FileSummary, RawBatch, ReadRequest, RejectSink
from .collect import SPARE_BYTES, is_utf8
from .decompress import BombGuard

__all__ = ["ColumnReader", "json_of", "wanted_columns"]

_MOST_VALUES = 1 << 16
_ROW_BYTES = 8


def wanted_columns(path: Path, names: list[str], request: ReadRequest) -> list[str]:
    """The columns to read of those in ``names``: the text, and the extra field where there is one of that name.

    Raises:
        ConfigError: the text's column is not there, or there twice.
    """
    if names.count(request.text_field) != 1:
        raise column_error(path, request.text_field, names)
    extra = request.options.extra_field
    return [request.text_field] + ([extra] if extra and extra != request.text_field and names.count(extra) == 1 else [])


@dataclass
class ColumnReader:
    """Reads the columns of one file.

    Attributes:
        request, rejects: of the pass over the file.
        guard: counts the text, and 8 bytes for each row, so that rows of nothing are no way around the limits.
        record: number of the next row.
        num_documents: documents handed out.
        last_good: names the last one.
    """

    request: ReadRequest
    rejects: RejectSink
    guard: BombGuard
    record: int = 0
    num_documents: int = 0
    last_good: str = "no whole record"

    def wants_any(self, num_rows: int) -> bool:
        """Whether any of the next rows was asked for."""
        keep_R = self.request.keep_R
        return keep_R is None or bool(keep_R[self.record : self.record + num_rows].any())

    def pass_over(self, num_rows: int) -> None:
        """The next rows were not asked for."""
        self.record += num_rows

    def read(self, column: pa.Array, extra: pa.Array | None, record_start: int) -> Iterator[RawBatch]:
        """Documents of ``column``, which is text; its rows are the next ones of the file and share ``record_start``.

        Raises:
            DamageError: a bomb.
            pyarrow.ArrowException: the column's memory is not what its type says.
        """
        size_N = _lengths(column)
        for start, stop in _slices(size_N, self.request.options.batch_bytes):
            count = stop - start
            self.guard.add(_ROW_BYTES * count + int(size_N[start:stop].sum()))
            if self.wants_any(count):
                wanted_N = self._wanted(count)
                text, reason_N = _judge(column.slice(start, count), self.request.options.line_limit_bytes)
                good_N = wanted_N & (reason_N == 0)
                if good_N.any():
                    values = extra.slice(start, count) if extra is not None else None
                    yield self._batch(text, good_N, values, record_start)
                self._reject(wanted_N & (reason_N != 0), reason_N, record_start)
            self.record += count

    def reject_rows(self, num_rows: int, record_start: int) -> None:
        """The next rows have a column that holds no text: each of them is ``text-type``.

        Raises:
            DamageError: a bomb.
        """
        for start in range(0, num_rows, _MOST_VALUES):
            count = min(_MOST_VALUES, num_rows - start)
            self.guard.add(_ROW_BYTES * count)
            reason_N = np.full(count, int(RejectReason.TEXT_TYPE), np.uint8)
            self._reject(self._wanted(count), reason_N, record_start)
            self.record += count

    def finish(self, stream: tuple[int, str]) -> None:
        """Leave the summary; ``stream``: size and hash of what was read."""
        self.rejects.summary = FileSummary(self.record, 0, self.num_documents, self.rejects.num_rejected, *stream)

    def _wanted(self, count: int) -> NDArray[np.bool_]:
        keep_R = self.request.keep_R
        if keep_R is None:
            return np.ones(count, np.bool_)
        wanted_N = np.zeros(count, np.bool_)
        part = keep_R[self.record : self.record + count]
        wanted_N[: len(part)] = part
        return wanted_N

    def _reject(self, bad_N: NDArray[np.bool_], reason_N: NDArray[np.uint8], record_start: int) -> None:
        places = np.flatnonzero(bad_N)
        rows = np.zeros(len(places), REJECT_DTYPE)
        rows["record"], rows["record_start"], rows["reason"] = places + self.record, record_start, reason_N[places]
        self.rejects.add(rows)

    def _batch(self, text: pa.Array, good_N: NDArray[np.bool_], extra: pa.Array | None, record_start: int) -> RawBatch:
        places = np.flatnonzero(good_N)
        if len(places) < len(good_N):
            text = text.filter(pa.array(good_N))
        record_N = places + self.record
        extra_N = None
        if self.request.options.extra_field:
            values = extra.filter(pa.array(good_N)) if extra is not None else [None] * len(places)
            extra_N = tuple(json_of(value) for value in values)
        self.num_documents += len(places)
        self.last_good = f"last good record {record_N[-1]}"
        return RawBatch(_with_spare(text), record_N, np.full(len(places), record_start, np.int64), extra_N)


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    """Bytes of each value; a null has none."""
    if isinstance(column, pa.DictionaryArray):
        _check_indices(column)
        index_N = np.asarray(column.indices.fill_null(0) if column.null_count else column.indices).astype(np.int64)
        size_N = _lengths(column.dictionary)[index_N] if len(column.dictionary) else np.zeros(len(column), np.int64)
    elif pa.types.is_string_view(column.type):
        views = np.frombuffer(column.buffers()[1], np.dtype("<i4")).reshape(-1, 4)
        size_N = views[column.offset : column.offset + len(column), 0].astype(np.int64)
    else:
        wide = np.dtype("<i8") if pa.types.is_large_string(column.type) else np.dtype("<i4")
        buffer = column.buffers()[1]
        if not len(column) or buffer is None:
            return np.zeros(len(column), np.int64)
        offset_N = np.frombuffer(buffer, wide)[column.offset : column.offset + len(column) + 1]
        size_N = np.diff(offset_N).astype(np.int64)
    if column.null_count:
        size_N[np.asarray(column.is_null())] = 0
    return size_N


def _check_indices(column: pa.DictionaryArray) -> None:
    if len(column) > column.null_count:
        ends = pc.min_max(column.indices)
        if ends["min"].as_py() < 0 or ends["max"].as_py() >= len(column.dictionary):
            raise pa.ArrowInvalid("a value names an entry that the dictionary does not have")


def _slices(size_N: NDArray[np.int64], batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows with about ``batch_bytes`` of text at most, or one row."""
    stop_N, count = np.cumsum(size_N), len(size_N)
    start = 0
    while start < count:
        before = int(stop_N[start - 1]) if start else 0
        stop = int(np.searchsorted(stop_N, before + batch_bytes, side="right"))
        stop = min(max(stop, start + 1), start + _MOST_VALUES, count)
        yield start, stop
        start = stop


def _judge(column: pa.Array, limit: int) -> tuple[pa.LargeBinaryArray, NDArray[np.uint8]]:
    """The values as bytes, and why each is no document (0 = it is one)."""
    if isinstance(column, pa.DictionaryArray):
        values = column.dictionary.cast(pa.large_binary())
        column = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    data = column.cast(pa.large_binary())
    reason_N = np.zeros(len(data), np.uint8)
    size_N = np.diff(_offsets(data))
    if not _is_utf8(data):
        for place in range(len(data)):
            reason_N[place] = 0 if is_utf8(data[place].as_py() or b"") else int(RejectReason.UTF8)
    for place in _maybe_blank(data, size_N):
        if not (data[int(place)].as_py() or b"").strip():
            reason_N[place] = int(RejectReason.EMPTY)
    reason_N[size_N > limit] = int(RejectReason.TOO_LONG)
    if data.null_count:
        reason_N[np.asarray(data.is_null())] = int(RejectReason.TEXT_TYPE)
    return data, reason_N


def _offsets(data: pa.LargeBinaryArray) -> NDArray[np.int64]:
    buffer = data.buffers()[1]
    if buffer is None or not len(data):
        return np.zeros(len(data) + 1, np.int64)
    return np.frombuffer(buffer, np.int64)[data.offset : data.offset + len(data) + 1]


def _is_utf8(data: pa.LargeBinaryArray) -> bool:
    """Whether all values are valid UTF-8."""
    bitmap, offsets, values = data.buffers()
    try:
        pa.Array.from_buffers(
            pa.large_string(), len(data), [bitmap, offsets, values], data.null_count, data.offset
        ).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _maybe_blank(data: pa.LargeBinaryArray, size_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of values that are empty or begin with white space."""
    values = data.buffers()[2]
    if values is None or values.size == 0:
        return np.arange(len(data))
    byte_B = np.frombuffer(values, np.uint8)
    first_N = byte_B[np.minimum(_offsets(data)[:-1], len(byte_B) - 1)]
    return np.flatnonzero((size_N == 0) | (first_N == 32) | ((first_N >= 9) & (first_N <= 13)))


def _with_spare(data: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """A copy as text, with spare bytes; the values are valid UTF-8 and none is null."""
    offset_N = _offsets(data)
    start, stop = int(offset_N[0]), int(offset_N[-1])
    memory = pa.allocate_buffer(stop - start + SPARE_BYTES)
    byte_B = np.frombuffer(memory, np.uint8)
    byte_B[: stop - start] = np.frombuffer(data.buffers()[2], np.uint8)[start:stop]
    byte_B[stop - start :] = 0
    return pa.LargeStringArray.from_buffers(len(data), pa.py_buffer(offset_N - start), memory)


def json_of(value: Any) -> bytes:
    """JSON of a value, Arrow's or Python's: text, numbers and dates (ISO 8601); empty for anything else and for what is
    too long."""
    try:
        plain = value.as_py() if isinstance(value, pa.Scalar) else value
        if hasattr(plain, "isoformat"):
            plain = plain.isoformat()
        if plain is None or not isinstance(plain, str | int | float):
            return b""
        data = json.dumps(plain, allow_nan=False).encode()
    except (ValueError, OverflowError, pa.ArrowException):
        return b""
    return data if len(data) <= LONGEST_EXTRA else b""
