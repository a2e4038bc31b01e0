"""Tokenised documents on disk, as packing reads them: parts of three files each, whoever wrote them.

``documents.<part>.npy`` (rows of ``TOKENISED_DTYPE`` or ``PART_DTYPE``, sorted by split and key), ``tokens.<part>.bin``
and ``gaps.<part>.npy``. Tokenising leaves one part an input file; repacking and importing leave parts whose documents
come from several files, and so say the file of each row.

Legend: D documents, T tokens of them, Q places asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError

from .arrays import load_array
from .buckets import Bucket
from .cut_segments import Gaps, window_gaps
from .kernels.token_runs import byte_marks, bytes_before, copy_runs
from .token_facts import TokenFacts
from .tokenize import TOKENISED_DTYPE

__all__ = ["PART_DTYPE", "ByteSums", "StoredDocuments", "TokenStore"]

PART_DTYPE = np.dtype([*TOKENISED_DTYPE.descr, ("file", "<u4"), ("gap_row", "<i8")])
"""``TOKENISED_DTYPE`` with the document's input file, and the number under which ``gaps`` knows it."""

_OPEN_PARTS = 1024


@dataclass(frozen=True)
class StoredDocuments:
    """Documents of a bucket in key order: their rows, part and input file of each, and each part's gaps."""

    rows_D: NDArray[np.void]
    part_D: NDArray[np.int64]
    file_D: NDArray[np.int64]
    gap_row_D: NDArray[np.int64]
    gaps_of_part: dict[int, NDArray[np.void]]

    def __getitem__(self, window: slice) -> StoredDocuments:
        return StoredDocuments(
            self.rows_D[window], self.part_D[window], self.file_D[window], self.gap_row_D[window], self.gaps_of_part
        )

    def gaps(self) -> Gaps:
        """What is cut from these documents, by place among their tokens."""
        num_tokens_D = self.rows_D["num_tokens"].astype(np.int64)
        start_D = np.cumsum(num_tokens_D) - num_tokens_D
        return window_gaps(self.gap_row_D, self.part_D, start_D, self.gaps_of_part)

    def place(self, document: int) -> str:
        """What errors call a document."""
        return f"input file {int(self.file_D[document])}, record {int(self.rows_D['record'][document])}"


class ByteSums:
    """Bytes before any place among the T tokens of a window."""

    def __init__(self, stored_T: NDArray[Any], facts: TokenFacts) -> None:
        """``stored_T``: as stored, all ids inside the vocabulary."""
        self._ids_T, self._lengths_V = stored_T, facts.lengths_V
        self._before_T: NDArray[np.int64] | None = None
        if facts.paired:
            self._before_T = np.zeros(len(stored_T) + 1, np.int64)
            np.cumsum(stored_T["num_bytes"], out=self._before_T[1:])
            self.total = int(self._before_T[-1])
        elif facts.lengths_V is not None:
            self._marks_M = byte_marks(stored_T, facts.lengths_V)
            self.total = int(self._marks_M[-1])
        else:
            self.total = 0

    def before(self, place_Q: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the tokens before each place in 0 .. T; zeros where nothing is known."""
        if self._before_T is not None:
            return self._before_T[place_Q]
        if self._lengths_V is None:
            return np.zeros(len(place_Q), np.int64)
        return bytes_before(self._ids_T, self._lengths_V, self._marks_M, place_Q)


class TokenStore:
    """Read access to the parts in a folder."""

    def __init__(self, folder: Path, facts: TokenFacts) -> None:
        self.folder = folder
        self.facts = facts
        self._maps: dict[int, NDArray[Any]] = {}

    def documents(
        self,
        bucket: Bucket,
        parts: Sequence[int],
        keep: Callable[[NDArray[np.void]], NDArray[np.bool_]] | None = None,
    ) -> StoredDocuments:
        """Documents of a bucket in ``parts``, those that ``keep`` picks from their rows, sorted by key.

        Raises:
            DamageError: a table cannot be read.
        """
        first, last = bucket.key_range()
        rows, owners, files, gap_rows = [np.zeros(0, TOKENISED_DTYPE)], [], [], []
        gaps: dict[int, NDArray[np.void]] = {}
        for part in parts:
            table_D = load_array(self.folder / f"documents.{part:05d}.npy", mapped=True)
            start, stop = np.searchsorted(table_D["split"], [bucket.split, bucket.split + 1])
            keys_D = table_D["key"][start:stop]
            low = np.searchsorted(keys_D, np.uint64(first), side="left")
            high = np.searchsorted(keys_D, np.uint64(last), side="right")
            own_D = np.array(table_D[start:stop][low:high])
            if keep is not None:
                own_D = own_D[keep(own_D)]
            several = "file" in (own_D.dtype.names or ())
            owners.append(np.full(len(own_D), part, np.int64))
            files.append(own_D["file"].astype(np.int64) if several else owners[-1])
            gap_rows.append(own_D["gap_row" if several else "record"].astype(np.int64))
            if (own_D["cut_bytes"] > 0).any():
                gaps[part] = load_array(self.folder / f"gaps.{part:05d}.npy")
            rows.append(own_D[list(TOKENISED_DTYPE.names or ())].astype(TOKENISED_DTYPE) if several else own_D)
        rows_D = np.concatenate(rows)
        none = np.zeros(0, np.int64)
        part_D, file_D, gap_row_D = (np.concatenate([none, *column]) for column in (owners, files, gap_rows))
        order_D = np.argsort(rows_D["key"], kind="stable")
        return StoredDocuments(rows_D[order_D], part_D[order_D], file_D[order_D], gap_row_D[order_D], gaps)

    def tokens(self, documents: StoredDocuments) -> NDArray[Any]:
        """Stored tokens of documents, one after the other: one call of a kernel a part.

        Raises:
            DamageError: a tokens file is missing or too short.
        """
        num_tokens_D = documents.rows_D["num_tokens"].astype(np.int64)
        place_D = documents.rows_D["place"].astype(np.int64)
        start_D = np.cumsum(num_tokens_D) - num_tokens_D
        dtype = self.facts.stored_dtype
        flat = np.dtype(np.uint64) if self.facts.paired else dtype
        out_T = np.empty(int(num_tokens_D.sum()), dtype)
        order_D = np.argsort(documents.part_D, kind="stable")
        parts, firsts = np.unique(documents.part_D[order_D], return_index=True)
        for part, mine_D in zip(parts.tolist(), np.split(order_D, firsts[1:]), strict=True):
            most = int((place_D[mine_D] + num_tokens_D[mine_D]).max())
            if most:
                tokens = self._map(part, most).view(flat)
                copy_runs(out_T.view(flat), start_D[mine_D], tokens, place_D[mine_D], num_tokens_D[mine_D])
        return out_T

    def _map(self, part: int, most: int) -> NDArray[Any]:
        path = self.folder / f"tokens.{part:05d}.bin"
        found = self._maps.get(part)
        if found is None:
            if len(self._maps) >= _OPEN_PARTS:
                self._maps.clear()
            try:
                found = np.memmap(path, self.facts.stored_dtype, "r")
            except (OSError, ValueError) as error:
                raise DamageError("TR-WORK-DAMAGED", f"a tokens file cannot be read: {error}", str(path)) from error
            self._maps[part] = found
        if most > len(found):
            raise DamageError("TR-WORK-DAMAGED", "a tokens file is too short", str(path), f"{most} tokens")
        return found
