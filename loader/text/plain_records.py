"""Plain text: a file as one document, or each run of lines that are not blank; read again by Origin.

A line is blank if ASCII white space is all there is in it. A paragraph is the bytes from the start of its first line to
the end of its last one, without the line end (``\\n`` or ``\\r\\n``) behind that; what lies between stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamageError
from .decompress import open_decompressed

if TYPE_CHECKING:
    from .records import RecordPlace

__all__ = ["BOM", "END", "WHITE_SPACE", "paragraph_text", "read_paragraphs_again", "read_text_again"]

BOM = b"\xef\xbb\xbf"
WHITE_SPACE = re.compile(rb"[ \t\r\v\f\n]*")
"""Blank lines, and the white space that the first line that is not blank begins with."""
_LONGEST = (1 << 30) + len(BOM)  # ingest.line_limit_bytes ends there
END = re.compile(rb"\n[ \t\r\v\f]*\n")
"""What ends a paragraph: a line end and a blank line."""
_CHUNK_BYTES = 1 << 20


def paragraph_text(lines: bytes) -> bytes:
    """A paragraph without the line end of its last line; ``lines`` begins where it begins and may go on behind it."""
    match = END.search(lines)
    text = lines[: match.start()] if match is not None else lines.rstrip(b" \t\v\f\r\n")
    if match is None:
        ending = lines[len(text) :]
        text += ending[: ending.find(b"\n")] if b"\n" in ending else ending
    return text.removesuffix(b"\r")


def read_text_again(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """The text of a file that is one document."""
    with open_decompressed(path) as stream:
        data = _read_up_to(stream, _LONGEST)
    for place in places:
        if place.record != 0:
            raise DamageError("TR-TEXT-RECORD", "the file is one record", f"{path} record {place.record}")
        yield data.removeprefix(BOM).decode()


def _read_up_to(stream: Any, most: int) -> bytes:
    parts, size = [], 0
    while chunk := stream.read(_CHUNK_BYTES):
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise ValueError(f"longer than {most} bytes")
    return b"".join(parts)


def read_paragraphs_again(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """Texts of the paragraphs at ascending ``places``; one pass."""
    buffer, base = bytearray(), 0
    with open_decompressed(path) as stream:
        for place in places:
            while base + len(buffer) <= place.record_start:
                base += len(buffer)
                buffer[:] = stream.read(_CHUNK_BYTES)
                if not buffer:
                    raise EOFError(f"the text ends at {base}, the record starts at {place.record_start}")
            del buffer[: place.record_start - base]
            base = place.record_start
            searched = 0
            while END.search(buffer, searched) is None and (chunk := stream.read(_CHUNK_BYTES)):
                last = buffer.rfind(b"\n", searched)
                searched = last if last >= 0 else len(buffer)  # a line of a gigabyte is searched once
                buffer += chunk
                if len(buffer) > _LONGEST:
                    raise ValueError(f"no end within {_LONGEST} bytes")
            yield paragraph_text(bytes(buffer)).decode()
