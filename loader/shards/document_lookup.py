"""Rows of documents.npy by document id: from the whole file, verified, or by ranges of it where it is far and large."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from .documents import DocumentIndex
from .index_search import SearchedIndex
from .manifest import Manifest
from .storage import Storage

__all__ = ["DocumentLookup"]

_NAME = "documents.npy"


class DocumentLookup:
    """The index of one Dataset, opened when it is first asked; threads may share it."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._hashed = manifest.files_hashed
        self._lock = threading.Lock()
        self._whole: DocumentIndex | None = None
        self._searched: SearchedIndex | None = None

    @property
    def searched_rows(self) -> tuple[int, int] | None:
        """(rows read, rows there are) where ranges answered; None where the whole file did, or nothing was asked."""
        return None if self._searched is None else (self._searched.rows_read, self._searched.num_rows)

    def find(self, document: int, proven: bool) -> NDArray[np.void]:
        """Rows (``layout.DOCUMENT_INDEX_DTYPE``) of a document, in shard order; ``proven``: from the whole file.

        Raises:
            DamageError: the file, or what was read of it, is not what was written.
        """
        with self._lock:
            index = self._index(proven)
        return index.find(document)

    def _index(self, proven: bool) -> DocumentIndex | SearchedIndex:
        record = self._hashed[_NAME]
        if self._whole is None and not proven and self._storage.is_dear(_NAME, record):
            if self._searched is None:
                with self._storage.ranges(_NAME, record) as read:  # far away, nothing has to stay open
                    self._searched = SearchedIndex(read, record.size_bytes, f"{self._storage.location}/{_NAME}")
            return self._searched
        if self._whole is None:
            self._searched = None
            self._whole = DocumentIndex(self._storage.local(_NAME, record), record.size_bytes, record.xxh3_128)
        return self._whole
