"""The third span stage: every n-gram of a file whose anchor is repeated, in runs sorted by hash.

Shapes: D documents of a file, N of a batch, A anchors of a run, P passages, G n-grams of a run.
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
from ..kernels.spans import GramRule, Grams, Passages, list_grams, mark_repeated, token_room
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


class _FilePassages(NamedTuple):
    """Passages of a file by (document, first n-gram): ``document_P`` int64, ``first_P`` and ``stop_P`` uint32."""

    document_P: NDArray[np.int64]
    first_P: NDArray[np.uint32]
    stop_P: NDArray[np.uint32]


def _run_passages(
    document_A: NDArray[np.int64], first_A: NDArray[np.uint32], flag_A: NDArray[np.bool_]
) -> _FilePassages:
    """Stretches of n-grams whose anchors are all repeated."""
    new = np.ones(len(document_A), np.bool_)
    new[1:] = document_A[1:] != document_A[:-1]
    begins = flag_A.copy()
    begins[1:] &= new[1:] | ~flag_A[:-1]
    last = np.append(new[1:], True)
    ends = flag_A.copy()
    ends[:-1] &= last[:-1] | ~flag_A[1:]
    place = np.flatnonzero(ends)
    stop_P = np.where(last[place], _TO_THE_END, first_A[np.minimum(place + 1, len(first_A) - 1)])
    return _FilePassages(document_A[begins], first_A[begins], stop_P.astype(np.uint32))


def _find_passages(file: int, folders: SpanFolders) -> _FilePassages:
    """All passages of a file: 16 bytes of memory for each stretch of repeated text."""
    count_D = load_array(folders.anchors / f"count.{file:05d}.npy")
    stop_D = np.cumsum(count_D)
    parts = [_FilePassages(np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint32))]
    start = 0
    sizes = load_runs(folders.repeats, "repeats", file)
    for run, size in enumerate(load_runs(folders.anchors, "anchors", file)):
        hash_A = load_array(run_path(folders.anchors, "hash", file, run), size)
        first_A = load_array(run_path(folders.anchors, "first", file, run), size)
        repeated_S = load_raw(run_path(folders.repeats, "repeats", file, run), np.uint64, sizes[run])
        flag_A = np.zeros(size, np.bool_)
        scratch = np.empty((1 << max(4, len(repeated_S).bit_length())) + 1, np.int64)
        mark_repeated(hash_A, repeated_S, scratch, flag_A)
        low, high = np.searchsorted(stop_D, (start, start + size - 1), side="right")
        document_A = np.repeat(np.arange(low, high + 1), count_D[low : high + 1])
        parts.append(_run_passages(document_A, first_A, flag_A))
        start += size
    document_P, first_P, stop_P = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _FilePassages(document_P, first_P, stop_P)


class GramLister:
    """Rows of n-grams of Arrow texts, with scratch memory that is reused: 8 bytes a byte of the longest text at most,
    of which pages are touched only as far as there are words."""

    def __init__(self, rule: GramRule, capacity: int) -> None:
        self._rule = rule
        self._table = load_table()
        self._tokens = self._scratch(0)
        self._rows = Grams(*(np.empty(capacity, np.uint64) for _ in range(3)))
        self._filled = 0

    @staticmethod
    def _scratch(room: int) -> Tokens:
        return Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))

    def rows(self) -> Grams:
        """Rows that were listed and not yet taken; takes them: they are valid until the next ``add``."""
        taken = Grams(*(column[: self._filled] for column in self._rows))
        self._filled = 0
        return taken

    def add(self, text: pa.LargeStringArray, passages: Passages, words_N: NDArray[np.int64]) -> Iterator[Grams]:
        """List the n-grams of the texts; gives the rows back whenever there is no room for more. ``words_N``: see
        ``list_grams``."""
        texts = text_buffers(text)
        room = token_room(int(np.diff(texts.offset_N).max(initial=0)))
        if len(self._tokens.hash_T) < room:
            self._tokens = self._scratch(room)
        state = np.zeros(3, np.int64)
        tables = (self._table, self._tokens, words_N)
        while state[0] < len(text):
            free = Grams(*(column[self._filled :] for column in self._rows))
            self._filled += list_grams(texts, tables, self._rule, passages, state, free)
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
    sizes.append(len(order_G))


def list_file_grams(
    inputs: InputFile, file: int, config: DecideConfig, folders: SpanFolders, memory_bytes: int
) -> dict[str, int]:
    """Write the n-grams of one file that may occur twice; returns how many documents and n-grams.

    Raises:
        DamageError: an earlier stage's files are missing or damaged.
        RefusedError: the input is not what was signed.
    """
    documents = load_documents(inputs, file, folders)
    words_D = np.full(len(documents.record_D), -1, np.int64)
    sizes: list[int] = []
    passages = _find_passages(file, folders)
    wanted = np.unique(passages.document_P)
    if len(wanted):
        keep_R = np.zeros(len(documents.status_R), np.bool_)
        keep_R[documents.record_D[wanted]] = True
        lister = GramLister(gram_rule(inputs, config), min(_MOST_RUN, max(_LEAST_RUN, memory_bytes // _ROW_BYTES)))
        expected = load_summary(folders.signed, file)
        options = read_options(config, memory_bytes)
        for batch in read_file(inputs, file, options=options, keep_R=keep_R, expected=expected):
            number_N = np.searchsorted(documents.record_D, batch.record_N)
            start_N = np.searchsorted(passages.document_P, np.append(number_N, number_N[-1] + 1))
            mine = slice(int(start_N[0]), int(start_N[-1]))
            of_batch = Passages(
                passages.first_P[mine], passages.stop_P[mine], start_N - start_N[0], number_N.astype(np.uint64)
            )
            words_N = np.full(len(number_N), -1, np.int64)
            for rows in lister.add(batch.text, of_batch, words_N):
                _save_run(rows, folders.grams, file, sizes)
            words_D[number_N] = words_N
        _save_run(lister.rows(), folders.grams, file, sizes)
    write_atomic(folders.grams / f"words.{file:05d}.npy", npy_bytes(words_D.astype(np.int32)))
    save_runs(folders.grams, "grams", file, sizes)
    return {"documents": len(wanted), "n-grams": sum(sizes)}
