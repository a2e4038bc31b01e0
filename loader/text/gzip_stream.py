"""gzip files by ISA-L: 2.5 times the speed of zlib; an end that is no end is an error.

``igzip.open`` buffers 8 KiB behind the decoder, so an error hides whatever was decoded in front of it; here each byte
that can be decoded comes out first.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["GzipStream"]

_READ_BYTES = 1 << 18


class GzipStream(io.RawIOBase):
    """Decompressed bytes of a gzip file of any number of members; zeros between and behind them are padding, anything
    else there is an error."""

    def __init__(self, path: Path) -> None:
        """Open ``path``.

        Raises:
            OSError: it cannot be opened.
        """
        from isal import igzip_lib

        self._new_decoder: Callable[[], Any] = lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close
        self._decoder: Any = None
        self._data = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, view: Any) -> int:
        """Fill ``view`` from its start; the number of bytes, 0 at the end.

        Raises:
            EOFError: the file ends inside a member.
            OSError: it cannot be read.
            IsalError: it is no gzip, or its checksum differs.
        """
        while self._decoder is not None or self._next_member():
            if self._decoder.needs_input and not self._data:
                self._data = self._file.read(_READ_BYTES)
                if not self._data:
                    raise EOFError("the file ends inside a gzip member")
            out = self._decoder.decompress(self._data, len(view))
            self._data = b""  # what is not decoded yet, the decoder keeps
            if self._decoder.eof:
                self._data = self._decoder.unused_data
                self._decoder = None
            if out:
                view[: len(out)] = out
                return len(out)
        return 0

    def _next_member(self) -> bool:
        """Whether another member begins; passes over padding."""
        while not (data := self._data.lstrip(b"\0")):
            self._data = self._file.read(_READ_BYTES)
            if not self._data:
                return False
        self._data = data
        self._decoder = self._new_decoder()
        return True

    def close(self) -> None:
        """Close the file; harmless twice."""
        self._file.close()
        super().close()
