"""Input files as streams of decompressed bytes that never end silently and never without end.

pyarrow's codecs raise on every truncated frame (``zstandard.stream_reader`` does not: it ends as if all were well), and
so does isal's gzip, at 2.5 times the speed of pyarrow's. Concatenated frames and members are read on.
A file cut exactly between two frames looks whole to every decoder: sizes and hashes recorded at the first read are what
shows it later. A file of no bytes is cut as well: no compressor writes one.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from loader.errors import ConfigError, DamageError, JobError
from loader.text.decompress import COMPRESSIONS, is_decoder_error, is_system_error, open_decompressed

from .base import ReadOptions
from .first_bytes import check_first_bytes

__all__ = ["COMPRESSIONS", "BombGuard", "ByteStream", "missing", "unreadable"]

_JUDGED_FROM = 64 << 20
_WINDOW_WORDS = "requires too much memory"


def unreadable(path: Path, error: OSError) -> JobError:
    """The error for a file that the system does not give: says nothing about what is in it."""
    message = f"cannot read an input file: {error.strerror or error}"
    return JobError("TR-INPUT-UNREADABLE", message, str(path), "a file that can be read", "the same command again")


def missing(path: Path, error: OSError) -> ConfigError:
    """The error for a file that cannot be opened."""
    return ConfigError(
        "TR-INPUT-MISSING", f"the input cannot be opened: {error.strerror or error}", str(path), "a readable file"
    )


class BombGuard:
    """Counts what comes out of a file and refuses a decompression bomb."""

    def __init__(self, path: Path, size_bytes: int, options: ReadOptions) -> None:
        """``size_bytes``: of the file as it lies on disk."""
        self._path = path
        self._size_bytes = size_bytes
        self._most = min(options.max_stream_bytes, max(_JUDGED_FROM, int(options.max_expansion * size_bytes)))
        self._out_bytes = 0

    def add(self, out_bytes: int) -> None:
        """Count ``out_bytes`` more.

        Raises:
            DamageError: ``TR-INPUT-BOMB``: more than the limits allow; names file, bytes in, bytes out.
        """
        self._out_bytes += out_bytes
        if self._out_bytes > self._most:
            raise DamageError(
                "TR-INPUT-BOMB",
                f"{self._size_bytes:,} bytes on disk yield {self._out_bytes:,} and more",
                str(self._path),
                f"at most {self._most:,} bytes (ingest.max_expansion, ingest.max_stream_bytes)",
                "look at the file; raise the limit if it is what it should be",
            )


class ByteStream:
    """Decompressed bytes of a file, hashed as they pass.

    When the decoder fails, what it can still give is given first, to the last byte: ``readinto`` then returns 0 and
    ``failure`` holds the decoder's words, so that a caller can deliver the whole records in front of the damage.

    Attributes:
        position: bytes delivered so far.
        failure: why the stream ended early, or None.
    """

    def __init__(self, path: Path, options: ReadOptions | None = None) -> None:
        """Open ``path``; ``options`` limits what may come out of it.

        Raises:
            ConfigError: there is no such file, or it cannot be opened; ``TR-INPUT-FORMAT``: it is something else than
                its suffix says.
            JobError: ``TR-INPUT-UNREADABLE``: the system does not give it.
        """
        self.path = path
        self.position = 0
        self.failure: str | None = None
        self._digest = xxhash.xxh3_128()
        try:
            size_bytes = path.stat().st_size
            if size_bytes:
                check_first_bytes(path)
            elif path.suffix.lower() in COMPRESSIONS:
                self.failure = "the file is empty, which no compressed file is"
            self._stream = open_decompressed(path)
            self._guard = BombGuard(path, size_bytes, options or ReadOptions())
        except OSError as error:
            if error.errno == errno.EIO:
                raise unreadable(path, error) from error
            raise missing(path, error) from error

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless twice."""
        self._stream.close()

    @property
    def stream_hash(self) -> str:
        """xxh3-128 of the bytes delivered so far, 32 hex digits."""
        return self._digest.hexdigest()

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` from its start; the number of bytes, 0 at the end or at the damage.

        Raises:
            DamageError: ``TR-INPUT-BOMB``.
            JobError: ``TR-INPUT-UNREADABLE``.
        """
        if self.failure is not None:
            return 0
        try:
            count = int(self._stream.readinto(view) or 0)
        except Exception as error:
            if isinstance(error, OSError) and is_system_error(error):
                raise unreadable(self.path, error) from error
            if not is_decoder_error(error):
                raise
            self.failure = str(error) or type(error).__name__
            count = self._salvage(view)
        self._digest.update(view[:count])
        self.position += count
        self._guard.add(count)
        return count

    def read(self, size_bytes: int) -> bytes:
        """At most ``size_bytes``; none at the end or at the damage.

        Raises:
            DamageError: ``TR-INPUT-BOMB``.
        """
        buffer = bytearray(size_bytes)
        got = self.readinto(memoryview(buffer))
        return bytes(memoryview(buffer)[:got])

    def _salvage(self, view: memoryview) -> int:
        """The bytes between ``position`` and the damage: a failing read keeps what it decoded, so read ever less at
        once."""
        count = 0
        size = len(view)
        while size > 1:
            size = max(1, size // 16)
            count = self._read_again(view, count, size)
        return count

    def _read_again(self, view: memoryview, count: int, size: int) -> int:
        """Open again, pass over ``position + count`` bytes, go on in pieces of ``size``; the new count."""
        self._stream.close()
        self._stream = open_decompressed(self.path)
        try:
            _pass_over(self._stream, self.position + count, size)
            while count < len(view):
                got = int(self._stream.readinto(view[count : count + size]) or 0)
                if got == 0:
                    break
                count += got
        except Exception:  # noqa: S110 - the failure is known and reported; this only asks how far one gets
            pass
        return count

    def damage(self, last_good: str) -> DamageError:
        """The error to raise for ``failure``; ``last_good`` names the last whole record."""
        if _WINDOW_WORDS in (self.failure or ""):
            return DamageError(
                "TR-INPUT-DAMAGED",
                f"the zstd frame needs a window of more than 128 MiB to decode, which is refused: {self.failure}",
                f"{self.path}, {last_good}",
                "windows of 128 MiB at most (zstd --long=27)",
                f"zstd -d --long=31 -c {self.path} | zstd -o COPY.zst",
            )
        return DamageError(
            "TR-INPUT-TRUNCATED",
            f"the compressed stream is cut short or corrupt after {self.position} bytes: {self.failure}",
            f"{self.path}, {last_good}",
            "whole compressed frames to the end of the file",
            "fetch the file again",
        )


def _pass_over(stream: Any, size_bytes: int, piece: int) -> None:
    """Read and drop ``size_bytes``: in large pieces far from the end, in small ones near it."""
    scratch = memoryview(bytearray(1 << 20))
    left = size_bytes
    while left > 0:
        want = min(left, len(scratch) if left > len(scratch) else max(piece, 4096))
        got = int(stream.readinto(scratch[:want]) or 0)
        if got == 0:
            return
        left -= got
