"""The first two span stages: anchors of every file, and which of them occur at least twice.

Shapes: D documents of a file, N of a batch, A anchors, S sorted hashes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..dedup.config import DecideConfig
from ..dedup.signatures import load_summary
from ..documents import InputFile
from ..formats import ReadOptions, read_file
from ..formats import read_options as ingest_options
from ..kernels.documents import text_buffers
from ..kernels.spans import REPEATED, Anchors, GramRule, distinct_anchors, find_anchors, token_room
from ..normalize import load_table
from .store import (
    AppendedFiles,
    SpanFolders,
    hash_borders,
    load_array,
    load_documents,
    load_runs,
    run_path,
    save_array,
    save_runs,
    sorted_order,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AnchorFinder", "Run", "find_repeats", "gram_rule", "list_anchors", "read_options"]

_RUN_BYTES = 96
"""Memory that an anchor of a run takes at most, with the scratch of sorting it."""
_MERGE_BYTES = 64
_LEAST_RUN = 16
_MOST_BATCH_BYTES = 4 << 20


class Run(NamedTuple):
    """One run of a file and its number of rows."""

    file: int
    number: int
    size: int


def gram_rule(inputs: InputFile, config: DecideConfig) -> GramRule:
    """What n-grams of a file are hashed by; unless ``across``, those of different sources are never equal."""
    salt = 0 if config.dedup.across else xxhash.xxh3_64_intdigest(inputs.source.encode())
    return GramRule(config.dedup.ngram.n, np.uint64(salt))


def read_options(config: DecideConfig, memory_bytes: int) -> ReadOptions:
    """How the span stages read: small memory means small batches."""
    batch_bytes = max(1 << 12, min(_MOST_BATCH_BYTES, memory_bytes // 64))
    return ingest_options(config.ingest, batch_bytes=batch_bytes)


class AnchorFinder:
    """Anchors of Arrow texts, with scratch memory that is reused: 18 bytes a byte of the largest batch at most, of
    which pages are touched only as far as there are words."""

    def __init__(self, rule: GramRule) -> None:
        self._rule = rule
        self._table = load_table()
        self._scratch = np.empty((2, 0), np.uint64)
        self._hash_2A = np.empty((2, 0), np.uint64)
        self._first_A = np.empty(0, np.uint32)

    def find(self, text: pa.LargeStringArray) -> Anchors:
        """Anchors of the texts; valid until the next call."""
        texts = text_buffers(text)
        sizes = np.diff(texts.offset_N)
        longest = token_room(int(sizes.max(initial=0)))
        room = token_room(int(sizes.sum()))
        if self._scratch.shape[1] < longest:
            self._scratch = np.empty((2, longest), np.uint64)
        if len(self._first_A) < room:
            self._hash_2A, self._first_A = np.empty((2, room), np.uint64), np.empty(room, np.uint32)
        found = Anchors(self._hash_2A[0], self._hash_2A[1], self._first_A, np.empty(len(text), np.int64))
        count = find_anchors(texts, self._table, self._rule, self._scratch, found)
        hash_2A = self._hash_2A[:, :count]
        return Anchors(hash_2A[0], hash_2A[1], self._first_A[:count], found.count_N)


class _RunWriter:
    """Gathers anchors and writes a run whenever there are enough."""

    def __init__(self, folder: Path, file: int, memory_bytes: int) -> None:
        self._folder, self._file = folder, file
        self._limit = max(_LEAST_RUN, memory_bytes // _RUN_BYTES)
        self._hashes: list[NDArray[np.uint64]] = []
        self._stretches: list[NDArray[np.uint64]] = []
        self._firsts: list[NDArray[np.uint32]] = []
        self._waiting = 0
        self.sizes: list[int] = []

    def add(self, anchors: Anchors) -> None:
        """Take a copy of a batch's anchors."""
        self._hashes.append(anchors.hash_A.copy())
        self._stretches.append(anchors.stretch_A.copy())
        self._firsts.append(anchors.first_A.copy())
        self._waiting += len(anchors.hash_A)
        if self._waiting >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write what is there as a run."""
        if not self._waiting:
            return
        hash_A = np.concatenate(self._hashes)
        run = len(self.sizes)
        save_array(run_path(self._folder, "hash", self._file, run), hash_A)
        save_array(run_path(self._folder, "first", self._file, run), np.concatenate(self._firsts))
        together = np.stack((hash_A, np.concatenate(self._stretches)))
        hash_stretch, kind_S = _distinct(together, np.zeros(0, np.uint8))
        save_array(run_path(self._folder, "sorted", self._file, run), hash_stretch)
        save_array(run_path(self._folder, "kind", self._file, run), kind_S)
        self.sizes.append(len(hash_A))
        self._hashes, self._stretches, self._firsts, self._waiting = [], [], [], 0


def _distinct(anchor_2A: NDArray[np.uint64], kind_A: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Anchors sorted, each once; see ``distinct_anchors``."""
    order_A = sorted_order(anchor_2A[0])
    distinct_2S, kind_S = np.empty_like(anchor_2A), np.empty(len(order_A), np.uint8)
    count = distinct_anchors(anchor_2A, order_A, kind_A, distinct_2S, kind_S)
    return distinct_2S[:, :count].copy(), kind_S[:count]


def list_anchors(
    inputs: InputFile, file: int, config: DecideConfig, folders: SpanFolders, memory_bytes: int
) -> dict[str, int]:
    """Write the anchors of one file; returns how many documents and anchors.

    Raises:
        DamageError: an earlier stage's files are missing or damaged.
        RefusedError: the input is not what was signed.
    """
    documents = load_documents(inputs, file, folders)
    count_D = np.zeros(len(documents.record_D), np.int64)
    writer = _RunWriter(folders.anchors, file, memory_bytes)
    if documents.takes_part_D.any():
        keep_R = np.zeros(len(documents.status_R), np.bool_)
        keep_R[documents.record_D[documents.takes_part_D]] = True
        finder = AnchorFinder(gram_rule(inputs, config))
        expected = load_summary(folders.signed, file)
        options = read_options(config, memory_bytes)
        for batch in read_file(inputs, file, options=options, keep_R=keep_R, expected=expected):
            anchors = finder.find(batch.text)
            count_D[np.searchsorted(documents.record_D, batch.record_N)] = anchors.count_N
            writer.add(anchors)
        writer.flush()
    save_array(folders.anchors / f"count.{file:05d}.npy", count_D)
    save_runs(folders.anchors, "anchors", file, writer.sizes)
    return {"documents": int(documents.takes_part_D.sum()), "anchors": sum(writer.sizes)}


def _all_runs(num_files: int, folders: SpanFolders) -> list[Run]:
    return [
        Run(file, number, load_array(run_path(folders.anchors, "sorted", file, number), mapped=True).shape[1])
        for file in range(num_files)
        for number in range(len(load_runs(folders.anchors, "anchors", file)))
    ]


def find_repeats(num_files: int, folders: SpanFolders, memory_bytes: int) -> int:
    """Write for each run of anchors which of its hashes occur at least twice in all runs together, and whether with
    equal stretches; returns their number, each counted once."""
    runs = _all_runs(num_files, folders)
    total = sum(run.size for run in runs)
    num_parts = max(1, math.ceil(total * _MERGE_BYTES / memory_bytes))
    sizes: dict[Run, int] = dict.fromkeys(runs, 0)
    num_repeated = 0
    borders = {run: hash_borders(_sorted_rows(folders, run)[0], num_parts) for run in runs}
    folders.repeats.mkdir(parents=True, exist_ok=True)
    with AppendedFiles() as files:
        for part in range(num_parts):
            ranges = {run: slice(borders[run][part], borders[run][part + 1]) for run in runs}
            repeated_S, kind_S = _repeated(runs, ranges, folders)
            num_repeated += len(repeated_S)
            for run in runs:
                hash_S = np.array(_sorted_rows(folders, run)[0, ranges[run]])
                place = np.searchsorted(repeated_S, hash_S)
                found = place < len(repeated_S)
                found[found] = repeated_S[place[found]] == hash_S[found]
                files.append(run_path(folders.repeats, "repeats", run.file, run.number), hash_S[found])
                files.append(run_path(folders.repeats, "kind", run.file, run.number), kind_S[place[found]])
                sizes[run] += int(found.sum())
        files.commit()
    for file in range(num_files):
        save_runs(folders.repeats, "repeats", file, [sizes[run] for run in runs if run.file == file])
    return num_repeated


def _sorted_rows(folders: SpanFolders, run: Run) -> NDArray[np.uint64]:
    return load_array(run_path(folders.anchors, "sorted", run.file, run.number), run.size, mapped=True)


def _repeated(
    runs: list[Run], ranges: dict[Run, slice], folders: SpanFolders
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Hashes (sorted, each once) of one range that occur at least twice over all runs, and their kinds."""
    rows, kinds = [np.zeros((2, 0), np.uint64)], [np.zeros(0, np.uint8)]
    for run in runs:
        rows.append(np.array(_sorted_rows(folders, run)[:, ranges[run]]))
        kind_S = load_array(run_path(folders.anchors, "kind", run.file, run.number), run.size, mapped=True)
        kinds.append(np.array(kind_S[ranges[run]]))
    hash_stretch, kind_S = _distinct(np.concatenate(rows, axis=1), np.concatenate(kinds))
    again = kind_S >= REPEATED
    return hash_stretch[0, again], kind_S[again]
