"""WARC records written by hand."""

from __future__ import annotations

__all__ = ["NO_ENCODING", "warc_record"]

NO_ENCODING = bytes(range(0x80, 0x100)) * 3 + b"\x81\xff\xff\xff"
"""Bytes that are no text in any encoding."""


def warc_record(page: bytes, *, kind: str = "response", mime: str | None = "text/html", http: str | None = "") -> bytes:
    """One record of WARC 1.0: an HTTP response with ``page`` as its body (``http``: further lines of its header; None =
    the page is all there is), or,
    for another ``kind``, the page as it is."""
    if kind == "response" and http is not None:
        page = f"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n{http}\r\n".encode() + page
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-000000000000>",
        "WARC-Date: 2026-01-01T00:00:00Z",
        "WARC-Target-URI: http://example.org/",
        f"Content-Length: {len(page)}",
        *([f"WARC-Identified-Payload-Type: {mime}"] if mime else []),
    ]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + page + b"\r\n\r\n"
