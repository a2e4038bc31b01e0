"""Near duplicates by MinHash and banding.

Broder, "On the resemblance and containment of documents" (1997); banding as in Leskovec, Rajaraman, Ullman, "Mining of
Massive Datasets", chapter 3. Signatures equal datasketch's (``affine32``). A pair becomes a candidate when all rows
of one band agree; candidates below an estimate floor are dropped, the rest is verified elsewhere.

Shapes: N documents, H heads with shingles, K permutations, B bands, P pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import DedupConfig, MinHashConfig
from .table import DocumentTable, Proposal, bucket_starts

__all__ = ["estimate_floor", "miss_probability", "miss_table", "propose"]

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


def _band_order(
    signature_HK: NDArray[np.uint32], band: int, config: DedupConfig
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Keys of one band (H), the documents sorted by (key, priority), and pairs that are passed over. The low bits
    of a key make room for the document's number, so that one plain sort does both; buckets that are too large are
    split by further signature rows."""
    from ..kernels.bands import band_keys

    rows = config.minhash.rows
    count, num_permutations = signature_HK.shape
    mask = np.uint64((1 << max(1, (count - 1).bit_length())) - 1)
    number = np.arange(count, dtype=np.uint64)
    key_H = np.full(count, band, np.uint64)
    band_keys(signature_HK, band * rows, rows, key_H)
    key_H &= ~mask
    ordered = np.sort(key_H | number)
    parted = 0
    for extra in range(_EXTRA_ROWS + 1):
        keys = ordered & ~mask
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        sizes = np.diff(np.append(starts, count))
        too_large = sizes > config.max_bucket
        if extra:
            parted -= _num_pairs(sizes)
        if extra == _EXTRA_ROWS or not too_large.any():
            # Of what no row can split, later members meet the first ``max_bucket``; the others' pairs are passed over.
            return key_H, (ordered & mask).astype(np.int64), parted + _num_pairs(sizes[too_large] - config.max_bucket)
        parted += _num_pairs(sizes)
        large = np.sort((ordered & mask)[np.repeat(too_large, sizes)]).astype(np.int64)
        split = key_H[large]
        column = (band * rows + rows + extra) % num_permutations
        band_keys(np.ascontiguousarray(signature_HK[large]), column, 1, split)
        key_H[large] = split & ~mask
        ordered = np.sort(key_H | number)
    raise AssertionError("unreachable")


def _num_pairs(sizes: NDArray[np.int64]) -> int:
    """Pairs inside buckets of these sizes."""
    return int((sizes * (sizes - 1) // 2).sum()) if len(sizes) else 0


def propose(table: DocumentTable, config: DedupConfig) -> Proposal:
    """A bucket for each key of each band; heads without shingles are alone in theirs."""
    heads = table.heads
    bands = config.minhash.bands
    member_BH, start_BH = (np.zeros((bands, len(heads)), np.int32) for _ in range(2))
    if len(heads) == 0:
        return Proposal(member_BH, start_BH)
    signature_HK = np.ascontiguousarray(table.signature_NK[heads])
    nothing = table.num_shingles_N[heads] == 0
    unverified = 0
    for band in range(bands):
        key_H, member_H, passed_over = _band_order(signature_HK, band, config)
        start_H = bucket_starts(key_H, member_H)
        place_H = np.empty(len(heads), np.int32)
        place_H[member_H] = np.arange(len(heads))
        member_BH[band], start_BH[band] = member_H, np.where(nothing, place_H, start_H)
        unverified += passed_over
    return Proposal(member_BH, start_BH, unverified)
