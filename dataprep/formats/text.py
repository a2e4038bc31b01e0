"""Plain text: a file is a document (``text``), or each run of lines that are not blank is one (``text_paragraphs``).

What a paragraph is, to the byte, is said in ``loader.text.plain_records``. Blank lines are no records. Memory is
bounded by the batch size and the line limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loader.text.plain_records import BOM, END, WHITE_SPACE, paragraph_text

from ..documents import RejectReason
from .base import RawBatch, ReadRequest, RejectSink
from .collect import Collector
from .decompress import ByteStream

__all__ = ["read_paragraphs", "read_text"]

_READ_BYTES = 1 << 20
_BLANK_LINE_BYTES = 4096


def read_text(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read a file as one document; a BOM at its start is no text.

    Raises:
        ConfigError: there is no such file.
        DamageError: a compressed stream is cut short or corrupt, or a bomb.
    """
    collector = Collector(request, rejects)
    with ByteStream(path, request.options) as stream:
        window = _Window(stream, 0)
        limit = request.options.line_limit_bytes + len(BOM)
        window.fill(limit + 1)
        too_long = len(window.data) > limit
        text = b"" if too_long else bytes(window.data).removeprefix(BOM)
        while too_long and window.fill(_READ_BYTES):
            window.drop(len(window.data))
        if stream.failure is not None:
            raise stream.damage(collector.last_good)
        if too_long:
            collector.reject(0, 0, RejectReason.TOO_LONG)
        else:
            collector.add(0, 0, text)
        batch = collector.batch()
        if batch is not None:
            yield batch
        collector.finish(1, 0, (stream.position, stream.stream_hash))


class _Window:
    """A stretch of a stream.

    Attributes:
        data: the bytes at hand; ``base``: offset of the first of them in the stream.
        ended: nothing comes behind them.
    """

    def __init__(self, stream: ByteStream, batch_bytes: int) -> None:
        self._stream = stream
        self._batch_bytes = batch_bytes
        self._scratch = memoryview(bytearray(_READ_BYTES))
        self.data = bytearray()
        self.base = 0
        self.ended = False

    @property
    def failed(self) -> bool:
        """Whether it ended early."""
        return self._stream.failure is not None

    def fill(self, size_bytes: int) -> bool:
        """Read until ``size_bytes`` are at hand or nothing is left; whether there is anything."""
        while len(self.data) < size_bytes and not self.ended:
            got = self._stream.readinto(self._scratch[: min(len(self._scratch), size_bytes - len(self.data))])
            self.data += self._scratch[:got]
            self.ended = got == 0
        return bool(self.data)

    def drop(self, count: int) -> None:
        """Forget the first ``count`` bytes."""
        del self.data[:count]
        self.base += count

    def more(self, start: int) -> int:
        """Keep ``data[start:]`` and read on behind it, at least as much again; how much was there."""
        self.drop(start)
        known = len(self.data)
        self.fill(max(self._batch_bytes, 2 * known))
        return known


def read_paragraphs(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read a file paragraph by paragraph; a BOM at its start is no text.

    Raises:
        ConfigError: there is no such file.
        DamageError: a compressed stream is cut short or corrupt, or a bomb; the paragraphs in front of it have been
            yielded.
    """
    collector = Collector(request, rejects)
    limit = request.options.line_limit_bytes
    record = 0
    with ByteStream(path, request.options) as stream:
        window = _Window(stream, max(request.options.batch_bytes, 64))
        for start, text in _paragraphs(window, limit):
            if text is None:
                collector.reject(record, start, RejectReason.TOO_LONG)
            else:
                collector.add(record, start, text)
            record += 1
            if collector.is_full and (batch := collector.batch()) is not None:
                yield batch
        if (batch := collector.batch()) is not None:
            yield batch
        if stream.failure is not None:
            raise stream.damage(collector.last_good)
        collector.finish(record, 0, (stream.position, stream.stream_hash))


def _paragraphs(window: _Window, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Start of each paragraph in the stream and its text, None if it is longer than ``limit`` (with the blank line
    behind it: than that and a little); what lies in front of damage without its end is none."""
    longest = limit + _BLANK_LINE_BYTES
    window.fill(max(window.more(0), len(BOM)))
    place = len(BOM) if window.data.startswith(BOM) else 0
    while (line := _next_line(window, place, longest)) is not None:
        start, place = line
        searched = place
        while (end := END.search(window.data, searched)) is None and not window.ended:
            if len(window.data) - place > longest:
                break
            known = window.more(place)
            place, last = 0, window.data.rfind(b"\n", 0, known)
            searched = last if last >= 0 else known
        if end is None and window.failed:
            return
        stop = end.end() if end is not None else len(window.data)
        if stop - place <= longest and start == window.base + place:
            lines = bytes(window.data[place : stop if end is None else end.start()])
            yield start, paragraph_text(lines) if end is None else lines.removesuffix(b"\r")
            place = stop
        else:
            place = _pass_paragraph(window, place)
            yield start, None


def _next_line(window: _Window, place: int, longest: int) -> tuple[int, int] | None:
    """Start in the stream, and index in the window, of the first line from ``place`` on that is not blank; None = there
    is none. Of a line that begins with more white space than ``longest`` the start is gone from the window."""
    start = None
    while True:
        found = WHITE_SPACE.match(window.data, place)
        stop = found.end() if found is not None else place
        line = window.data.rfind(b"\n", place, stop) + 1
        if line > 0 or start is None:
            place, start = max(line, place), window.base + max(line, place)
        if stop < len(window.data):
            return start, place
        if window.ended:
            return None
        window.more(place if stop - place <= longest else stop)
        place = 0


def _pass_paragraph(window: _Window, place: int) -> int:
    """Drop the rest of a paragraph that is too long; where the next one may begin."""
    while (end := END.search(window.data, place)) is None and not window.ended:
        last = window.data.rfind(b"\n", place)
        window.more(last if last >= 0 else len(window.data))
        place = 0
    return end.end() if end is not None else len(window.data)
