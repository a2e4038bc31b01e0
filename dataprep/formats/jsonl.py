r"""JSONL: one JSON object per line, split on ``\n`` bytes alone.

Memory is bounded by the batch size and the line limit, whatever the file holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..documents import RejectReason
from .base import LONGEST_EXTRA, REJECT_DTYPE, FileSummary, RawBatch, ReadRequest, RejectSink
from .collect import is_wanted
from .decompress import ByteStream
from .scanner import PADDING_BYTES, STATE, ScanInput, ScanOutput, scan_lines, scratch_size

__all__ = ["read_jsonl"]

_BOM = b"\xef\xbb\xbf"
_LINES_PER_SCAN = 1 << 15
_READ_BYTES = 1 << 20


class _Lines:
    """Whole lines of a stream in one reused buffer.

    Attributes:
        data: the buffer (uint8); ``size`` of its bytes are filled.
        base: offset of ``data[0]`` in the stream.
        too_long: starts of lines over the limit; each is passed over and counts as one record.
    """

    def __init__(self, stream: ByteStream, batch_bytes: int, line_limit_bytes: int) -> None:
        self._stream = stream
        self._limit = line_limit_bytes + len(_BOM)  # the scanner judges to the byte, after the BOM
        self._ended = False
        self.data = np.zeros(max(batch_bytes, 64) + 2 * PADDING_BYTES, np.uint8)
        self.size = 0
        self.base = 0

    @property
    def capacity(self) -> int:
        return len(self.data) - 2 * PADDING_BYTES

    def _fill(self) -> None:
        view = memoryview(self.data.data)
        while self.size < self.capacity and not self._ended:
            got = self._stream.readinto(view[self.size : min(self.capacity, self.size + _READ_BYTES)])
            self._ended = got == 0
            self.size += got

    def _last_newline(self) -> int:
        """Index after the last newline of the buffer, 0 without one."""
        stop = self.size
        while stop > 0:
            start = max(0, stop - (1 << 16))
            found = self.data[start:stop].tobytes().rfind(b"\n")
            if found >= 0:
                return start + found + 1
            stop = start
        return 0

    def drop(self, count: int) -> None:
        """Forget the first ``count`` bytes."""
        self.data[: self.size - count] = self.data[count : self.size].copy()
        self.base += count
        self.size -= count

    def next_lines(self) -> int:
        """Fill up; bytes of whole lines at the front, 0 at the end of the stream, -1 if one line exceeds the limit."""
        while True:
            self._fill()
            stop = self._last_newline()
            if stop > 0 or self.size == 0:
                return stop
            if self._ended:
                if self._stream.failure is not None:
                    return 0  # half a record in front of the damage is no record
                if self.size > self._limit:
                    return -1
                self.data[self.size] = 10  # the last line needs no newline
                return self.size + 1
            if self.size > self._limit:
                return -1
            grown = np.zeros(min(2 * self.capacity, self._limit + 1) + 2 * PADDING_BYTES, np.uint8)
            grown[: self.size] = self.data[: self.size]
            self.data = grown

    def pass_line(self) -> None:
        """Drop the rest of a line that is too long, with its newline if it has one."""
        while True:
            found = np.flatnonzero(self.data[: self.size] == 10)
            if len(found):
                self.drop(int(found[0]) + 1)
                return
            self.drop(self.size)
            self._fill()
            if self.size == 0:
                return


def _text_memory(size_bytes: int) -> NDArray[np.uint8]:
    """Memory of Arrow's pool, which keeps what a finished batch gives back: malloc returns blocks of this size to the
    system, and touching fresh pages costs a fifth of the reading."""
    return np.frombuffer(pa.allocate_buffer(size_bytes), np.uint8)


def _sink(key: bytes, extra_key: bytes) -> ScanOutput:
    return ScanOutput(
        text=np.zeros(0, np.uint8),
        offset_N=np.zeros(_LINES_PER_SCAN + 1, np.int64),
        start_N=np.zeros(_LINES_PER_SCAN, np.int64),
        record_N=np.zeros(_LINES_PER_SCAN, np.int64),
        reject_L3=np.zeros((_LINES_PER_SCAN, 3), np.int64),
        stop_L=np.zeros(_LINES_PER_SCAN, np.int64),
        high_L=np.zeros(_LINES_PER_SCAN, np.uint8),
        state=np.zeros(STATE.LENGTH, np.int64),
        scratch=np.zeros(scratch_size(max(len(key), len(extra_key))), np.uint8),
        extra_N2=np.zeros((_LINES_PER_SCAN if extra_key else 0, 2), np.int64),
    )


def _extra_values(data: NDArray[np.uint8], extra_N2: NDArray[np.int64]) -> tuple[bytes, ...]:
    """Copies of the values of the extra field; long ones are no dates and no numbers and count as missing."""
    view = memoryview(data.data)
    short = ((start, stop) if stop - start <= LONGEST_EXTRA else (0, 0) for start, stop in extra_N2.tolist())
    return tuple(bytes(view[start:stop]) for start, stop in short)


def _batch(sink: ScanOutput, data: NDArray[np.uint8], base: int) -> RawBatch:
    count = int(sink.state[STATE.DOCUMENTS])
    offsets = sink.offset_N[: count + 1].copy()
    text = pa.LargeStringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(sink.text[: int(offsets[-1]) + PADDING_BYTES])
    )
    extra_N = _extra_values(data, sink.extra_N2[:count]) if len(sink.extra_N2) else None
    return RawBatch(text, sink.record_N[:count].copy(), sink.start_N[:count] + base, extra_N)


def _rejects(sink: ScanOutput, base: int) -> NDArray[np.void]:
    found = sink.reject_L3[: int(sink.state[STATE.REJECTS])]
    rows = np.zeros(len(found), REJECT_DTYPE)
    rows["record"], rows["record_start"], rows["reason"] = found[:, 0], found[:, 1] + base, found[:, 2]
    return rows


def read_jsonl(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read all lines of a file.

    Raises:
        ConfigError: there is no such file.
        DamageError: a compressed stream is cut short or corrupt, or a bomb; the records in front of it have been
            yielded.
    """
    with ByteStream(path, request.options) as stream:
        yield from _read_lines(stream, request, rejects)


def _read_lines(stream: ByteStream, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    key, extra_key = request.text_field.encode(), (request.options.extra_field or "").encode()
    keep_R = np.zeros(0, np.uint8) if request.keep_R is None else request.keep_R.astype(np.uint8)
    key_bytes, extra_bytes = (np.frombuffer(one, np.uint8) for one in (key, extra_key))
    lines = _Lines(stream, request.options.batch_bytes, request.options.line_limit_bytes)
    sink = _sink(key, extra_key)
    num_documents = num_blank = 0
    last_good = "no whole record"
    while (stop := lines.next_lines()) != 0:
        if stop < 0:
            if is_wanted(request.keep_R, int(sink.state[STATE.RECORD])):
                rejects.add_one(int(sink.state[STATE.RECORD]), lines.base, RejectReason.TOO_LONG)
            sink.state[STATE.RECORD] += 1
            lines.pass_line()
            continue
        first = len(_BOM) if lines.base == 0 and lines.data[:3].tobytes() == _BOM else 0
        source = ScanInput(lines.data, key_bytes, extra_bytes, keep_R, request.options.line_limit_bytes)
        while first < stop:
            sink = sink._replace(text=_text_memory(stop - first + 2 * PADDING_BYTES))
            scan_lines(source, first, stop, sink)
            first = int(sink.state[STATE.CONSUMED])
            rejects.add(_rejects(sink, lines.base))
            num_blank += int(sink.state[STATE.BLANK])
            if sink.state[STATE.DOCUMENTS]:
                batch = _batch(sink, lines.data, lines.base)
                num_documents += len(batch.text)
                last_good = f"last good record {batch.record_N[-1]} at byte {batch.record_start_N[-1]}"
                yield batch
        lines.drop(min(stop, lines.size))
    if stream.failure is not None:
        raise stream.damage(last_good)
    rejects.summary = FileSummary(
        num_records=int(sink.state[STATE.RECORD]),
        num_blank=num_blank,
        num_documents=num_documents,
        num_rejected=rejects.num_rejected,
        stream_bytes=stream.position,
        stream_hash=stream.stream_hash,
    )
