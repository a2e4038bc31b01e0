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

__all__ = ["Clusters", "cluster_roots"]

_NOT_READ = np.uint32(0xFFFFFFFF)


class Clusters:
    """Clusters of N documents, grown band after band; about 40 bytes a document beside the rows of one band.

    Args:
        file_N, document_N: integers, datatrove's file number and number of the document in it; pairs are distinct.
    """

    def __init__(self, file_N: NDArray[Any], document_N: NDArray[Any]) -> None:
        self._order_P = np.lexsort((document_N, file_N))
        self._place_N = np.empty(len(self._order_P), np.uint64)
        self._place_N[self._order_P] = np.arange(len(self._order_P), dtype=np.uint64)
        self._parent_P = np.arange(len(self._order_P), dtype=np.int64)
        self._size_P = np.ones(len(self._order_P), np.int64)

    def add_band(self, rows_NR: NDArray[np.uint32]) -> None:
        """Unite the documents whose rows (uint32, C order) of the next band are equal, in datatrove's order.

        A document whose first row is 2^32 - 1 is not read, as in datatrove with 32-bit hashes; so one without
        shingles (all bits set) is alone.
        """
        from ..kernels.union import unite_neighbours

        place_M, first_M = self._sharing(rows_NR)
        rows_MR = rows_NR[self._order_P[place_M]]
        same_M = np.zeros(len(place_M), np.bool_)
        same_M[1:] = (rows_MR[1:] == rows_MR[:-1]).all(axis=1)
        if (same_M == first_M).any():  # two rows with one hash: rare, so the slow sort may do it
            order_M = np.lexsort((place_M, *_sort_keys(rows_MR)))
            same_M[1:] = (rows_MR[order_M][1:] == rows_MR[order_M][:-1]).all(axis=1)
        else:
            order_M = _by_group(np.flatnonzero(first_M), rows_MR)
            same_M = ~first_M[order_M]
        unite_neighbours(place_M[order_M], same_M, self._parent_P, self._size_P)

    def _sharing(self, rows_NR: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Places (M) of the documents that share the hash of their rows with another one, by (hash, place), and which
        of them begin a group. One plain sort of both packed into a word; few are left for anything slower."""
        from ..kernels.bands import band_keys

        mask = np.uint64((1 << max(1, (len(rows_NR) - 1).bit_length())) - 1)
        key_N = np.zeros(len(rows_NR), np.uint64)
        band_keys(rows_NR, 0, rows_NR.shape[1], key_N)
        key_N &= ~mask
        key_N |= self._place_N
        key_N = key_N[rows_NR[:, 0] != _NOT_READ]
        key_N.sort()
        again_N = np.zeros(len(key_N), np.bool_)
        again_N[1:] = (key_N[1:] & ~mask) == (key_N[:-1] & ~mask)
        first_N = ~again_N
        again_N[:-1] |= again_N[1:]
        return (key_N[again_N] & mask).astype(np.int64), first_N[again_N]

    def roots(self) -> NDArray[np.int64]:
        """The document (N, an index) that stays of each document's cluster: itself if it stays."""
        from ..kernels.union import flatten_roots

        flatten_roots(self._parent_P)
        root_N = np.empty(len(self._order_P), np.int64)
        root_N[self._order_P] = self._order_P[self._parent_P]
        return root_N


def _sort_keys(rows_GR: NDArray[np.uint32]) -> list[NDArray[np.uint64]]:
    """Columns for ``np.lexsort``, least significant first: two rows of a signature in one word."""
    columns = rows_GR.T.astype(np.uint64)
    pairs = [(columns[r] << np.uint64(32)) | columns[r + 1] for r in range(0, len(columns) - 1, 2)]
    return [*pairs, *([columns[-1]] if len(columns) % 2 else [])][::-1]


def _by_group(start_G: NDArray[np.int64], rows_MR: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Order (M) that puts whole groups, which begin at ``start_G``, by their rows and changes nothing inside them."""
    if len(start_G) == 0:
        return np.zeros(0, np.int64)
    order_G = np.lexsort(_sort_keys(rows_MR[start_G]))
    size_G = np.diff(np.append(start_G, len(rows_MR)))[order_G]
    begin_G = np.cumsum(size_G) - size_G
    order_M: NDArray[np.int64] = np.arange(len(rows_MR)) + np.repeat(start_G[order_G] - begin_G, size_G)
    return order_M


def cluster_roots(
    signature_NK: NDArray[np.uint32], file_N: NDArray[Any], document_N: NDArray[Any], config: MinHashConfig
) -> NDArray[np.int64]:
    """The document (N, an index) that stays of each document's cluster: itself if it stays.

    Args:
        signature_NK: signatures, in any order of the documents.
        file_N, document_N: see ``Clusters``.
        config: bands and rows.
    """
    clusters = Clusters(file_N, document_N)
    for band in range(config.bands):
        clusters.add_band(np.ascontiguousarray(signature_NK[:, band * config.rows : (band + 1) * config.rows]))
    return clusters.roots()
