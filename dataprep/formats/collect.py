"""From records that come one at a time to batches: judged by one set of rules, counted, packed as Arrow text.

Shapes: N documents of a batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..documents import RejectReason
from .base import FileSummary, RawBatch, ReadRequest, RejectSink

__all__ = ["SPARE_BYTES", "Collector", "is_utf8", "is_wanted"]

SPARE_BYTES = 64
"""Readable bytes behind the text of a batch, which the kernels rely on."""
_MOST_DOCUMENTS = 1 << 16


def is_wanted(keep_R: NDArray[np.bool_] | None, record: int) -> bool:
    """Whether a record was asked for."""
    return keep_R is None or (record < len(keep_R) and bool(keep_R[record]))


def _pack_texts(texts: list[bytes]) -> pa.LargeStringArray:
    """Valid UTF-8 texts as Arrow text with spare bytes."""
    offset_N = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offset_N[1:])
    data = b"".join([*texts, bytes(SPARE_BYTES)])
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offset_N), pa.py_buffer(data))


class Collector:
    """Takes the records of a file in order; hands out batches, and at the end the summary.

    Attributes:
        size_bytes: text collected for the next batch.
        num_documents: documents handed out.
        last_good: names the last document, for an error behind it.
    """

    def __init__(self, request: ReadRequest, rejects: RejectSink) -> None:
        self._request = request
        self._rejects = rejects
        self._limit = request.options.line_limit_bytes
        self._texts: list[bytes] = []
        self._places: list[tuple[int, int]] = []
        self._extras: list[bytes] = []
        self.num_documents = 0
        self.size_bytes = 0
        self.last_good = "no whole record"

    @property
    def is_full(self) -> bool:
        """Whether a batch is due: a document of one byte costs some 200 until it is handed out."""
        return self.size_bytes >= self._request.options.batch_bytes or len(self._texts) >= _MOST_DOCUMENTS

    def wants(self, record: int) -> bool:
        """Whether a record was asked for."""
        return is_wanted(self._request.keep_R, record)

    def reject(self, record: int, record_start: int, reason: RejectReason) -> None:
        """Take a record that is no document."""
        if self.wants(record):
            self._rejects.add_one(record, record_start, reason)

    def add(self, record: int, record_start: int, text: bytes, extra: bytes = b"") -> None:
        """Take a record by its bytes: too long, no UTF-8 and nothing but ASCII white space are rejects; ``extra``: JSON
        of the extra field, by ``json_of``."""
        if not self.wants(record):
            return
        if len(text) > self._limit:
            self.reject(record, record_start, RejectReason.TOO_LONG)
        elif not is_utf8(text):
            self.reject(record, record_start, RejectReason.UTF8)
        elif not text or text.isspace():  # of ASCII: bytes know no other white space
            self.reject(record, record_start, RejectReason.EMPTY)
        else:
            self._texts.append(text)
            self._places.append((record, record_start))
            self._extras.append(extra)
            self.size_bytes += len(text)

    def batch(self, before: int | None = None) -> RawBatch | None:
        """What was collected since the last batch, of records before ``before``; None = nothing."""
        while before is not None and self._places and self._places[-1][0] >= before:
            del self._texts[-1], self._places[-1], self._extras[-1]
        if not self._texts:
            return None
        place_N2 = np.array(self._places, np.int64)
        extra_N = tuple(self._extras) if self._request.options.extra_field else None
        batch = RawBatch(_pack_texts(self._texts), place_N2[:, 0].copy(), place_N2[:, 1].copy(), extra_N)
        record, start = self._places[-1]
        self.last_good = f"last good record {record} at byte {start}"
        self.num_documents += len(self._texts)
        self._texts, self._places, self._extras, self.size_bytes = [], [], [], 0
        return batch

    def finish(self, num_records: int, num_blank: int, stream: tuple[int, str]) -> None:
        """Leave the summary; ``stream``: size and hash of what was read."""
        self._rejects.summary = FileSummary(
            num_records, num_blank, self.num_documents, self._rejects.num_rejected, *stream
        )


def is_utf8(text: bytes) -> bool:
    """Whether ``text`` is valid UTF-8."""
    if text.isascii():
        return True
    try:
        text.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return True
