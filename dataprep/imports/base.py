"""What every format of token sets gives, and the guarded reading that all share: these files are untrusted.

Shapes: R records of a batch, T their tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from loader.errors import ConfigError, DamageError, RefusedError
from loader.shards.access import file_size, open_regular

__all__ = [
    "BATCH_TOKENS",
    "MAX_INDEX_BYTES",
    "TOKEN_DTYPES",
    "RecordBatch",
    "SetFile",
    "SetFormat",
    "SetOptions",
    "check_hashes",
    "check_length",
    "damage",
    "map_tokens",
    "payload_paths",
    "read_bounded",
    "size_of",
]

BATCH_TOKENS = 1 << 24
MAX_INDEX_BYTES = 1 << 28

TOKEN_DTYPES: Mapping[str, str] = {
    "uint8": "u1",
    "int8": "i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
}
"""Name -> little-endian dtype of the integers that tokens are stored as."""


@dataclass(frozen=True)
class SetOptions:
    """What a format cannot say of itself: the column that holds the tokens, and their dtype where they are bytes
    (key of ``TOKEN_DTYPES``)."""

    column: str = "tokens"
    dtype: str | None = None


@dataclass(frozen=True)
class SetFile:
    """A file with tokens, and what else must be read with it.

    Attributes:
        path: of the tokens; provenance names it.
        beside: further files that shape what is read (indexes).
        facts: JSON-able; what the index says of it.
    """

    path: Path
    beside: tuple[Path, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class RecordBatch:
    """Records in order: number of the first, tokens of all (any integers), tokens of each, and the byte of the file at
    which each begins (in a compressed file: of what it decompresses to)."""

    first_record: int
    ids_T: NDArray[np.integer[Any]]
    num_tokens_R: NDArray[np.int64]
    start_R: NDArray[np.int64]


@dataclass(frozen=True)
class SetFormat:
    """How a format's files are found and read.

    Attributes:
        find: the files of one path that a user names, in order.
        read: the records of one file.
    """

    find: Callable[[Path], list[SetFile]]
    read: Callable[[SetFile, SetOptions], Iterator[RecordBatch]]


def damage(message: str, place: Path | str, expected: str | None = None, record: int | None = None) -> DamageError:
    """A damaged file, and the record in it."""
    where = str(place) if record is None else f"{place} record {record}"
    return DamageError("TR-IMPORT-DAMAGED", message, where, expected, "copy the file again from where it was made")


def payload_paths(path: Path, suffix: str, what: str) -> list[Path]:
    """Files with ``suffix``: the one named (with or without it), or those of a folder, sorted.

    Raises:
        ConfigError: there is none.
    """
    named = [path, path.with_name(path.name + suffix)] if path.name else [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob(f"*{suffix}") if file.is_file())
    else:
        found = [file for file in named if file.name.endswith(suffix) and file.is_file()][:1]
    if not found:
        raise ConfigError("TR-IMPORT-NONE", f"no {what} here", str(path), f"a file *{suffix}, or a folder of them")
    return found


def check_length(num_tokens: int, path: Path, record: int) -> None:
    """Refuse a record that no Dataset can hold; asked before anything is allocated for it.

    Raises:
        RefusedError: ``TR-DOCUMENT-LONG``: it has 2^31 tokens or more.
    """
    if num_tokens >= 1 << 31:
        message = f"a record of {num_tokens:,} tokens"
        raise RefusedError("TR-DOCUMENT-LONG", message, f"{path} record {record}", "fewer than 2^31 tokens")


def size_of(path: Path) -> int:
    """Bytes of a regular file. The user named it or its folder, so it may be a link (as in a download cache, or an
    export by ``--link``); what a link leads to must be a regular file.

    Raises:
        DamageError: it is missing, or no regular file.
    """
    return file_size(path.resolve())


def map_tokens(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A file of tokens, mapped; checked to be a regular file of whole tokens.

    Raises:
        DamageError: it is not.
    """
    size_bytes = size_of(path)
    if size_bytes % dtype.itemsize:
        raise damage(f"{size_bytes:,} bytes are no whole number of {dtype.itemsize}-byte tokens", path)
    if not size_bytes:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r")


_HASHES: Mapping[str, Callable[[], Any]] = {
    **{name: getattr(hashlib, name) for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")},
    **{name: getattr(hashlib, name) for name in ("sha3_224", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s")},
    "xxh32": xxhash.xxh32,
    "xxh64": xxhash.xxh64,
    "xxh128": xxhash.xxh128,
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
}


def check_hashes(path: Path, data: bytes, expected: Mapping[str, Any]) -> None:
    """Compare a file's bytes with every hash that its index gives.

    Raises:
        DamageError: one differs, or none of its names is known.
    """
    for name, value in expected.items():
        if name not in _HASHES:
            raise damage(f"the index gives a hash of unknown kind {name!r}", path, ", ".join(_HASHES))
        digest = _HASHES[name]()
        digest.update(data)
        if digest.hexdigest() != value:
            raise damage(f"the file's {name} is {digest.hexdigest()}", path, str(value))


def read_bounded(path: Path, most: int) -> bytes:
    """A whole regular file of at most ``most`` bytes.

    Raises:
        DamageError: it is missing, no regular file, or larger.
    """
    descriptor = open_regular(path.resolve())  # see size_of
    with open(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise damage("the file is larger than it may be", path, f"at most {most:,} bytes")
    return data
