"""documents.npy searched by ranges: a document's rows at the price of a few pages, where having the file costs much.

The file has one hash, over all of it, so what a page says is proven by nothing in it. Who searches so proves what was
found by the shards' own tables, which have hashes (``Dataset.samples_of_document`` does): each row that is returned
names a shard that holds the document. Not proven is that no other row does: a damaged page may hide one. What must know
that (plans, counts) reads the whole file (``documents.DocumentIndex``, ``index_blocks``).

Shape letters: M rows of documents.npy.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from ..errors import DamageError
from .access import npy_layout
from .layout import DOCUMENT_INDEX_DTYPE
from .storage import ReadRange

__all__ = ["SearchedIndex"]

_PAGE_ROWS = 4096
_HIGHEST = (1 << 64) - 1


class SearchedIndex:
    """The index of a Dataset, read by ranges; threads may share it.

    Ids are hashes, so where one lies is guessed by interpolation (3 or 4 pages of 64 KiB among 10^8 rows), and halved
    every third time, whatever the ids are.

    Attributes:
        num_rows: of the index. rows_read: by all searches so far.
    """

    def __init__(self, read: ReadRange, size_bytes: int, place: str) -> None:
        """``read`` gives ranges of the file, ``place`` is its name.

        Raises:
            DamageError: it is no such file.
        """
        self._read = read
        self._place = place
        head = read(0, min(size_bytes, 4096))
        self._start, self.num_rows = npy_layout(head, size_bytes, DOCUMENT_INDEX_DTYPE, place)
        self.rows_read = 0
        self._lock = threading.Lock()

    def find(self, document: int) -> NDArray[np.void]:
        """Rows of a document id, in shard order; none if the pages that would hold it do not.

        Raises:
            DamageError: what was read is not sorted.
        """
        found = [np.zeros(0, DOCUMENT_INDEX_DTYPE)]
        if not 0 <= document <= _HIGHEST:
            return found[0]
        row, page_M = self._first(document)
        while True:
            mine_M = page_M[page_M["id"] == np.uint64(document)]
            found.append(mine_M)
            row += len(page_M)
            if len(mine_M) < len(page_M) or row >= self.num_rows:
                return np.concatenate(found)
            page_M = self._page(row, min(row + _PAGE_ROWS, self.num_rows), document, _HIGHEST)

    def _first(self, document: int) -> tuple[int, NDArray[np.void]]:
        """The first row whose id is not below ``document``, and what was read from there on."""
        low, high = 0, self.num_rows  # rows below ``low`` are smaller, those from ``high`` on are not
        low_id, high_id = 0, _HIGHEST
        page_M = np.zeros(0, DOCUMENT_INDEX_DTYPE)
        for attempt in range(1, 200):
            guess = (low + high) // 2
            if attempt % 3:
                guess = low + (document - low_id) * (high - low) // (high_id - low_id + 1)
            start = max(low, min(guess - _PAGE_ROWS // 2, high - _PAGE_ROWS))
            stop = min(start + _PAGE_ROWS, high)
            if start < stop:
                page_M = self._page(start, stop, low_id, high_id)
            place = int(np.searchsorted(page_M["id"], np.uint64(document), "left"))
            if place == 0 and start > low:
                high, high_id = start, int(page_M["id"][0])
            elif place == len(page_M) and stop < high:
                low, low_id = stop, int(page_M["id"][-1])
            elif place < len(page_M) or stop == self.num_rows:
                return start + place, page_M[place:]
            else:  # the first row is that at ``high``, which lies on a page that was not kept
                return stop, self._page(stop, min(stop + _PAGE_ROWS, self.num_rows), low_id, _HIGHEST)
        raise DamageError("TR-DATASET-INDEX", "no search of it ends", self._place)

    def _page(self, start: int, stop: int, low_id: int, high_id: int) -> NDArray[np.void]:
        """Rows ``start`` to ``stop``, whose ids must be sorted and lie in ``low_id`` .. ``high_id``."""
        size = DOCUMENT_INDEX_DTYPE.itemsize
        rows_M = np.frombuffer(self._read(self._start + start * size, (stop - start) * size), DOCUMENT_INDEX_DTYPE)
        ids_M = rows_M["id"]
        if not low_id <= int(ids_M[0]) <= int(ids_M[-1]) <= high_id or (ids_M[1:] < ids_M[:-1]).any():
            raise DamageError("TR-DATASET-INDEX", "document ids are not sorted", self._place)
        with self._lock:
            self.rows_read += len(rows_M)
        return rows_M
