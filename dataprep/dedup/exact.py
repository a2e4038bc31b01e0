"""Exact duplicates: texts of equal bytes, by their 128-bit content hash and their size.

Documents of one text with the same rights are one head in the table already; what is left are heads of one text that
differ in their sources' opt-outs (or, within one source only, in their source). Shapes: N documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import DedupConfig
from .table import SignedColumns

__all__ = ["keys"]


def keys(columns: SignedColumns, band: int, config: DedupConfig) -> NDArray[np.uint64]:
    """The only band: half of the content hash; that the rest is equal too is checked when a pair is decided.
    ``config`` plays no part, equality has no parameters."""
    return columns.hash_N2[:, 0].copy()
