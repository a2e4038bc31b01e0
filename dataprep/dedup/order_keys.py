"""What the keep policies ``newest`` and ``quality`` rank documents by, as one int64 a document: larger is better.

``newest``: ISO 8601 dates (without a zone: UTC; a date, month or year alone: its first second) or integers (Unix
seconds), as whole seconds since 1970 in UTC. ``quality``: any JSON number, as the order-preserving int64 of its float64
bits. A missing or unreadable value ranks lowest.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from ..documents import InputFile

__all__ = ["NO_KEY", "date_key", "order_field", "order_keys", "quality_key"]

NO_KEY = -(1 << 63)
"""Key of a document without a readable value."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_PARTIAL_DATE = re.compile(r"\d{4}(-\d{2})?", re.ASCII)


def date_key(value: object) -> int:
    """Seconds since 1970 in UTC of a parsed JSON value; ``NO_KEY`` if it is no date."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 1 << 62 else NO_KEY
    if not isinstance(value, str):
        return NO_KEY
    if len(value) in (4, 7) and _PARTIAL_DATE.fullmatch(value):
        value = f"{value}-01" if len(value) == 7 else f"{value}-01-01"
    try:
        moment = datetime.fromisoformat(value)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return NO_KEY
    since = moment - _EPOCH
    return since.days * 86_400 + since.seconds  # rounded down, also before 1970


def quality_key(value: object) -> int:
    """An integer that orders like the float64 of a parsed JSON number; ``NO_KEY`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NO_KEY
    number = float(value) + 0.0  # -0.0 becomes 0.0: they are equal
    if math.isnan(number):
        return NO_KEY
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits) if bits >= 0 else int(bits) ^ ((1 << 63) - 1)


_KEYS: Mapping[str, Callable[[object], int]] = {"newest": date_key, "quality": quality_key}


def order_field(inputs: InputFile, keep: str) -> str | None:
    """The field that a keep policy ranks the documents of a file by; None without one."""
    return {"newest": inputs.date_field, "quality": inputs.quality_field}.get(keep)


def order_keys(extra_N: tuple[bytes, ...] | None, count: int, keep: str) -> tuple[NDArray[np.int64], int]:
    """Keys (int64, N) of ``count`` documents and how many of them have none.

    Args:
        extra_N: JSON of the field of each document (b"" = missing); None where the source names no field.
        count: documents N.
        keep: the policy; all keys are 0 unless it is ``newest`` or ``quality``.
    """
    key_of = _KEYS.get(keep)
    if key_of is None:
        return np.zeros(count, np.int64), 0
    if extra_N is None:
        return np.full(count, NO_KEY, np.int64), count
    key_N = np.fromiter((key_of(_parse(value)) for value in extra_N), np.int64, count)
    return key_N, int((key_N == NO_KEY).sum())


def _parse(value: bytes) -> object:
    """The JSON value; None for none, NaN, the infinities, and what is no JSON."""
    try:
        return _DECODER.decode(value.decode()) if value else None
    except ValueError:
        return None
