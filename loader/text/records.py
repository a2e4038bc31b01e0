"""Document ids, and the text of one record by its Origin: file, record number, record start.

A record start is an offset in the *decompressed* stream (Parquet and Arrow: the row group and the record batch). Text
is found again by that start; formats without one are read by record number. Imports of pyarrow stay inside functions.

Legend: N records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, DamageError, JobError
from .arrow_records import read_arrow_again
from .decompress import COMPRESSIONS, is_decoder_error, is_system_error, open_decompressed
from .huggingface_records import read_huggingface_again
from .parquet_records import read_parquet_again
from .plain_records import read_paragraphs_again, read_text_again
from .warc_records import read_warc_again

__all__ = [
    "TEXT_READERS",
    "RecordPlace",
    "document_id",
    "document_ids",
    "parse_json_text",
    "read_texts",
]

_BOM = b"\xef\xbb\xbf"
_SKIP_BYTES = 1 << 22
_MOST_AT_ONCE = 1 << 28
_LONGEST = 1 << 30  # ingest.line_limit_bytes ends there


def document_ids(source: str, relative_path: str, record_N: NDArray[np.integer[Any]], salt: int) -> NDArray[np.uint64]:
    """Ids (u8) of records of one file: xxh3-64, seeded with ``salt``, of source NUL path NUL record number in UTF-8.

    Raises:
        ValueError: a NUL in source or path (two Origins could share their bytes), or a salt outside 0 .. 2^64.
    """
    if "\0" in source or "\0" in relative_path or not 0 <= salt < 1 << 64:
        raise ValueError(f"no Origin: {source!r}, {relative_path!r}, salt {salt}")
    prefix = f"{source}\0{relative_path}\0".encode()
    digest = xxhash.xxh3_64_intdigest
    records = np.asarray(record_N).tolist()
    return np.fromiter((digest(prefix + b"%d" % record, salt) for record in records), np.uint64, len(records))


def document_id(source: str, relative_path: str, record: int, salt: int) -> int:
    """Id of one record; see :func:`document_ids`."""
    return int(document_ids(source, relative_path, np.array([record], np.int64), salt)[0])


def parse_json_text(line: bytes, text_field: str, place: str) -> str:
    """The text of one JSONL record; of duplicate keys the last wins.

    Raises:
        DamageError: no JSON object with a string under ``text_field``; the file changed since it was read.
    """
    try:
        # Numbers are not wanted: parse_int=float spares the limit on the digits of an int.
        value = json.loads(line.decode("utf-8", "strict"), parse_int=float)
        text = value[text_field] if isinstance(value, dict) else None
    except (ValueError, KeyError, RecursionError) as error:
        raise DamageError(
            "TR-TEXT-RECORD", "the record cannot be read again", place, "the file that was built"
        ) from error
    if not isinstance(text, str):
        raise DamageError("TR-TEXT-RECORD", f"no text under {text_field!r}", place, "the file that was built")
    return text


@dataclass(frozen=True, order=True)
class RecordPlace:
    """A record inside one file: its start (bytes of the decompressed stream, or row group) and its number there."""

    record_start: int
    record: int


class _Lines:
    """Lines of a forward-only stream by their start offset, in ascending order."""

    def __init__(self, stream: Any, seekable: bool) -> None:
        self._stream = stream
        self._seekable = seekable
        self._buffer = b""
        self._offset = 0  # of the buffer's first byte in the stream

    def line_at(self, start: int) -> bytes:
        self._advance(start)
        begin = unseen = start - self._offset
        while (end := self._buffer.find(b"\n", unseen)) < 0:
            # A long line is read in ever larger pieces, so that copying it costs no more than reading it.
            chunk = self._stream.read(max(_SKIP_BYTES, min(len(self._buffer) - begin, _MOST_AT_ONCE)))
            if not chunk:
                end = len(self._buffer)
                break
            # The buffer is copied when it is filled, never for a line: thousands of lines may share it.
            unseen = len(self._buffer) - begin
            if unseen > _LONGEST:
                raise ValueError(f"no line end within {_LONGEST} bytes")
            self._buffer, self._offset, begin = self._buffer[begin:] + chunk, start, 0
        return self._buffer[begin:end]

    def _advance(self, start: int) -> None:
        """Read on until ``start`` lies in the buffer or at its end."""
        if start - self._offset > len(self._buffer) and self._seekable:
            self._stream.seek(start)
            self._buffer, self._offset = self._stream.read(1 << 16), start
        while start - self._offset > len(self._buffer):
            self._offset += len(self._buffer)
            self._buffer = self._stream.read(_SKIP_BYTES)
            if not self._buffer:
                raise EOFError(f"stream ends at {self._offset}, record starts at {start}")


def _read_jsonl(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """Texts of the records at ascending ``places`` of a JSONL file, one pass."""
    with open_decompressed(path) as stream:
        lines = _Lines(stream, path.suffix.lower() not in COMPRESSIONS)
        for place in places:
            line = lines.line_at(place.record_start)
            if place.record_start == 0:
                line = line.removeprefix(_BOM)
            yield parse_json_text(line, text_field, f"{path} record {place.record}")


TextReader = Callable[[Path, Sequence[RecordPlace], str], Iterator[str]]
TEXT_READERS: Mapping[str, TextReader] = {
    "arrow": read_arrow_again,
    "huggingface": read_huggingface_again,
    "jsonl": _read_jsonl,
    "parquet": read_parquet_again,
    "text": read_text_again,
    "text_paragraphs": read_paragraphs_again,
    "warc": read_warc_again,
}
"""Format name -> reader of records at ascending places of one file."""


def read_texts(path: Path, format_name: str, text_field: str, places: Sequence[RecordPlace]) -> dict[RecordPlace, str]:
    """Texts of records of one file, read in one pass whatever their order in ``places``.

    Raises:
        ConfigError: the file is not there, or the format has no reader.
        DamageError: the file is not the one that was built: cut short, broken frame, or no record at that place.
        JobError: the system does not give the file.
    """
    reader = TEXT_READERS.get(format_name)
    if reader is None:
        raise ConfigError("TR-TEXT-FORMAT", f"no reader for {format_name!r}", str(path), ", ".join(TEXT_READERS))
    wanted = sorted(set(places))
    try:
        return dict(zip(wanted, reader(path, wanted, text_field), strict=True))
    except FileNotFoundError as error:
        raise ConfigError(
            "TR-TEXT-MISSING", "the input file is not there", str(path), "the files that were built", "give --root"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and is_system_error(error):
            message = f"cannot read an input file: {error.strerror or error}"
            raise JobError("TR-INPUT-UNREADABLE", message, str(path), "a file that can be read") from error
        if not (is_decoder_error(error) or isinstance(error, ValueError | IndexError | KeyError | SystemError)):
            raise
        raise DamageError(
            "TR-TEXT-FILE", f"cannot be read again: {error}", str(path), "the file that was built"
        ) from error
