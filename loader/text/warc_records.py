"""WARC records from a decompressed stream, each with the place where it begins; texts read again by Origin.

Parsed by warcio, decoded by the rule of datatrove's ``process_record`` (UTF-8, else what cchardet takes it for), which
this repeats because the loader goes without datatrove; a test compares the two.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DamageError, TokenreelError
from .decompress import COMPRESSIONS, open_decompressed
from .extras import need_extra

if TYPE_CHECKING:
    from .records import RecordPlace

__all__ = ["WarcRecord", "decode_page", "read_content", "read_warc_again", "warc_records"]

_CHUNK_BYTES = 1 << 20
_MOST_HEADER_BYTES = 8 << 20
_LONGEST = 1 << 30


class WarcRecord(NamedTuple):
    """A record: warcio's, the offset of its first byte in the decompressed stream, and whether its HTTP header could
    be read."""

    record: Any
    start: int
    is_whole: bool


class _Tape:
    """What warcio reads from. Between two records only headers are read, and they are short."""

    def __init__(self, stream: Any, position: int) -> None:
        self._stream = stream
        self._position = position
        self.left = _MOST_HEADER_BYTES

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def read(self, size_bytes: int = -1) -> bytes:
        """The next bytes.

        Raises:
            ValueError: headers without end.
        """
        self.left -= size_bytes
        if size_bytes < 0 or self.left < 0:
            raise ValueError(f"headers of more than {_MOST_HEADER_BYTES} bytes")
        data = bytes(self._stream.read(size_bytes))
        self._position += len(data)
        return data


def warc_records(stream: Any, position: int = 0) -> Iterator[WarcRecord]:
    """The records of a decompressed stream (``read``), whose next byte has the offset ``position``; each is valid until
    the next one is asked for.

    warcio itself takes an empty line at the start, and a page whose HTTP header is empty, for the end of the file, and
    a header that is cut for a whole one; so HTTP headers are parsed here, and lengths and the end are checked.

    Raises:
        ValueError: a record is cut short, is longer than it says, or is none.
    """
    tape = _Tape(stream, position)
    iterator = import_module("warcio.archiveiterator").ArchiveIterator(tape, no_record_parse=True)
    first = True
    while (record := _next_record(iterator)) is not None:
        first = False
        length = _length(record, iterator.offset)
        is_whole = _parse_http(iterator.loader, record, length)
        tape.left = 1 << 62
        yield WarcRecord(record, int(iterator.offset), is_whole)
        while record.raw_stream.read(_CHUNK_BYTES):
            pass
        if getattr(record.raw_stream, "limit", 0) > 0:
            raise ValueError(f"the record at byte {iterator.offset} is cut short")
        tape.left = _MOST_HEADER_BYTES
    if tape.tell() > position and (first or stream.read(1)):
        raise ValueError(f"no WARC record at byte {position if first else tape.tell()}")


def _next_record(iterator: Any) -> Any:
    """warcio's next record, None at the end."""
    try:
        record = next(iterator, None)
    except (TokenreelError, OSError):
        raise
    except Exception as error:  # warcio raises whatever its parser meets
        raise ValueError(f"no WARC record: {str(error)[:200]}") from error
    if iterator.err_count:
        raise ValueError("the record in front of this one is longer than it says")
    return record


def _length(record: Any, start: int) -> int:
    said = record.rec_headers.get_header("length" if record.format == "arc" else "Content-Length")
    if said is None or not str(said).strip().isdecimal():
        raise ValueError(f"the record at byte {start} does not say its length")
    return int(said)


def _parse_http(loader: Any, record: Any, length: int) -> bool:
    """Parse the HTTP header of a response; whether there is one where there has to be."""
    uri = record.rec_headers.get_header("WARC-Target-URI") or record.rec_headers.get_header("uri") or ""
    if record.rec_type != "response":
        return True
    try:
        record.http_headers = loader.load_http_headers(record.rec_type, uri.strip("<> "), record.raw_stream, length)
    except TokenreelError:
        raise
    except Exception:  # the record is broken, not the file
        return False
    return True


def read_content(record: Any, most_bytes: int) -> bytes | None:
    """The payload of a record, unpacked as HTTP says; None if it has more than ``most_bytes``.

    Raises:
        Exception: whatever warcio's decoders raise on a payload that is not what its headers say.
    """
    stream = record.content_stream()
    parts, size = [], 0
    while data := stream.read(_CHUNK_BYTES):
        parts.append(data)
        size += len(data)
        if size > most_bytes:
            return None
    return b"".join(parts)


def decode_page(content: bytes) -> str:
    """A page as text.

    Raises:
        ValueError: no encoding fits.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        encoding = import_module("cchardet").detect(content)["encoding"]
        if not encoding:
            raise
        try:
            return content.decode(encoding)
        except LookupError as error:
            raise ValueError(f"no codec {encoding}") from error


def read_warc_again(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """Texts of the records at ascending ``places``; one pass from the first of them."""
    need_extra("warc", path)
    with open_decompressed(path) as opened:
        first = places[0]
        if path.suffix.lower() in COMPRESSIONS:
            left = first.record_start
            while left and (data := opened.read(min(left, _CHUNK_BYTES))):
                left -= len(data)
        else:
            opened.seek(first.record_start)
        stream = io.BufferedReader(opened) if isinstance(opened, io.RawIOBase) else opened
        wanted, number = iter(places), first.record
        place = next(wanted)
        for found in warc_records(stream, first.record_start):
            if number == place.record:
                content = read_content(found.record, _LONGEST) if found.start == place.record_start else None
                if content is None:
                    raise DamageError("TR-TEXT-RECORD", "no such record there", f"{path} record {number}")
                yield decode_page(content)
                following = next(wanted, None)
                if following is None:
                    return
                place = following
            number += 1
    raise EOFError(f"only {number} records")
