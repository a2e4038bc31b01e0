"""Documents: the bytes of a ``.docs`` file, and documents.npy, the sorted index from a document's id to its shards.

Shape letters: D documents (of a shard), M rows of documents.npy, P its pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DamageError
from .access import check_size, npy_layout, open_regular, read_exact
from .layout import DOCUMENT_DTYPE, DOCUMENT_INDEX_DTYPE, DOCUMENT_MAGIC, HEADER_DTYPE, docs_size
from .segments import encode_table_header

__all__ = ["DocumentIndex", "DocumentPlace", "decode_documents", "encode_documents", "index_rows", "sort_index"]

_PAGE_ROWS = 256
_PAGES_PER_READ = 1024


@dataclass(frozen=True)
class DocumentPlace:
    """Where a document lies: source name, shard number inside the source, row of the shard's .docs."""

    source: str
    shard: int
    row: int


def encode_documents(documents_D: NDArray[np.void], number: int) -> tuple[bytes, bytes]:
    """The bytes of a ``.docs`` file in two pieces, for shard ``number``."""
    body = documents_D.tobytes()
    return encode_table_header(DOCUMENT_MAGIC, (body,), num_rows=len(documents_D), number=number), body


def decode_documents(data: bytes, num_documents: int, place: str) -> NDArray[np.void]:
    """View into the bytes of a ``.docs`` file, rows of ``DOCUMENT_DTYPE``.

    Raises:
        DamageError: the bytes are fewer or more than the count needs.
    """
    if len(data) != docs_size(num_documents):
        raise DamageError("TR-FILE-SIZE", f"the table has {len(data):,} bytes", place)
    return np.frombuffer(data, DOCUMENT_DTYPE, num_documents, HEADER_DTYPE.itemsize)


def index_rows(documents_D: NDArray[np.void], shard: int) -> NDArray[np.void]:
    """Rows of documents.npy for the documents of a shard, in their order; ``shard`` = row of shards.npy."""
    rows_D = np.zeros(len(documents_D), DOCUMENT_INDEX_DTYPE)
    rows_D["id"] = documents_D["id"]
    rows_D["shard"] = shard
    rows_D["row"] = np.arange(len(documents_D))
    return rows_D


def sort_index(rows_M: NDArray[np.void]) -> NDArray[np.void]:
    """Rows of ``DOCUMENT_INDEX_DTYPE`` sorted by id; rows of one id keep their order (that of the shards)."""
    return rows_M[np.argsort(rows_M["id"], kind="stable")]


class DocumentIndex:
    """documents.npy on disk: binary search over pages, so that a thousand million rows need no memory of their own.

    Opening streams the whole file once and compares its hash; what stays in memory is the first id and a checksum of
    each page of 256 rows (0.06 bytes a row), and every page read later is compared with that checksum.
    """

    def __init__(self, path: Path, size_bytes: int, xxh3_128: str) -> None:
        """Open and verify.

        Raises:
            DamageError: the file is missing, or differs in size, hash, format or order from what was written.
        """
        self._path = path
        self._descriptor = open_regular(path)
        check_size(path, os.fstat(self._descriptor).st_size, size_bytes)
        head = read_exact(self._descriptor, path, 0, min(size_bytes, 4096))
        self._start, self.num_rows = npy_layout(head, size_bytes, DOCUMENT_INDEX_DTYPE, str(path))
        first_P: list[NDArray[np.uint64]] = []
        checks: list[int] = []
        digest = xxhash.xxh3_128(head[: self._start])
        last = -1
        for block in self._blocks():
            digest.update(block)
            rows_M = np.frombuffer(block, DOCUMENT_INDEX_DTYPE)
            ids_M = rows_M["id"]
            if int(ids_M[0]) < last or (ids_M[1:] < ids_M[:-1]).any():
                raise DamageError("TR-DATASET-INDEX", "document ids are not sorted", str(path))
            last = int(ids_M[-1])
            first_P.append(ids_M[::_PAGE_ROWS].copy())
            view, page_bytes = memoryview(block), _PAGE_ROWS * DOCUMENT_INDEX_DTYPE.itemsize
            checks += [xxhash.xxh3_64_intdigest(view[i : i + page_bytes]) for i in range(0, len(block), page_bytes)]
        if digest.hexdigest() != xxh3_128:
            raise DamageError("TR-FILE-HASH", "the file's bytes differ from those written", str(path), xxh3_128)
        self._first_P = np.concatenate(first_P) if first_P else np.zeros(0, np.uint64)
        self._check_P = np.array(checks, np.uint64)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)

    def find(self, document: int) -> NDArray[np.void]:
        """All rows of a document id, in shard order; none if it is unknown.

        Raises:
            DamageError: a page changed since the file was opened.
        """
        if not 0 <= document < 1 << 64 or not len(self._first_P):
            return np.zeros(0, DOCUMENT_INDEX_DTYPE)
        wanted = np.uint64(document)
        # Rows of one id may begin on the page before the first page that begins with it.
        start = max(0, int(np.searchsorted(self._first_P, wanted, "left")) - 1)
        stop = int(np.searchsorted(self._first_P, wanted, "right"))
        found = [rows[rows["id"] == wanted] for rows in map(self._page, range(start, max(stop, start + 1)))]
        return np.concatenate(found)

    def _page(self, page: int) -> NDArray[np.void]:
        size = DOCUMENT_INDEX_DTYPE.itemsize
        start = page * _PAGE_ROWS
        count = min(_PAGE_ROWS, self.num_rows - start)
        data = read_exact(self._descriptor, self._path, self._start + start * size, count * size)
        if xxhash.xxh3_64_intdigest(data) != int(self._check_P[page]):
            raise DamageError("TR-FILE-HASH", f"page {page} changed since the file was opened", str(self._path))
        return np.frombuffer(data, DOCUMENT_INDEX_DTYPE)

    def _blocks(self) -> Iterator[bytes]:
        size = DOCUMENT_INDEX_DTYPE.itemsize
        step = _PAGE_ROWS * _PAGES_PER_READ
        for start in range(0, self.num_rows, step):
            count = min(step, self.num_rows - start)
            yield read_exact(self._descriptor, self._path, self._start + start * size, count * size)
