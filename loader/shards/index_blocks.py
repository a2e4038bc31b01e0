"""documents.npy as a stream of blocks: what compares or counts whole Datasets holds one block, not the index.

Shape letters: M rows of documents.npy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import DamageError
from .access import npy_layout
from .dataset import Dataset
from .layout import DOCUMENT_INDEX_DTYPE

__all__ = ["index_blocks", "shared_documents"]

_BLOCK_ROWS = 1 << 18


def index_blocks(dataset: Dataset) -> Iterator[NDArray[np.void]]:
    """The rows of documents.npy, sorted by id, in blocks of 4 MiB (``layout.DOCUMENT_INDEX_DTYPE``).

    The hash is known at the end only: nothing that was made of the blocks may be kept if this raises.

    Raises:
        DamageError: the file is missing, or differs in size, order or hash from what was written.
    """
    record = dataset.manifest.files_hashed["documents.npy"]
    place = f"{dataset.location}/documents.npy"
    row_bytes = DOCUMENT_INDEX_DTYPE.itemsize
    with dataset.storage.ranges("documents.npy", record) as read:
        head = read(0, min(record.size_bytes, 4096))
    start, num_rows = npy_layout(head, record.size_bytes, DOCUMENT_INDEX_DTYPE, place)
    digest, last = xxhash.xxh3_128(head[:start]), 0
    rows = ((first, min(_BLOCK_ROWS, num_rows - first)) for first in range(0, num_rows, _BLOCK_ROWS))
    ranges = ((start + first * row_bytes, count * row_bytes) for first, count in rows)
    for block in dataset.storage.pieces("documents.npy", record, ranges):
        digest.update(block)
        rows_M = np.frombuffer(block, DOCUMENT_INDEX_DTYPE)
        ids_M = rows_M["id"]
        if int(ids_M[0]) < last or (ids_M[1:] < ids_M[:-1]).any():
            raise DamageError("TR-DATASET-INDEX", "document ids are not sorted", place)
        last = int(ids_M[-1])
        yield rows_M
    if digest.hexdigest() != record.xxh3_128:
        raise DamageError("TR-FILE-HASH", "the file's bytes differ from those written", place, record.xxh3_128)


def shared_documents(dataset: Dataset) -> dict[int, int]:
    """Documents that lie in several shards: id -> the first of them, as a row of shards.npy; raises as
    :func:`index_blocks`."""
    found: dict[int, int] = {}
    last_id, last_shard = -1, -1
    for rows_M in index_blocks(dataset):
        ids_M = rows_M["id"]
        repeats = (np.flatnonzero(ids_M[1:] == ids_M[:-1]) + 1).tolist()
        if int(ids_M[0]) == last_id:
            found.setdefault(last_id, last_shard)
        for row in repeats:
            found.setdefault(int(ids_M[row]), int(rows_M["shard"][row - 1]))
        last_id = int(ids_M[-1])
        last_shard = found.get(last_id, int(rows_M["shard"][-1]))
    return found
