"""The third span stage: every n-gram of a file whose anchor is repeated, in runs sorted by hash.

Shapes: D documents of a file, N of a batch, A anchors of a run, P stretches, G rows of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.files import write_atomic
from loader.shards.access import npy_bytes

from ..dedup.config import DecideConfig
from ..dedup.signatures import load_summary
from ..documents import InputFile
from ..formats import read_file
from ..kernels.documents import text_buffers
from ..kernels.located import Tokens
from ..kernels.spans import MIXED, GramRule, Grams, Stretches, list_grams, mark_repeated, token_room
from ..normalize import load_table
from .anchors import gram_rule, read_options
from .store import (
    SpanFolders,
    load_array,
    load_documents,
    load_raw,
    load_runs,
    run_path,
    save_array,
    save_runs,
    sorted_order,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GramLister", "list_file_grams"]

_ROW_BYTES = 128
"""Memory that an n-gram of a run takes at most, with the scratch of sorting it."""
_LEAST_RUN = 16
_MOST_RUN = 1 << 21
"""More memory makes no longer runs: larger arrays than this cost more in page faults than shorter merges save."""
_TO_THE_END = np.uint32(0xFFFFFFFF)


class _RunStretches(NamedTuple):
    """Stretches of n-grams with repeated anchors, by (document of the file, first n-gram); see ``Stretches``."""

    document_P: NDArray[np.int64]
    first_P: NDArray[np.uint32]
    stop_P: NDArray[np.uint32]
    hash_P: NDArray[np.uint64]
    whole_P: NDArray[np.bool_]


class _StretchReader:
    """Stretches of a file's documents, run after run; what lies in memory is that of the runs that a batch touches."""

    def __init__(self, file: int, folders: SpanFolders) -> None:
        self._file, self._folders = file, folders
        self._count_D = load_array(folders.anchors / f"count.{file:05d}.npy")
        self._sizes = load_runs(folders.anchors, "anchors", file)
        self._repeats = load_runs(folders.repeats, "repeats", file)
        starts = np.cumsum([0, *self._sizes])
        stop_D = np.cumsum(self._count_D)
        self._first_document = np.searchsorted(stop_D, starts, side="right")
        self._next_run = 0
        self._held = _joined([])
        self._latest: tuple[int, _RunStretches] = (-1, self._held)

    def documents(self) -> NDArray[np.int64]:
        """Documents with any stretch, ascending."""
        found = [np.unique(self._load(run).document_P) for run in range(len(self._sizes))]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def of_documents(self, number_N: NDArray[np.int64]) -> Stretches:
        """Stretches of documents, all of which follow those of the last call."""
        parts = [_from_document(self._held, int(number_N[0]))]
        while self._next_run < len(self._sizes) and self._first_document[self._next_run] <= number_N[-1]:
            parts.append(_from_document(self._load(self._next_run), int(number_N[0])))
            self._next_run += 1
        self._held = held = _joined(parts)
        start_N = np.searchsorted(held.document_P, np.append(number_N, number_N[-1] + 1))
        mine = _part(held, int(start_N[0]), int(start_N[-1]))
        return Stretches(
            mine.first_P, mine.stop_P, mine.hash_P, mine.whole_P, start_N - start_N[0], number_N.astype(np.uint64)
        )

    def _load(self, run: int) -> _RunStretches:
        if self._latest[0] != run:
            self._latest = (run, self._read(run))
        return self._latest[1]

    def _read(self, run: int) -> _RunStretches:
        file, size, folders = self._file, self._sizes[run], self._folders
        hash_A = load_array(run_path(folders.anchors, "hash", file, run), size)
        first_A = load_array(run_path(folders.anchors, "first", file, run), size)
        repeated_S = load_raw(run_path(folders.repeats, "repeats", file, run), np.uint64, self._repeats[run])
        kind_S = load_raw(run_path(folders.repeats, "kind", file, run), np.uint8, self._repeats[run])
        kind_A = np.zeros(size, np.uint8)
        scratch = np.empty((1 << max(4, len(repeated_S).bit_length())) + 1, np.int64)
        mark_repeated(hash_A, (repeated_S, kind_S), scratch, kind_A)
        low, high = self._first_document[run], self._first_document[run + 1]
        document_A = np.repeat(np.arange(low, high), self._count_D[low:high])
        stop_A = np.append(first_A[1:], _TO_THE_END)
        stop_A[:-1][document_A[1:] != document_A[:-1]] = _TO_THE_END
        wanted = np.flatnonzero(kind_A)
        whole_P = (kind_A[wanted] & MIXED) == 0
        return _RunStretches(document_A[wanted], first_A[wanted], stop_A[wanted], hash_A[wanted], whole_P)


def _joined(parts: list[_RunStretches]) -> _RunStretches:
    if not parts:
        nothing = np.zeros(0, np.uint32)
        return _RunStretches(np.zeros(0, np.int64), nothing, nothing, np.zeros(0, np.uint64), np.zeros(0, np.bool_))
    return _RunStretches(
        np.concatenate([part.document_P for part in parts]),
        np.concatenate([part.first_P for part in parts]),
        np.concatenate([part.stop_P for part in parts]),
        np.concatenate([part.hash_P for part in parts]),
        np.concatenate([part.whole_P for part in parts]),
    )


def _part(stretches: _RunStretches, start: int, stop: int | None = None) -> _RunStretches:
    mine = slice(start, stop)
    return _RunStretches(
        stretches.document_P[mine],
        stretches.first_P[mine],
        stretches.stop_P[mine],
        stretches.hash_P[mine],
        stretches.whole_P[mine],
    )


def _from_document(stretches: _RunStretches, number: int) -> _RunStretches:
    return _part(stretches, int(np.searchsorted(stretches.document_P, number)))


def _rows_between(rows: Grams, start: int, stop: int | None) -> Grams:
    mine = slice(start, stop)
    return Grams(rows.hash_G[mine], rows.key_G[mine], rows.place_G[mine], rows.length_G[mine])


class GramLister:
    """Rows of n-grams of Arrow texts, with scratch memory that is reused: 8 bytes a byte of the longest text at most,
    of which pages are touched only as far as there are words."""

    def __init__(self, rule: GramRule, capacity: int) -> None:
        self._rule = rule
        self._table = load_table()
        self._tokens = self._scratch(0)
        room = (np.empty(capacity, np.uint64) for _ in range(3))
        self._rows = Grams(next(room), next(room), next(room), np.empty(capacity, np.uint16))
        self._filled = 0

    @staticmethod
    def _scratch(room: int) -> Tokens:
        return Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))

    def rows(self) -> Grams:
        """Rows that were listed and not yet taken; takes them: they are valid until the next ``add``."""
        taken = _rows_between(self._rows, 0, self._filled)
        self._filled = 0
        return taken

    def add(self, text: pa.LargeStringArray, stretches: Stretches, words_N: NDArray[np.int64]) -> Iterator[Grams]:
        """List the n-grams of the texts; gives the rows back whenever there is no room for more. ``words_N``: see
        ``list_grams``."""
        texts = text_buffers(text)
        room = token_room(int(np.diff(texts.offset_N).max(initial=0)))
        if len(self._tokens.hash_T) < room:
            self._tokens = self._scratch(room)
        state = np.zeros(3, np.int64)
        tables = (self._table, self._tokens, words_N)
        while state[0] < len(text):
            free = _rows_between(self._rows, self._filled, None)
            self._filled += list_grams(texts, tables, self._rule, stretches, state, free)
            if self._filled == len(self._rows.hash_G):
                yield self.rows()


def _save_run(rows: Grams, folder: Path, file: int, sizes: list[int]) -> None:
    if not len(rows.hash_G):
        return
    order_G = sorted_order(rows.hash_G)
    run = len(sizes)
    save_array(run_path(folder, "grams", file, run), np.stack((rows.hash_G[order_G], rows.key_G[order_G])))
    save_array(run_path(folder, "order", file, run), order_G)
    save_array(run_path(folder, "places", file, run), rows.place_G)
    save_array(run_path(folder, "lengths", file, run), rows.length_G)
    sizes.append(len(order_G))


def list_file_grams(
    inputs: InputFile, file: int, config: DecideConfig, folders: SpanFolders, memory_bytes: int
) -> dict[str, int]:
    """Write the n-grams of one file that may occur twice; returns how many documents and rows.

    Raises:
        DamageError: an earlier stage's files are missing or damaged.
        RefusedError: the input is not what was signed.
    """
    documents = load_documents(inputs, file, folders)
    words_D = np.full(len(documents.record_D), -1, np.int64)
    sizes: list[int] = []
    stretches = _StretchReader(file, folders)
    wanted = stretches.documents()
    if len(wanted):
        keep_R = np.zeros(len(documents.status_R), np.bool_)
        keep_R[documents.record_D[wanted]] = True
        lister = GramLister(gram_rule(inputs, config), min(_MOST_RUN, max(_LEAST_RUN, memory_bytes // _ROW_BYTES)))
        expected = load_summary(folders.signed, file)
        options = read_options(config, memory_bytes)
        for batch in read_file(inputs, file, options=options, keep_R=keep_R, expected=expected):
            number_N = np.searchsorted(documents.record_D, batch.record_N)
            words_N = np.full(len(number_N), -1, np.int64)
            for rows in lister.add(batch.text, stretches.of_documents(number_N), words_N):
                _save_run(rows, folders.grams, file, sizes)
            words_D[number_N] = words_N
        _save_run(lister.rows(), folders.grams, file, sizes)
    write_atomic(folders.grams / f"words.{file:05d}.npy", npy_bytes(words_D.astype(np.int32)))
    save_runs(folders.grams, "grams", file, sizes)
    return {"documents": len(wanted), "rows": sum(sizes)}
