"""Looking for items in batches of documents: which document holds how much of which item, and where.

Shapes: N documents of a batch, M matched grams, H hits (a document and an item of which it holds enough), G grams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .index import ItemIndex

if TYPE_CHECKING:
    import pyarrow as pa

    from ..kernels.documents import Buffers

__all__ = ["HIT_DTYPE", "HIT_GRAM_DTYPE", "RANGE_DTYPE", "Found", "ItemFinder", "read_only_buffers"]

HIT_DTYPE = np.dtype(
    [
        ("record", "<i8"),
        ("item", "<i4"),
        ("form", "<i4"),
        ("matched", "<i4"),
        ("byte_start", "<i8"),
        ("byte_stop", "<i8"),
    ]
)
"""``form``: the form of the item of which the document holds the largest share, ``matched``: distinct grams of it
there; bytes from the first gram of any form that is hit to behind the last."""
HIT_GRAM_DTYPE = np.dtype([("hit", "<i8"), ("gram", "<i4")])
"""``hit``: row number of the hit; ``gram``: of any form of the item that is hit."""
RANGE_DTYPE = np.dtype([("record", "<i8"), ("byte_start", "<i8"), ("byte_count", "<i8")])
_ROOM = 1 << 14


def read_only_buffers(text: pa.LargeStringArray) -> Buffers:
    """The buffers of an Arrow array, never writable: kernels are compiled for one kind of array."""
    from ..kernels.documents import Buffers, text_buffers

    data, offset_N = text_buffers(text)
    for array in (data, offset_N):
        array.flags.writeable = False
    return Buffers(data, offset_N)


@dataclass(frozen=True)
class Found:
    """What a batch holds.

    Attributes:
        hits, hit_grams: ``HIT_DTYPE`` by record and item; ``HIT_GRAM_DTYPE`` by hit and gram.
        ranges: ``RANGE_DTYPE``: disjoint ascending bytes of each hit document that matched grams of its hits cover,
            from the border of a word to the border of a word.
        documents_G2: int64 rows (gram, documents of the batch that hold it), ascending; grams of any document, hit or
            not.
    """

    hits: NDArray[Any]
    hit_grams: NDArray[Any]
    ranges: NDArray[Any]
    documents_G2: NDArray[np.int64]


class ItemFinder:
    """Looks for the items of one index, with scratch memory that is reused from batch to batch."""

    def __init__(self, index: ItemIndex, threshold: float) -> None:
        from ..normalize import load_table

        self._index = index
        self._threshold = threshold
        self._table = load_table()
        self._tokens = np.empty(0, np.uint64)
        self._matches = np.empty((_ROOM, 3), np.int64)

    def find(self, text: pa.LargeStringArray, record_N: NDArray[np.int64]) -> Found:
        """All hits among N documents, whose record numbers ascend."""
        buffers = read_only_buffers(text)
        match_M3 = self._scan(buffers)
        if not len(match_M3):
            empty = (np.zeros(0, HIT_DTYPE), np.zeros(0, HIT_GRAM_DTYPE), np.zeros(0, RANGE_DTYPE))
            return Found(*empty, documents_G2=np.zeros((0, 2), np.int64))
        num_grams = len(self._index.place_G3)
        pair_M = np.unique(match_M3[:, 0] * num_grams + match_M3[:, 2])  # (document, gram), each once
        document_M, gram_M = np.divmod(pair_M, num_grams)
        grams, documents = np.unique(gram_M, return_counts=True)
        hit_H4, pair_hit, pair_gram = self._hits(document_M, gram_M)
        hit_grams = np.zeros(len(pair_hit), HIT_GRAM_DTYPE)
        hit_grams["hit"], hit_grams["gram"] = pair_hit, pair_gram
        hits = np.zeros(len(hit_H4), HIT_DTYPE)
        hits["record"] = record_N[hit_H4[:, 0]]
        hits["item"], hits["form"], hits["matched"] = hit_H4[:, 1:].T
        ranges = self._place(buffers, match_M3, hit_H4[:, 0], hits, hit_grams)
        return Found(hits, hit_grams, ranges, np.stack((grams, documents), axis=1))

    def _scan(self, buffers: Buffers) -> NDArray[np.int64]:
        """Rows (document, word, gram), int64, in order of the text."""
        from ..kernels.item_grams import find_grams

        longest = int(np.diff(buffers.offset_N).max(initial=0))
        if len(self._tokens) < longest:
            self._tokens = np.empty(longest, np.uint64)
        while True:
            count = find_grams(buffers, self._table, self._index.tables, self._tokens, self._matches)
            if count <= len(self._matches):
                return self._matches[:count]
            self._matches = np.empty((2 * count, 3), np.int64)

    def _hits(
        self, document_M: NDArray[np.int64], gram_M: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Hits (H, 4: document, item, form, matched grams) and, pair by pair, the hit and gram of each."""
        index = self._index
        start_M = index.posting_start_G[gram_M]
        count_M = index.posting_start_G[gram_M + 1] - start_M
        place = np.arange(int(count_M.sum())) + np.repeat(start_M - (np.cumsum(count_M) - count_M), count_M)
        form, gram = index.posting_L[place].astype(np.int64), np.repeat(gram_M, count_M)
        num_forms, num_items, num_grams = len(index.item_F), int(index.item_F.max()) + 1, len(index.place_G3)
        key_K, group, matched_K = np.unique(
            np.repeat(document_M, count_M) * num_forms + form, return_inverse=True, return_counts=True
        )
        document_K, form_K = np.divmod(key_K, num_forms)
        score_K = matched_K / index.grams_F[form_K]
        enough = np.flatnonzero(score_K >= self._threshold)
        name_K = document_K * num_items + index.item_F[form_K]
        names_H = np.unique(name_K[enough])
        best = enough[np.lexsort((form_K[enough], -score_K[enough], name_K[enough]))]
        best = best[np.searchsorted(name_K[best], names_H)]
        hit_K = np.full(len(key_K), -1)
        hit_K[enough] = np.searchsorted(names_H, name_K[enough])
        wanted = hit_K[group] >= 0
        pairs = np.unique(hit_K[group[wanted]] * num_grams + gram[wanted])
        hit_H4 = np.stack((document_K[best], index.item_F[form_K[best]], form_K[best], matched_K[best]), axis=1)
        return hit_H4, *np.divmod(pairs, num_grams)

    def _place(
        self,
        buffers: Buffers,
        match_M3: NDArray[np.int64],
        document_H: NDArray[np.int64],
        hits: NDArray[Any],
        hit_grams: NDArray[Any],
    ) -> NDArray[Any]:
        """Fill in the bytes of the hits, and return what their grams cover."""
        from ..kernels.item_grams import bound_words

        ranges = []
        gram_start_H = np.searchsorted(hit_grams["hit"], np.arange(len(hits) + 1))
        for document in np.unique(document_H).tolist():
            first, stop = buffers.offset_N[document : document + 2].tolist()
            bound_T2 = np.zeros((stop - first, 2), np.int64)
            bound_words(buffers.data, (first, stop), self._table, bound_T2)
            rows = match_M3[slice(*np.searchsorted(match_M3[:, 0], (document, document + 1)))]
            length = self._index.place_G3[rows[:, 2], 2]
            spans = np.stack((bound_T2[rows[:, 1], 0], bound_T2[rows[:, 1] + length - 1, 1]), axis=1) - first
            mine = np.zeros(len(rows), np.bool_)
            for hit in range(*np.searchsorted(document_H, (document, document + 1)).tolist()):
                own = np.isin(rows[:, 2], hit_grams["gram"][gram_start_H[hit] : gram_start_H[hit + 1]])
                hits["byte_start"][hit], hits["byte_stop"][hit] = spans[own, 0].min(), spans[own, 1].max()
                mine |= own
            record = int(hits["record"][np.searchsorted(document_H, document)])
            ranges += [(record, start, stop - start) for start, stop in _union(spans[mine])]
        return np.array(ranges, RANGE_DTYPE)


def _union(span_M2: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Disjoint ascending ranges that cover what ``span_M2`` covers; those that only touch stay apart."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(map(tuple, span_M2.tolist())):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined
