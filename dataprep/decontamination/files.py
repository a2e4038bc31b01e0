"""What the search leaves on disk per input file, and reads back::

hits.00012.npy        HIT_DTYPE: record, item, form, matched, byte_start, byte_stop, by record and item
hit_grams.00012.npy   HIT_GRAM_DTYPE: (row number of the hit, gram)
ranges.00012.npy      RANGE_DTYPE: what the matched grams of the hits cover
emptied.00012.npy     int64, ascending: records of which only white space is left without these ranges and without what
                      earlier screens cut
grams.00012.npy       int64 (gram, documents of the file that hold it), ascending by gram
found.00012.json      num_records, num_documents, searched (false where the source opts out); last = done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.files import write_atomic
from loader.shards.access import npy_bytes

from ..arrays import load_array
from ..cuts import CUT_DTYPE, kept_pieces, load_cuts, union_by_record
from ..documents import DocumentBatch, InputFile
from ..formats import ReadOptions, RejectSink, read_file
from ..stages import read_json
from .search import HIT_DTYPE, HIT_GRAM_DTYPE, RANGE_DTYPE, Found, ItemFinder

__all__ = ["FileFound", "is_searched", "load_found", "search_file"]

_KINDS = ("hits", "hit_grams", "ranges", "emptied", "grams")
SCREEN = "decontaminate"


@dataclass(frozen=True)
class FileFound:
    """Everything found in one file: see the module for the arrays."""

    hits: NDArray[Any]
    hit_grams: NDArray[Any]
    ranges: NDArray[Any]
    emptied: NDArray[np.int64]
    grams: NDArray[np.int64]
    num_records: int
    num_documents: int
    searched: bool


def _join(parts: Sequence[Found]) -> dict[str, NDArray[Any]]:
    """The batches of a file as one; hits are numbered through, documents of a gram added up."""
    hit_grams = []
    before = 0
    for part in parts:
        rows = part.hit_grams.copy()
        rows["hit"] += before
        before += len(part.hits)
        hit_grams.append(rows)
    grams_P2 = np.concatenate([np.zeros((0, 2), np.int64), *(part.documents_G2 for part in parts)])
    grams, place_P = np.unique(grams_P2[:, 0], return_inverse=True)
    documents = np.bincount(place_P, weights=grams_P2[:, 1], minlength=len(grams)).astype(np.int64)
    return {
        "hits": np.concatenate([np.zeros(0, HIT_DTYPE), *(part.hits for part in parts)]),
        "hit_grams": np.concatenate([np.zeros(0, HIT_GRAM_DTYPE), *hit_grams]),
        "ranges": np.concatenate([np.zeros(0, RANGE_DTYPE), *(part.ranges for part in parts)]),
        "grams": np.stack((grams, documents), axis=1),
    }


def _emptied(batch: DocumentBatch, found: Found, earlier: NDArray[Any]) -> NDArray[np.int64]:
    """Records of which the ranges found, and the cuts of earlier screens (``earlier``), leave white space at most."""
    records = np.unique(found.ranges["record"])
    rows = np.zeros(len(found.ranges), CUT_DTYPE)
    for name in ("record", "byte_start", "byte_count"):
        rows[name] = found.ranges[name]
    cuts = union_by_record(np.concatenate((rows, earlier[np.isin(earlier["record"], records)])))
    emptied = []
    for record in records.tolist():
        text = batch.text[int(np.searchsorted(batch.record_N, record))].as_py().encode()
        if not any(text[start:stop].decode().strip() for start, stop in kept_pieces(cuts[record], len(text))):
            emptied.append(record)
    return np.array(emptied, np.int64)


def _wanted(screens: Sequence[Path], file: int, searched: bool) -> NDArray[np.bool_] | None:
    """Records to look at: those that all earlier screens let go on; None = all."""
    if not searched:
        return np.zeros(1, np.bool_)  # passed over, to count them
    wanted: NDArray[np.bool_] | None = None
    for folder in screens:
        goes_on = load_array(folder / f"verdict.{file:05d}.npy") == 0
        wanted = goes_on if wanted is None else wanted & goes_on
    return np.zeros(1, np.bool_) if wanted is not None and not len(wanted) else wanted


def search_file(
    inputs: InputFile, file: int, finder: ItemFinder, options: ReadOptions, places: tuple[Path, Sequence[Path]]
) -> FileFound:
    """Search one input file and write what it holds; ``places``: the folder to write to, those of earlier screens.

    Raises:
        ConfigError, DamageError: see ``read_file``.
    """
    folder, screens = places
    searched = SCREEN not in inputs.opt_out
    sink = RejectSink()
    parts = []
    emptied = [np.zeros(0, np.int64)]
    num_documents = 0
    earlier = load_cuts(screens if searched else (), file)
    keep_R = _wanted(screens, file, searched)
    for batch in read_file(inputs, file, options=options, keep_R=keep_R, rejects=sink):
        if searched:
            num_documents += len(batch.text)
            parts.append(finder.find(batch.text, batch.record_N))
            emptied.append(_emptied(batch, parts[-1], earlier))
    arrays = {**_join(parts), "emptied": np.concatenate(emptied)}
    for kind in _KINDS:
        write_atomic(folder / f"{kind}.{file:05d}.npy", npy_bytes(arrays[kind]))
    num_records = sink.summary.num_records if sink.summary is not None else 0
    counts = {"num_records": num_records, "num_documents": num_documents, "searched": searched}
    write_atomic(folder / f"found.{file:05d}.json", canonical_json(counts))
    return load_found(folder, file)


def is_searched(folder: Path, file: int) -> bool:
    """Whether a file was searched to its end."""
    return (folder / f"found.{file:05d}.json").exists()


def load_found(folder: Path, file: int) -> FileFound:
    """What :func:`search_file` wrote.

    Raises:
        DamageError: the file's counts are missing or damaged.
    """
    counts = read_json(folder / f"found.{file:05d}.json")
    hits, hit_grams, ranges, emptied, grams = (load_array(folder / f"{kind}.{file:05d}.npy") for kind in _KINDS)
    numbers = (counts["num_records"], counts["num_documents"], counts["searched"])
    return FileFound(hits, hit_grams, ranges, emptied, grams, *numbers)
