"""Exact duplicates: texts of equal bytes, by their 128-bit content hash and their size.

Documents of one text with the same rights are one head in the table already; what is left to propose are pairs of heads
that differ in their sources' opt-outs (or, within one source only, in their source).
"""

from __future__ import annotations

import numpy as np

from .config import DedupConfig
from .table import DocumentTable, Proposal

__all__ = ["propose"]


def propose(table: DocumentTable, config: DedupConfig, floor: float) -> Proposal:
    """Pairs of heads of equal bytes. ``config`` and ``floor`` play no part: equality has no parameters."""
    heads = table.heads
    order = heads[np.lexsort((heads, table.hash_N2[heads, 0], table.hash_N2[heads, 1], table.size_N[heads]))]
    worse, better = [], []
    distance = 1
    while distance < len(order):
        first, second = order[:-distance], order[distance:]
        same = (table.hash_N2[first] == table.hash_N2[second]).all(axis=1) & (
            table.size_N[first] == table.size_N[second]
        )
        if not same.any():
            break
        worse.append(second[same])
        better.append(first[same])
        distance += 1
    empty = np.zeros(0, np.int64)
    return Proposal(np.concatenate([empty, *worse]), np.concatenate([empty, *better]))
