"""``decision: union_find``: the clusters of datatrove's MinHash dedup, removal for removal.

``MinhashDedupBuckets`` sorts each band by (signature rows, file, document) and makes a pair of every two neighbours
with equal rows; ``MinhashDedupCluster`` unites the pairs band after band, by size, and removes all but the root of
each cluster. Nothing is verified and clusters chain, so most of what goes beyond the verified rule has no surviving
near copy; it is here for comparison with runs that were made so. A contract test runs datatrove itself.

Shapes: N documents, K signature rows, M of them that share a band with another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import MinHashConfig

__all__ = ["cluster_roots"]

_NOT_READ = np.uint32(0xFFFFFFFF)


def cluster_roots(
    signature_NK: NDArray[np.uint32],
    file_N: NDArray[Any],
    document_N: NDArray[Any],
    config: MinHashConfig,
) -> NDArray[np.int64]:
    """The document (N, an index) that stays of each document's cluster: itself if it stays.

    Args:
        signature_NK: signatures, in any order of the documents. A document whose first row of a band is 2^32 - 1 is
            not read in that band, as in datatrove with 32-bit hashes; so one without shingles (all bits set) is alone.
        file_N, document_N: integers, datatrove's file number and number of the document in it; pairs are distinct.
        config: bands and rows.
    """
    from ..kernels.union import flatten_roots, unite_neighbours

    count = len(signature_NK)
    signature_NK = np.ascontiguousarray(signature_NK)
    parent_N = np.arange(count, dtype=np.int64)
    size_N = np.ones(count, np.int64)
    for band in range(config.bands):
        shared_M = _sharing(signature_NK, band, config.rows)
        rows_MR = signature_NK[shared_M, band * config.rows : (band + 1) * config.rows]
        keys = (document_N[shared_M], file_N[shared_M], *rows_MR.T[::-1])
        order_M = np.lexsort(keys)
        rows_MR = rows_MR[order_M]
        same_M = np.zeros(len(order_M), np.bool_)
        same_M[1:] = (rows_MR[1:] == rows_MR[:-1]).all(axis=1)
        unite_neighbours(shared_M[order_M], same_M, parent_N, size_N)
    flatten_roots(parent_N)
    return parent_N


def _sharing(signature_NK: NDArray[np.uint32], band: int, rows: int) -> NDArray[np.int64]:
    """Documents (M) that may share their rows of a band with another one: their hash is no singleton. One plain sort
    of (hash, document) packed into a word; few documents are left for the slow sort by rows."""
    from ..kernels.bands import band_keys

    count = len(signature_NK)
    mask = np.uint64((1 << max(1, (count - 1).bit_length())) - 1)
    key_N = np.zeros(count, np.uint64)
    band_keys(signature_NK, band * rows, rows, key_N)
    key_N &= ~mask
    key_N |= np.arange(count, dtype=np.uint64)
    key_N.sort()
    again_N = np.zeros(count, np.bool_)
    again_N[1:] = (key_N[1:] & ~mask) == (key_N[:-1] & ~mask)
    again_N[:-1] |= again_N[1:]
    shared_M = (key_N[again_N] & mask).astype(np.int64)
    readable_M: NDArray[np.int64] = shared_M[signature_NK[shared_M, band * rows] != _NOT_READ]
    return readable_M
