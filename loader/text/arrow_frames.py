"""The messages of an Arrow IPC stream, watched as they pass: how much a record batch would unpack to.

Buffers may be compressed inside a record batch, each with its size in front, and pyarrow allocates what that size says.
So the messages are followed here, as far as that takes: framing, ``Message``, ``RecordBatch`` and ``DictionaryBatch``
of Arrow's ``format/Message.fbs`` (flatbuffers: a table is an offset to a table of field offsets).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Frames"]

_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _RECORD_BATCH = 2, 3


class Frames:
    """What pyarrow reads a stream from: hands its reads on, and calls ``check`` for each message whose buffers are
    compressed, before pyarrow sees them.

    Attributes:
        ended: the stream's end mark has passed.
    """

    def __init__(self, read: Callable[[int], Any], check: Callable[[int, int], None] | None = None) -> None:
        """``read``: so many bytes, fewer only at the end; ``check``: takes the bytes of a message's body and what its
        buffers unpack to."""
        self._read = read
        self._check = check
        self._next = self._prefix
        self._buffers_B2 = np.zeros((0, 2), np.int64)
        self.ended = False
        self.closed = False

    def readable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Who made it closes what is behind."""
        self.closed = True

    def read(self, size_bytes: int) -> Any:
        """The next bytes.

        Raises:
            ValueError: they are no Arrow message.
        """
        data = self._read(size_bytes)
        if len(data) == size_bytes:
            try:
                self._next(data)
            except (struct.error, IndexError) as error:
                raise ValueError(f"no Arrow message: {error}") from error
        return data

    def _prefix(self, data: Any) -> None:
        (value,) = struct.unpack("<I", data)
        self._next = self._length if value == _CONTINUES else self._metadata
        self.ended = value == 0

    def _length(self, data: Any) -> None:
        (value,) = struct.unpack("<i", data)
        self._next = self._metadata
        self.ended = value == 0

    def _metadata(self, data: Any) -> None:
        message = _Table(data, struct.unpack_from("<I", data)[0])
        (kind,), (body_bytes,) = message.scalar(1, "<B"), message.scalar(3, "<q")
        batch = message.table(2)
        if kind == _DICTIONARY and batch is not None:
            batch = batch.table(1)
        if batch is None or kind not in (_DICTIONARY, _RECORD_BATCH) or batch.table(3) is None:
            self._buffers_B2 = np.zeros((0, 2), np.int64)
        else:
            self._buffers_B2 = batch.pairs(2)
        self._next = self._body if body_bytes > 0 else self._prefix

    def _body(self, data: Any) -> None:
        self._next = self._prefix
        if self._check is None or not len(self._buffers_B2):
            return
        total = 0
        for start, size_bytes in self._buffers_B2.tolist():
            if size_bytes >= 8 and 0 <= start <= len(data) - 8:
                total += max(0, struct.unpack_from("<q", data, start)[0])
        self._check(len(data), total)


class _Table:
    """A flatbuffers table at ``at`` in ``data``."""

    def __init__(self, data: Any, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if at < 0 or self._fields < 0:
            raise IndexError("an offset in front of the message")

    def _place(self, field: int) -> int | None:
        (size_bytes,) = struct.unpack_from("<H", self._data, self._fields)
        slot = 4 + 2 * field
        if slot + 2 > size_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._fields + slot)
        return self._at + offset if offset else None

    def scalar(self, field: int, form: str) -> tuple[Any, ...]:
        """A number; 0 where it is left out."""
        place = self._place(field)
        return (0,) if place is None else struct.unpack_from(form, self._data, place)

    def _target(self, field: int) -> int | None:
        place = self._place(field)
        return None if place is None else place + struct.unpack_from("<I", self._data, place)[0]

    def table(self, field: int) -> _Table | None:
        """A table inside, or None."""
        target = self._target(field)
        return None if target is None else _Table(self._data, target)

    def pairs(self, field: int) -> Any:
        """A vector of structures of two int64 (B, 2)."""
        target = self._target(field)
        if target is None:
            return np.zeros((0, 2), np.int64)
        (count,) = struct.unpack_from("<I", self._data, target)
        start = target + 4
        if start + 16 * count > len(self._data):
            raise IndexError("a vector behind the message")
        return np.frombuffer(self._data, np.dtype("<i8"), 2 * count, start).reshape(-1, 2)
