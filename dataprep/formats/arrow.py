"""Arrow IPC, file and stream form (``datasets.save_to_disk`` writes the stream form), a record batch at a time.

A record's start is its record batch. Offsets and views are validated before they are followed. What is hashed is the
whole decompressed file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import xxhash

from loader.errors import DamageError
from loader.text.arrow_records import ArrowSource, open_schema, valid_column
from loader.text.decompress import COMPRESSIONS, is_decoder_error
from loader.text.parquet_records import is_text_type

from .base import RawBatch, ReadOptions, ReadRequest, RejectSink
from .columns import ColumnReader, wanted_columns
from .decompress import BombGuard, ByteStream, missing
from .parquet import damage

__all__ = ["Expansion", "is_damage", "read_arrow"]

_JUDGED_FROM = 64 << 20
_MOST_BATCH_BYTES = 4 << 30


def read_arrow(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read the text column of an Arrow IPC file or stream.

    Raises:
        ConfigError: there is no such file; no such column, with those there are.
        DamageError: cut short, corrupt, or a bomb; names file and record batch; the rows in front of it have been
            yielded.
    """
    try:
        size_bytes = path.stat().st_size
        names = open_schema(path, _Whole(path, request.options)).names
    except FileNotFoundError as error:
        raise missing(path, error) from error
    except Exception as error:
        if not is_damage(error):
            raise
        raise damage(path, "its schema", error) from error
    wanted = sorted(names.index(name) for name in wanted_columns(path, names, request))
    seen = _Seen()
    check = Expansion(path, request.options).check
    source = ArrowSource(path, wanted, stream=_Whole(path, request.options), seen=seen.add, check=check)
    try:
        reader = ColumnReader(request, rejects, BombGuard(path, size_bytes, request.options))
        yield from _read_batches(path, source, reader)
    finally:
        source.close()
    reader.finish((seen.size, seen.digest.hexdigest()))


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file is not what its format says (or that it cannot be read)."""
    # pyarrow gives a SystemError where a broken dictionary has no length
    return is_decoder_error(error) or isinstance(error, ValueError | LookupError | SystemError | pa.ArrowException)


def _read_batches(path: Path, source: ArrowSource, reader: ColumnReader) -> Iterator[RawBatch]:
    """Documents of record batch after record batch, to the end of the file."""
    field, extra = reader.request.text_field, reader.request.options.extra_field or ""
    is_text = is_text_type(source.reader.schema.field(field).type)
    number = 0
    try:
        for batch in source.reader:
            by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
            if not reader.wants_any(batch.num_rows):
                reader.pass_over(batch.num_rows)
            elif is_text:
                yield from reader.read(valid_column(by_name[field]), by_name.get(extra), number)
            else:
                reader.reject_rows(batch.num_rows, number)
            number += 1
        source.finish()
    except Exception as error:
        if not is_damage(error):
            raise
        raise damage(path, f"record batch {number}, {reader.last_good}", error) from error


class Expansion:
    """Bounds what a record batch unpacks to, before it is unpacked."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._path, self._options = path, options

    def check(self, in_bytes: int, out_bytes: int) -> None:
        """Take the size of a record batch, and what its buffers say they unpack to.

        Raises:
            DamageError: ``TR-INPUT-BOMB``.
        """
        most = min(_MOST_BATCH_BYTES, max(_JUDGED_FROM, int(in_bytes * self._options.max_expansion)))
        if out_bytes > most:
            raise DamageError(
                "TR-INPUT-BOMB",
                f"a record batch of {in_bytes:,} bytes unpacks to {out_bytes:,}",
                str(self._path),
                f"at most {most:,} bytes (ingest.max_expansion; 4 GiB a record batch)",
                "look at the file; write it in smaller record batches if it is what it should be",
            )


class _Seen:
    """All bytes of a file as they pass, hashed."""

    def __init__(self) -> None:
        self.digest = xxhash.xxh3_128()
        self.size = 0

    def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        self.digest.update(data)
        self.size += len(data)


class _Whole:
    """A ``ByteStream`` as something with ``read``."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._stream = ByteStream(path, options) if path.suffix.lower() in COMPRESSIONS else None

    def read(self, size_bytes: int) -> bytes:
        """The next bytes; none at the end.

        Raises:
            EOFError: the compressed stream is damaged.
        """
        assert self._stream is not None
        data = self._stream.read(size_bytes)
        if not data and self._stream.failure is not None:
            raise EOFError(self._stream.failure)
        return data

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
