"""The one rule that removes documents, whatever proposed the pairs.

Documents are visited in priority order; one is removed only if a *kept* better document is its duplicate: equal
bytes, or exact Jaccard similarity of shingle sets at or above the threshold. So no removal is wrong, nothing chains
from duplicate to duplicate, and the witness of every removal is in the final kept set. The result depends on the
documents and their priority alone, not on the order in which pairs were found.

Shapes: N documents in priority order, C documents whose texts are needed, P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..documents import Status
from ..kernels.jaccard import NO_DOCUMENT, Fates, Sets, link_pairs, walk_pairs
from .config import DedupConfig, HoldoutConfig
from .table import EXACT_PAIR, MINHASH_PAIR, DocumentTable, Method, pack_pairs

__all__ = ["Decision", "ReadSets", "decide"]

ReadSets = Callable[[NDArray[np.int64]], Sets]
"""Reads the shingle sets of some documents (ascending numbers): they are the only texts that are read a second time."""


@dataclass(frozen=True)
class Decision:
    """Fate of N documents in priority order.

    Attributes:
        status_N: uint8, KEPT or a REMOVED status (hold-out comes later).
        witness_N: int64, the kept document that removed this one, else ``NO_DOCUMENT``.
        similarity_N: float64, similarity to the witness.
        component_N: int64, best document of the component of kept documents that must stay together (itself if alone).
        figures: what was compared: candidate documents and pairs, similarities computed, pairs unverified.
    """

    status_N: NDArray[np.uint8]
    witness_N: NDArray[np.int64]
    similarity_N: NDArray[np.float64]
    component_N: NDArray[np.int64]
    figures: dict[str, int]


def _may_remove(table: DocumentTable, name: str, pairs: NDArray[np.uint64], across: bool) -> NDArray[np.bool_]:
    """Which pairs (P) a method may act on: both sides take part, and come from one source unless ``across``."""
    worse, better = _unpack(pairs)
    takes_part_N = table.takes_part_N[name]
    allowed: NDArray[np.bool_] = takes_part_N[worse] & takes_part_N[better]
    if not across:
        allowed &= table.source_N[worse] == table.source_N[better]
    return allowed


def _unpack(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    worse = (pairs >> np.uint64(32)).astype(np.int64)
    return worse, ((pairs >> np.uint64(1)) & np.uint64(0x7FFFFFFF)).astype(np.int64)


def _share_fate_of_heads(table: DocumentTable, fates: Fates, methods: Mapping[str, Method]) -> NDArray[np.bool_]:
    """Give documents that are no heads the fate of their text; returns which ones went because their own head is
    kept."""
    number = np.arange(len(table.head_N))
    by_bytes = table.takes_part_N.get("exact", np.zeros(len(number), np.bool_))
    by_sets = table.takes_part_N.get("minhash", np.zeros(len(number), np.bool_)) & (table.num_shingles_N > 0)
    follows = (table.head_N != number) & (by_bytes | by_sets)
    head = table.head_N
    head_removed = fates.witness_N[head] != NO_DOCUMENT
    copies: NDArray[np.bool_] = follows & ~head_removed
    fates.witness_N[copies] = head[copies]
    fates.similarity_N[copies] = 1.0
    fates.kind_N[copies] = np.where(by_bytes[copies], EXACT_PAIR, MINHASH_PAIR)
    others = follows & head_removed
    fates.witness_N[others] = fates.witness_N[head[others]]
    fates.similarity_N[others] = fates.similarity_N[head[others]]
    fates.kind_N[others] = fates.kind_N[head[others]]
    return copies


def _link_equal_texts(table: DocumentTable, kept_N: NDArray[np.bool_], parent_N: NDArray[np.int64]) -> None:
    """Put kept documents of equal bytes into one component (those of sources that opted out, or in other sources)."""
    kept = np.flatnonzero(kept_N)
    order = kept[np.lexsort((kept, table.size_N[kept], table.hash_N2[kept, 0], table.hash_N2[kept, 1]))]
    same = (table.hash_N2[order[1:]] == table.hash_N2[order[:-1]]).all(axis=1)
    same &= table.size_N[order[1:]] == table.size_N[order[:-1]]
    pairs = (order[1:][same].astype(np.uint64) << np.uint64(32)) | (order[:-1][same].astype(np.uint64) << np.uint64(1))
    nothing = np.zeros(0, np.int64)
    link_pairs(pairs, Sets(np.zeros(0, np.uint64), nothing, nothing), 1.0, parent_N)


def _components(
    table: DocumentTable, pairs: NDArray[np.uint64], sets: Sets, kept_N: NDArray[np.bool_], linked_at: float
) -> tuple[NDArray[np.int64], int]:
    """Best document of each document's component, and the similarities computed."""
    parent_N = np.arange(len(kept_N), dtype=np.int64)
    _link_equal_texts(table, kept_N, parent_N)
    worse, better = _unpack(pairs)
    computed = link_pairs(pairs[kept_N[worse] & kept_N[better]], sets, linked_at, parent_N)
    while True:
        roots = parent_N[parent_N]
        if np.array_equal(roots, parent_N):
            return roots, computed
        parent_N = roots


def decide(
    table: DocumentTable,
    methods: Mapping[str, Method],
    config: DedupConfig,
    holdout: HoldoutConfig,
    read_sets: ReadSets,
) -> Decision:
    """Decide every document of ``table``; texts are read only for candidates, by ``read_sets``.

    Raises:
        AssertionError: a removal whose witness is not kept (an error of this program).
    """
    linking = holdout.fraction > 0 and len(table.head_N) > 0
    floor = min(config.threshold, holdout.linked_at) if linking else config.threshold
    count = len(table.head_N)
    removing, linked, unverified = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], 0
    for name in config.methods:
        proposal = methods[name].propose(table, config, floor)
        pairs = pack_pairs(proposal, methods[name].pair_kind)
        unverified += proposal.unverified
        linked.append(pairs)
        removing.append(pairs[_may_remove(table, name, pairs, config.across)])
    all_pairs = np.unique(np.concatenate(linked))
    checked = all_pairs[(all_pairs & np.uint64(1)) == MINHASH_PAIR]
    candidates = np.unique(np.concatenate(_unpack(checked)))
    sets = read_sets(candidates)
    fates = Fates(np.full(count, NO_DOCUMENT), np.zeros(count), np.zeros(count, np.uint8), np.zeros(1, np.int64))
    walk_pairs(np.unique(np.concatenate(removing)), sets, config.threshold, fates)
    copies = _share_fate_of_heads(table, fates, methods)
    kept_N = fates.witness_N == NO_DOCUMENT
    if not kept_N[fates.witness_N[~kept_N]].all():
        raise AssertionError("a removed document's witness is not kept")
    component_N, links = np.arange(count, dtype=np.int64), 0
    if linking:
        component_N, links = _components(table, all_pairs, sets, kept_N, holdout.linked_at)
    status_of_kind = np.zeros(2, np.uint8)
    for name in config.methods:
        status_of_kind[methods[name].pair_kind] = methods[name].status
    status_N = np.where(kept_N, np.uint8(Status.KEPT), status_of_kind[fates.kind_N]).astype(np.uint8)
    figures = {
        "documents": count,
        "candidate_documents": len(candidates),
        "candidate_pairs": len(all_pairs),
        "similarities": int(fates.state[0]) + int(links),
        "copies": int(copies.sum()),
        "unverified_pairs": unverified,
    }
    return Decision(status_N, fates.witness_N, fates.similarity_N, component_N, figures)
