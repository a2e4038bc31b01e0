"""Cuts: byte ranges of documents that do not go on, and the pieces of a document that are left.

A screen or the span stage leaves ``cuts.<file>.npy`` (rows of ``CUT_DTYPE``, sorted by record and byte); ranges lie in
the decoded UTF-8 text of the record, on code-point borders. Ranges of different stages may overlap; what is cut is
their union.

Shapes: C cuts of a file, P pieces of a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.files import write_atomic
from loader.shards.access import npy_bytes

from .arrays import load_array

__all__ = ["CUT_DTYPE", "cut_path", "kept_pieces", "load_cuts", "save_cuts", "union_by_record"]

CUT_DTYPE = np.dtype(
    [
        ("record", "<i8"),
        ("byte_start", "<i8"),
        ("byte_count", "<i8"),
        ("witness", "<u8"),
        ("has_witness", "?"),
        ("method", "S64"),
    ]
)
"""``witness``: id of the document that holds the same passage, where ``has_witness``; ``method``: what cut it, such as
``ngram``, ``decontaminate`` or a formatter's name (ASCII)."""


def cut_path(folder: Path, file: int) -> Path:
    """Where a stage's cuts of a file lie."""
    return folder / f"cuts.{file:05d}.npy"


def save_cuts(folder: Path, file: int, rows_C: NDArray[Any]) -> None:
    """Write cuts in canonical order."""
    order = np.lexsort((rows_C["byte_count"], rows_C["byte_start"], rows_C["record"]))
    write_atomic(cut_path(folder, file), npy_bytes(rows_C[order]))


def load_cuts(folders: Sequence[Path], file: int) -> NDArray[Any]:
    """Cuts of a file by all stages in ``folders``, sorted by record and byte."""
    parts = [load_array(cut_path(folder, file)) for folder in folders]
    rows_C: NDArray[Any] = np.concatenate([np.zeros(0, CUT_DTYPE), *parts])
    ordered: NDArray[Any] = rows_C[np.lexsort((rows_C["byte_count"], rows_C["byte_start"], rows_C["record"]))]
    return ordered


def union_by_record(rows_C: NDArray[Any]) -> dict[int, list[tuple[int, int]]]:
    """Record -> disjoint ascending byte ranges ``[start, stop)`` that are cut from it."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    columns = (rows_C["record"].tolist(), rows_C["byte_start"].tolist(), rows_C["byte_count"].tolist())
    for record, start, count in sorted(zip(*columns, strict=True)):
        mine = ranges.setdefault(record, [])
        if mine and start <= mine[-1][1]:
            mine[-1] = (mine[-1][0], max(mine[-1][1], start + count))
        elif count:
            mine.append((start, start + count))
    return ranges


def kept_pieces(cut: Sequence[tuple[int, int]], size_bytes: int) -> Iterator[tuple[int, int]]:
    """The ranges ``[start, stop)`` of a text of ``size_bytes`` that are left between disjoint ascending cuts."""
    start = 0
    for first, stop in cut:
        if first > start:
            yield start, first
        start = max(start, stop)
    if size_bytes > start:
        yield start, size_bytes
