"""The hash of a large file: one xxh3-128 for each block of 64 MiB, so that several processes can check one file.

What a checkpoint's COMMIT.json and an upload record of a file is :meth:`BlockDigest.hexdigest`: who writes, who reads
back and who verifies takes it from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import xxhash

from .errors import DamageError
from .shards.access import open_regular

__all__ = ["BLOCK_BYTES", "BlockDigest", "hash_block", "hash_blocks", "num_blocks"]

BLOCK_BYTES = 64 << 20
"""Bytes of a block; part of the format of what is recorded."""

_CHUNK_BYTES = 1 << 22


class BlockDigest:
    """The hash of bytes that come in pieces of any size.

    Attributes:
        size_bytes: that came so far.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview] = ()) -> None:
        self.size_bytes = 0
        self._digest, self._done = xxhash.xxh3_128(), list[str]()
        for piece in pieces:
            self.update(piece)

    def update(self, data: bytes | memoryview) -> None:
        """More bytes."""
        rest = memoryview(data).cast("B")
        while len(rest):
            room = BLOCK_BYTES - self.size_bytes % BLOCK_BYTES
            if room == BLOCK_BYTES and self.size_bytes:
                self._done.append(self._digest.hexdigest())
                self._digest.reset()
            self._digest.update(rest[:room])
            self.size_bytes += len(rest[:room])
            rest = rest[room:]

    def hexdigest(self) -> str:
        """xxh3-128 of each block, 32 hex digits, one behind the other; one for no bytes."""
        return "".join([*self._done, self._digest.hexdigest()])


def num_blocks(size_bytes: int) -> int:
    """Blocks of so many bytes; no bytes are a block too."""
    return max(1, -(-size_bytes // BLOCK_BYTES))


def hash_block(path: Path, number: int) -> str:
    """xxh3-128 of one block of a file, read in pieces of 4 MiB.

    Raises:
        OSError: the file cannot be read.
    """
    digest, left = xxhash.xxh3_128(), BLOCK_BYTES
    with open(path, "rb", buffering=0) as file:
        file.seek(number * BLOCK_BYTES)
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def hash_blocks(path: Path) -> tuple[int, str]:
    """Size in bytes and hash of a regular file, read in pieces of 4 MiB.

    Raises:
        DamageError: it is missing, a link or no regular file, or cannot be read.
    """
    descriptor, digest = open_regular(path), BlockDigest()
    try:
        while piece := os.pread(descriptor, _CHUNK_BYTES, digest.size_bytes):
            digest.update(piece)
    except OSError as error:
        raise DamageError("TR-FILE-UNREADABLE", f"cannot read the file: {error.strerror}", str(path)) from None
    finally:
        os.close(descriptor)
    return digest.size_bytes, digest.hexdigest()
