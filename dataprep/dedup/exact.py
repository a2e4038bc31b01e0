"""Exact duplicates: texts of equal bytes, by their 128-bit content hash and their size.

Documents of one text with the same rights are one head in the table already; what is left are heads of one text that
differ in their sources' opt-outs (or, within one source only, in their source). Shapes: H heads.
"""

from __future__ import annotations

import numpy as np

from .config import DedupConfig
from .table import DocumentTable, Proposal

__all__ = ["propose"]


def propose(table: DocumentTable, config: DedupConfig) -> Proposal:
    """One band: heads of equal bytes. ``config`` plays no part, equality has no parameters."""
    heads = table.heads
    content = (table.hash_N2[heads, 0], table.hash_N2[heads, 1], table.size_N[heads])
    member_H = np.lexsort((np.arange(len(heads)), *content))
    first = np.ones(len(heads), np.bool_)
    first[1:] = np.any([column[member_H][1:] != column[member_H][:-1] for column in content], axis=0)
    start_H = np.empty(len(heads), np.int32)
    start_H[member_H] = np.maximum.accumulate(np.where(first, np.arange(len(heads)), 0))
    return Proposal(member_H.astype(np.int32)[None], start_H[None])
