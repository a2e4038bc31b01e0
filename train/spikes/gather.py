"""Scored rows of all processes on every process, as bytes: at real sizes a step has ten thousand of them.

Legend: S segments.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .attribute import SegmentColumns, concatenate

if TYPE_CHECKING:
    from ..world import World

__all__ = ["gather_rows", "rows_from_bytes", "rows_to_bytes"]

_TYPES: dict[str, str] = {
    "source_S": "<i4",
    "document_S": "<u8",
    "step_S": "<i8",
    "sample_S": "<i8",
    "num_labels_S": "<i8",
    "baseline_S": "?",
}
_NUMBER = "<f8"


def _columns() -> list[tuple[str, np.dtype[np.generic]]]:
    return [(field.name, np.dtype(_TYPES.get(field.name, _NUMBER))) for field in fields(SegmentColumns)]


def rows_to_bytes(rows: SegmentColumns) -> bytes:
    """One column behind the other, little endian."""
    return b"".join(getattr(rows, name).astype(dtype).tobytes() for name, dtype in _columns())


def rows_from_bytes(data: bytes) -> SegmentColumns:
    """What :func:`rows_to_bytes` was given; the same bits."""
    count = len(data) // sum(dtype.itemsize for _, dtype in _columns())
    found: dict[str, Any] = {}
    start = 0
    for name, dtype in _columns():
        found[name] = np.frombuffer(data, dtype, count, start)
        start += count * dtype.itemsize
    return SegmentColumns(**found)


def gather_rows(rows: SegmentColumns, world: World, speaks: bool) -> SegmentColumns:
    """The rows of all processes that speak for their samples, in the order of ranks; every process calls it.

    Args:
        rows: of this process's samples. world: the process group.
        speaks: exactly one process of a data rank does, one with the end of the model.
    """
    return concatenate(list(map(rows_from_bytes, world.gather_bytes(rows_to_bytes(rows) if speaks else b""))))
