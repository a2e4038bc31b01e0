"""WARC (WET as well): records parsed by warcio, texts and what counts as one by datatrove's ``process_record``.

Records of another kind (requests, metadata, images) are no documents and no rejects: they count as blank. Memory is
bounded by the line limit: a longer payload is rejected unread, whatever HTTP compression says.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loader.errors import TokenreelError
from loader.text.extras import need_extra
from loader.text.warc_records import WarcRecord, read_content, warc_records

from ..documents import RejectReason
from .base import RawBatch, ReadRequest, RejectSink
from .collect import Collector
from .columns import json_of
from .decompress import ByteStream
from .parquet import damage

__all__ = ["read_warc"]

_KINDS = ("response", "conversion")


def read_warc(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read the pages of a WARC file.

    Raises:
        ConfigError: there is no such file; ``TR-INPUT-EXTRA``: warcio, cchardet or magic is missing.
        DamageError: cut short, corrupt, or a bomb; the records in front of it have been yielded.
    """
    need_extra("warc", path)
    collector = Collector(request, rejects)
    record = num_blank = 0
    with ByteStream(path, request.options) as stream:
        failure: Exception | None = None
        records = warc_records(stream)
        while True:
            try:
                found = next(records, None)
            except ValueError as error:
                failure, found = error, None
            if found is None:
                break
            if collector.wants(record):
                num_blank += not _add(found, record, collector, request)
            record += 1
            if collector.is_full and (batch := collector.batch()) is not None:
                yield batch
        # What was collected of a record that turns out to be cut is dropped with it.
        batch = collector.batch(before=record - 1) if failure is not None or stream.failure else collector.batch()
        if batch is not None:
            yield batch
        if stream.failure is not None:
            raise stream.damage(collector.last_good)
        if failure is not None:
            raise damage(path, collector.last_good, failure)
        collector.finish(record, num_blank, (stream.position, stream.stream_hash))


def _add(found: WarcRecord, number: int, collector: Collector, request: ReadRequest) -> bool:
    """Judge one record; whether it is a document or a reject."""
    record, start, is_whole = found
    if record.rec_type not in _KINDS:
        return False
    if not is_whole:
        collector.reject(number, start, RejectReason.SYNTAX)
        return True
    try:
        content = read_content(record, request.options.line_limit_bytes)
    except TokenreelError:
        raise
    except Exception:  # warcio's decoders raise what zlib, brotli and int() raise
        collector.reject(number, start, RejectReason.SYNTAX)
        return True
    if content is None:
        collector.reject(number, start, RejectReason.TOO_LONG)
        return True
    try:
        page = _page(record, content)
        if page is None and _page(record, content.decode("latin-1").encode()) is None:
            return False  # another kind of content, whatever its encoding
    except (KeyError, ValueError):
        collector.reject(number, start, RejectReason.SYNTAX)
        return True
    try:
        text = page["text"].encode() if page is not None else None
    except UnicodeEncodeError:
        collector.reject(number, start, RejectReason.SURROGATE)
        return True
    if text is None:
        collector.reject(number, start, RejectReason.UTF8)
    else:
        extra = page.get(request.options.extra_field or "") if page is not None else None
        collector.add(number, start, text, json_of(extra))
    return True


def _page(record: Any, content: bytes) -> dict[str, Any] | None:
    """What datatrove makes of a record with this content."""
    from datatrove.pipeline.readers.warc import process_record

    record.content_stream = lambda: io.BytesIO(content)
    page: dict[str, Any] | None = process_record(record)
    return page
