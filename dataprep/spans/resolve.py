"""The heart of the last span stage: first occurrences by ranges of the hash, then the pieces that all others cover.

Memory does not grow with the n-grams: a range holds as many as fit, and a hash that occurs in every document is
reduced to its least key run by run. Rows of one range lie next to each other in every run, so everything is read once
in order. Shapes: G n-grams of a run, U distinct ones, P pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels.spans import cover, first_occurrences, settle
from .anchors import Run
from .store import (
    AppendedFiles,
    FileDocuments,
    SpanFolders,
    hash_borders,
    load_array,
    load_raw,
    load_runs,
    run_path,
    sorted_order,
)

__all__ = ["file_pieces", "gram_runs", "settle_runs"]

_MERGE_BYTES = 96
"""Memory that a distinct n-gram of a range takes at most, with the scratch of merging it."""
_QUICK_BYTES = 1 << 28
"""Memory of a range beyond which fresh pages cost more than further ranges do, unless there are very many slices."""
_MANY_SLICES = 1 << 15
_DOCUMENT, _WORD, _WORD_STOP, _BYTE, _BYTE_STOP, _WITNESS = range(6)


def gram_runs(num_files: int, folders: SpanFolders) -> list[Run]:
    """All runs of n-grams.

    Raises:
        DamageError: a list of runs is missing.
    """
    return [
        Run(file, number, size)
        for file in range(num_files)
        for number, size in enumerate(load_runs(folders.grams, "grams", file))
    ]


def _rows(folders: SpanFolders, run: Run) -> NDArray[np.uint64]:
    return load_array(run_path(folders.grams, "grams", run.file, run.number), run.size, mapped=True)


def settle_runs(
    runs: Sequence[Run],
    documents: Sequence[FileDocuments],
    folders: SpanFolders,
    memory_bytes: int,
    witnesses: AppendedFiles,
) -> None:
    """Write the witness of every row (int64, see ``settle``) in the order of the runs' rows, as scratch files."""
    num_parts = _num_parts(runs, memory_bytes)
    borders = {run: hash_borders(_rows(folders, run)[0], num_parts) for run in runs}
    for part in range(num_parts):
        ranges = {run: slice(borders[run][part], borders[run][part + 1]) for run in runs}
        firsts = _merged([_firsts(_rows(folders, run)[:, ranges[run]], documents[run.file]) for run in runs])
        for run in runs:
            hash_key = np.array(_rows(folders, run)[:, ranges[run]])
            witness_G = np.empty(hash_key.shape[1], np.int64)
            settle(hash_key[0], hash_key[1], documents[run.file].rank_D, firsts, witness_G)
            witnesses.append(run_path(folders.spans, "witness", run.file, run.number), witness_G)


def _num_parts(runs: Sequence[Run], memory_bytes: int) -> int:
    total_bytes = sum(run.size for run in runs) * _MERGE_BYTES
    quick = min(total_bytes // _QUICK_BYTES, _MANY_SLICES // max(1, len(runs)))
    return max(1, quick, math.ceil(total_bytes / memory_bytes))


def _firsts(hash_key: NDArray[np.uint64], documents: FileDocuments) -> NDArray[np.uint64]:
    rows = np.array(hash_key)
    found = np.empty_like(rows)
    count = first_occurrences(rows[0], rows[1], documents.rank_D, found)
    firsts: NDArray[np.uint64] = found[:, :count].copy()
    return firsts


def _merged(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """First occurrences over all runs from those of each."""
    if len(parts) == 1:
        return parts[0]
    together = np.concatenate([np.zeros((2, 0), np.uint64), *parts], axis=1)
    together = together[:, sorted_order(together[0])]
    found = np.empty_like(together)
    count = first_occurrences(together[0], together[1], np.zeros(0, np.int64), found)
    firsts: NDArray[np.uint64] = found[:, :count].copy()
    return firsts


def file_pieces(runs: Sequence[Run], folders: SpanFolders, witnesses: AppendedFiles, n: int) -> NDArray[np.int64]:
    """Covered pieces of a file (6, P), by document and word; see ``cover``. ``runs`` are those of the file, in
    order."""
    parts = [np.zeros((6, 0), np.int64)]
    last: NDArray[np.int64] | None = None
    for run in runs:
        pieces = _run_pieces(run, folders, witnesses, n)
        if not pieces.shape[1]:
            continue
        if last is not None and _joins(last, pieces[:, 0]):
            pieces = pieces[:, 1:]
        parts.append(pieces)
        last = pieces[:, -1] if pieces.shape[1] else last
    return np.concatenate(parts, axis=1)


def _joins(last: NDArray[np.int64], following: NDArray[np.int64]) -> bool:
    """Join the last piece of a run with the first one of the next (a run may end inside a document): whether it was
    taken into ``last``."""
    if following[_DOCUMENT] != last[_DOCUMENT] or following[_WORD] > last[_WORD_STOP]:
        return False
    if following[_WITNESS] == last[_WITNESS]:
        last[[_WORD_STOP, _BYTE_STOP]] = following[[_WORD_STOP, _BYTE_STOP]]
        return True
    following[_BYTE] = min(following[_BYTE], last[_BYTE_STOP])
    return False


def _run_pieces(run: Run, folders: SpanFolders, witnesses: AppendedFiles, n: int) -> NDArray[np.int64]:
    witness_G = load_raw(witnesses.place(run_path(folders.spans, "witness", run.file, run.number)), np.int64, run.size)
    key_G = np.array(_rows(folders, run)[1])
    order_G = load_array(run_path(folders.grams, "order", run.file, run.number), run.size)
    place_G = load_array(run_path(folders.grams, "places", run.file, run.number), run.size)
    length_G = load_array(run_path(folders.grams, "lengths", run.file, run.number), run.size)
    scratch = (np.empty(run.size, np.uint64), np.empty(run.size, np.int64))
    piece_6C = np.empty((6, int(np.count_nonzero(witness_G >= 0))), np.int64)
    count = cover((key_G, order_G, place_G, length_G), witness_G, scratch, n, piece_6C)
    return piece_6C[:, :count].copy()
