"""Arrow IPC, file and stream form, read from front to end, a record batch at a time; rows read again by Origin.

The file form is the stream form between two magics with a footer behind it, so one reader serves both, and a file whose
end is missing shows as such: the footer's magic, or the mark that ends a stream, must be there. A plain file is mapped:
a large record batch costs address space. Of a compressed one, a record batch is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamageError
from .arrow_frames import Frames
from .decompress import COMPRESSIONS, open_decompressed, read_exactly
from .parquet_records import column_error, is_text_type

if TYPE_CHECKING:
    import pyarrow as pa

    from .records import RecordPlace

__all__ = ["ArrowSource", "open_schema", "read_arrow_again", "valid_column"]

_MAGIC = b"ARROW1"
_HEAD_BYTES = 8
_CHUNK_BYTES = 1 << 22
_TAIL_BYTES = 16
_MOST_BATCH_BYTES = 4 << 30


class ArrowSource:
    """A file of record batches, from its first byte to its last.

    Attributes:
        reader: a pyarrow ``RecordBatchStreamReader`` over ``columns``.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[int] | None = None,
        *,
        stream: Any = None,
        seen: Callable[[Any], None] | None = None,
        check: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open a file.

        Args:
            path: the file; mapped if it is plain.
            columns: indices of the columns to read; None = all.
            stream: with ``read`` and ``close``: where the bytes of a compressed file come from instead.
            seen: takes all bytes as they pass.
            check: see ``Frames``.

        Raises:
            OSError, ValueError, pyarrow.ArrowException: it cannot be opened, or is no Arrow IPC.
        """
        import pyarrow as pa
        from pyarrow import ipc

        self._seen = seen
        self._ahead: Any = b""
        self._tail = b""
        self._stream: Any = None
        if path.suffix.lower() in COMPRESSIONS:
            self._stream = stream if stream is not None else open_decompressed(path)
        else:
            with pa.memory_map(str(path)) as file:
                self._view = memoryview(file.read_buffer())
        self._place = 0
        try:
            head = self._take(_HEAD_BYTES)
            self.is_file = bytes(head[: len(_MAGIC)]) == _MAGIC
            self._ahead = b"" if self.is_file else head
            self._frames = Frames(self._read, check)
            options = ipc.IpcReadOptions(
                use_threads=False, included_fields=list(columns) if columns is not None else None
            )
            self.reader = ipc.open_stream(pa.PythonFile(self._frames, mode="r"), options=options)
        except BaseException:
            self.close()
            raise

    def _read(self, size_bytes: int) -> Any:
        ahead, self._ahead = self._ahead[:size_bytes], self._ahead[size_bytes:]
        if not ahead:
            return self._take(size_bytes)
        return ahead if len(ahead) == size_bytes else bytes(ahead) + bytes(self._take(size_bytes - len(ahead)))

    def _take(self, size_bytes: int) -> Any:
        if self._stream is not None:
            if size_bytes > _MOST_BATCH_BYTES:
                raise ValueError(f"a message of {size_bytes} bytes in a compressed file")
            data: Any = read_exactly(self._stream, size_bytes)
        else:
            data = self._view[self._place : self._place + size_bytes]
            self._place += len(data)
        if self._seen is not None:
            self._seen(data)
        self._tail = bytes(self._tail[-_TAIL_BYTES:]) + bytes(data[-_TAIL_BYTES:])
        return data

    def finish(self) -> None:
        """Read what lies behind the last record batch.

        Raises:
            ValueError: the file is cut short, or something lies behind its end.
        """
        ended, behind = self._frames.ended, 0
        while data := self._take(_CHUNK_BYTES):
            behind += len(data)
        if not ended or (self.is_file and not self._tail.endswith(_MAGIC)) or (behind and not self.is_file):
            raise ValueError("the mark of its end is missing" if not behind else "something lies behind its end")

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()


def open_schema(path: Path, stream: Any = None) -> pa.Schema:
    """The schema of a file; ``stream``: see ``ArrowSource``.

    Raises:
        OSError, ValueError, pyarrow.ArrowException: see ``ArrowSource``.
    """
    source = ArrowSource(path, stream=stream)
    source.close()
    return source.reader.schema


def valid_column(column: pa.Array) -> pa.Array:
    """A text column whose offsets, views and bitmaps are checked to lie in its memory; its bytes may be no UTF-8.

    Raises:
        pyarrow.ArrowException: they do not.
    """
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        valid_column(column.dictionary)
        column.indices.validate(full=True)
        return column
    bytes_type = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    column.cast(bytes_type[column.type]).validate(full=True)
    return column


def _check_expansion(in_bytes: int, out_bytes: int) -> None:
    """Refuse what no build has read, before pyarrow allocates what the file says."""
    if out_bytes > _MOST_BATCH_BYTES:
        raise ValueError(f"a record batch of {in_bytes} bytes unpacks to {out_bytes}")


def read_arrow_again(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """Texts of rows at ascending ``places``; a place's start is its record batch."""
    names = open_schema(path).names
    if names.count(text_field) != 1:
        raise column_error(path, text_field, names)
    source = ArrowSource(path, [names.index(text_field)], check=_check_expansion)
    number, first, column = -1, 0, None
    try:
        for place in places:
            while number < place.record_start:
                first += len(column) if column is not None else 0
                column = source.reader.read_next_batch().column(0)
                number += 1
            row = place.record - first
            if column is None or not 0 <= row < len(column) or not is_text_type(column.type):
                raise DamageError("TR-TEXT-RECORD", "no text in the row", f"{path} record {place.record}")
            text = valid_column(column)[row].as_py()
            if not isinstance(text, str):
                raise DamageError("TR-TEXT-RECORD", "no text in the row", f"{path} record {place.record}")
            yield text
    except StopIteration as error:
        raise IndexError(f"only {number + 1} record batches") from error
    finally:
        source.close()
