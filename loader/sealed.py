"""JSON that knows when it was touched: files with a self-hash, and append-only lines whose checksums form a chain.

A sealed file holds one canonical JSON object whose ``self_hash`` is the xxh3-128 of the rest; a sealed line holds a
``checksum``, the xxh3-64 of the rest seeded with the line before, so that a line cannot be changed, moved or taken out
of the middle unseen. Both must be the canonical encoding byte for byte, so no flipped bit hides in white space.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from .canonical import canonical_json, digest_of
from .errors import DamageError
from .files import write_atomic

__all__ = [
    "MAX_DEPTH",
    "SealedLines",
    "append_sealed_line",
    "cut_torn_tail",
    "read_sealed",
    "read_sealed_lines",
    "seal",
    "unseal",
    "write_sealed",
]

MAX_DEPTH = 64
"""Levels of nesting that a sealed object may have."""

_HASH_KEY = "self_hash"
_LINE_KEY = "checksum"


def seal(value: Mapping[str, Any]) -> bytes:
    """The bytes of a sealed JSON file that holds ``value``.

    Raises:
        TypeError, ValueError: ``value`` is no JSON object (NaN and Infinity are none).
    """
    return canonical_json({**value, _HASH_KEY: digest_of(dict(value))}) + b"\n"


def unseal(data: bytes, place: str) -> dict[str, Any]:
    """The value in ``data`` without its hash.

    Raises:
        DamageError: the bytes are not what :func:`seal` wrote; ``place`` is named.
    """
    value = _parse_object(data, place)
    value.pop(_HASH_KEY, None)
    try:
        intact = seal(value) == data
    except (TypeError, ValueError):
        intact = False
    if not intact:
        raise DamageError("TR-SEAL-HASH", "the file differs from its self-hash", place, "an untouched file")
    return value


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` sealed and atomically.

    Raises:
        OSError: the file system refused.
    """
    write_atomic(path, seal(value))


def read_sealed(path: Path) -> dict[str, Any]:
    """Read what :func:`write_sealed` wrote.

    Raises:
        DamageError: missing, unreadable or changed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamageError(
            "TR-SEAL-MISSING", f"cannot read: {error.strerror}", str(path), "a sealed JSON file"
        ) from error
    return unseal(data, str(path))


@dataclass(frozen=True)
class SealedLines:
    """The intact lines of an append-only file.

    Attributes:
        values: the lines, without their checksums.
        size_bytes: length of the intact part; what follows it is a torn tail.
        torn_bytes: length of the torn tail.
        chain: checksum of the last line, the seed of the next one.
    """

    values: tuple[dict[str, Any], ...]
    size_bytes: int
    torn_bytes: int
    chain: int


def _line(value: Mapping[str, Any], chain: int) -> tuple[bytes, int]:
    checksum = xxhash.xxh3_64_intdigest(canonical_json(dict(value)), seed=chain)
    return canonical_json({**value, _LINE_KEY: f"{checksum:016x}"}) + b"\n", checksum


def read_sealed_lines(path: Path) -> SealedLines:
    """Read an append-only file of sealed lines; a missing file has none.

    What follows the last line end (part of a line, or the zeros of a power loss) is a torn tail and left out.

    Raises:
        DamageError: a complete line is not what was written, or a whole line ends in another byte than the line end, as
            no torn write leaves it; file and line number (from 1) are named.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return SealedLines((), 0, 0, 0)
    values: list[dict[str, Any]] = []
    start, chain = 0, 0
    while (stop := data.find(b"\n", start) + 1) > 0:
        line = data[start:stop]
        place = f"{path} line {len(values) + 1}"
        value = _parse_object(line, place)
        value.pop(_LINE_KEY, None)
        try:
            expected, chain = _line(value, chain)
        except (TypeError, ValueError):
            expected = b""
        if expected != line:
            raise DamageError("TR-SEAL-LINE", "the line differs from its checksum", place, "an untouched line")
        values.append(value)
        start = stop
    if _is_whole_line(data[start:], chain):
        place = f"{path} line {len(values) + 1}"
        raise DamageError("TR-SEAL-LINE", "the line's end differs from what was written", place, "an untouched line")
    return SealedLines(tuple(values), start, len(data) - start, chain)


def _is_whole_line(tail: bytes, chain: int) -> bool:
    """Whether a tail is a line but for its last byte; a zero there is what a power loss leaves."""
    try:
        value = _parse_object(tail[:-1], "")
        value.pop(_LINE_KEY, None)
        return tail[-1:] != b"\0" and _line(value, chain)[0][:-1] == tail[:-1]
    except (DamageError, TypeError, ValueError):
        return False


def cut_torn_tail(path: Path) -> SealedLines:
    """Cut what a killed writer left behind the last complete line; returns the file as it was found.

    Raises:
        DamageError: damage before the tail; nothing is cut then.
    """
    lines = read_sealed_lines(path)
    if lines.torn_bytes:
        with open(path, "r+b") as file:
            file.truncate(lines.size_bytes)
            os.fsync(file.fileno())
    return lines


def append_sealed_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one line durably, after cutting a torn tail. The caller sees to it that nobody else writes.

    Raises:
        DamageError: an earlier line is damaged; nothing is written then.
        OSError: the file system refused.
    """
    line, _ = _line(value, cut_torn_tail(path).chain)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _parse_object(data: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamageError("TR-SEAL-JSON", "no JSON", place, "a sealed JSON object") from error
    if not isinstance(value, dict):
        raise DamageError("TR-SEAL-JSON", "not a JSON object", place, "a sealed JSON object")
    if _is_deeper(value, MAX_DEPTH):
        raise DamageError("TR-SEAL-JSON", "nested too deeply", place, f"at most {MAX_DEPTH} levels")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested more than ``levels`` deep; level by level, for a hostile file must not reach
    whatever walks its value by recursion."""
    boxes = [value]
    for _ in range(levels):
        items = itertools.chain.from_iterable(box.values() if isinstance(box, dict) else box for box in boxes)
        boxes = [item for item in items if isinstance(item, dict | list)]
        if not boxes:
            return False
    return True
