"""Near duplicates by MinHash and banding.

Broder, "On the resemblance and containment of documents" (1997); banding as in Leskovec, Rajaraman, Ullman, "Mining of
Massive Datasets", chapter 3. Signatures equal datasketch's (``affine32``). A pair becomes a candidate when all rows
of one band agree; candidates below an estimate floor are dropped, the rest is verified elsewhere.

Shapes: N documents, K permutations, C members of a bucket.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import DedupConfig, MinHashConfig
from .table import SignedColumns

__all__ = ["estimate_floor", "keys", "miss_probability", "miss_table", "split_bucket"]

_FLOOR_SIGMAS = 5.0
_EXTRA_ROWS = 16


def miss_probability(similarity: float, config: MinHashConfig) -> float:
    """Probability that a pair of this Jaccard similarity agrees in no band: ``(1 - s^rows)^bands``."""
    return float((1.0 - similarity**config.rows) ** config.bands)


def miss_table(config: MinHashConfig) -> dict[str, float]:
    """Miss probability at similarities 0.5, 0.55 ... 0.95, to be printed before a run."""
    return {f"{percent / 100:.2f}": miss_probability(percent / 100, config) for percent in range(50, 100, 5)}


def estimate_floor(similarity: float, num_permutations: int) -> int:
    """Equal signature rows below which a pair of ``similarity`` is not expected: five standard deviations under the
    mean."""
    deviation = (similarity * (1 - similarity) / num_permutations) ** 0.5
    return max(1, int(np.floor((similarity - _FLOOR_SIGMAS * deviation) * num_permutations)))


def keys(columns: SignedColumns, band: int, config: DedupConfig) -> NDArray[np.uint64]:
    """Hash of the signature rows of one band."""
    from ..kernels.bands import band_keys

    key_N = np.zeros(len(columns.size_N), np.uint64)
    band_keys(columns.signature_NK, band * config.minhash.rows, config.minhash.rows, key_N)
    return key_N


def split_bucket(
    member_C: NDArray[np.int32], signature_NK: NDArray[np.uint32], band: int, config: DedupConfig
) -> list[NDArray[np.int32]]:
    """Parts of a bucket that is too large: members that agree on further signature rows too, in the same order.

    Parts of more than ``max_bucket`` members are split again, up to 16 times; parts of one member are left out.
    """
    after = (band + 1) * config.minhash.rows
    too_large: list[NDArray[np.int32]] = [member_C]
    parts: list[NDArray[np.int32]] = []
    for extra in range(_EXTRA_ROWS):
        column = signature_NK[:, (after + extra) % signature_NK.shape[1]]
        pending, too_large = too_large, []
        for members in pending:
            value_C = column[members]
            order = np.argsort(value_C, kind="stable")
            borders = np.flatnonzero(value_C[order[1:]] != value_C[order[:-1]]) + 1
            for part in np.split(members[order], borders):
                if len(part) > 1:
                    (parts if len(part) <= config.max_bucket else too_large).append(part)
    return parts + too_large
