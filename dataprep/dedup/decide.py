"""The one rule that removes documents, whatever proposed the pairs.

Documents are visited in priority order; one is removed only if a *kept* better document is its duplicate: equal
bytes, or exact Jaccard similarity of shingle sets at or above the threshold. So no removal is wrong, nothing chains
from duplicate to duplicate, and the witness of every removal is in the final kept set. The result depends on the
documents and their priority alone, not on the order in which pairs were found.

Shapes: N documents in priority order, H heads among them, C documents whose texts are needed, B bands, M methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..documents import Status
from ..kernels.jaccard import Sets
from ..kernels.walk import NO_DOCUMENT, Buckets, Fates, Rules, find_candidates, link_kept, walk
from .config import DedupConfig, HoldoutConfig
from .minhash import estimate_floor
from .table import DocumentTable, Method

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


def _head_buckets(
    table: DocumentTable, methods: Mapping[str, Method], names: list[str], config: DedupConfig
) -> tuple[Buckets, int]:
    """The buckets of all methods in one table of bands, and how many pairs they pass over."""
    proposals = [methods[name].propose(table, config) for name in names]
    empty = np.zeros((0, len(table.heads)), np.int32)
    bands = [np.full(len(proposal.member_BH), method, np.uint8) for method, proposal in enumerate(proposals)]
    buckets = Buckets(
        np.concatenate([empty, *(proposal.member_BH for proposal in proposals)]),
        np.concatenate([empty, *(proposal.start_BH for proposal in proposals)]),
        np.concatenate([np.zeros(0, np.uint8), *bands]),
    )
    return buckets, sum(proposal.unverified for proposal in proposals)


def _rules(table: DocumentTable, methods: Mapping[str, Method], names: list[str], config: DedupConfig) -> Rules:
    heads = table.heads
    takes_part = [table.takes_part_N[name][heads] for name in names]
    signature_HK = np.ascontiguousarray(table.signature_NK[heads])
    return Rules(
        signature_HK=signature_HK,
        verifies_M=np.array([methods[name].verifies for name in names], np.bool_),
        takes_part_MH=np.array(takes_part, np.bool_).reshape(len(names), len(heads)),
        group_H=np.zeros(len(heads), np.int32) if config.across else table.source_N[heads],
        threshold=config.threshold,
        floor=estimate_floor(config.threshold, max(1, signature_HK.shape[1])),
        max_members=config.max_bucket,
    )


def _at(rules: Rules, similarity: float) -> Rules:
    """The same rules at another similarity."""
    return rules._replace(threshold=similarity, floor=estimate_floor(similarity, max(1, rules.signature_HK.shape[1])))


def _spread_over_copies(
    table: DocumentTable, fates: Fates, names: list[str], verifies_M: NDArray[np.bool_]
) -> tuple[Fates, NDArray[np.bool_]]:
    """Fates of all N documents from those of the heads, and which documents went because their own head is kept.

    A document that is no head shares the fate of its text, and goes if its head is kept, if it takes part in a
    method that can tell: in one that needs no verification, else in one that compares sets, if it has a set.
    """
    count, heads = len(table.head_N), table.heads
    place_N = np.zeros(count, np.int64)
    place_N[heads] = np.arange(len(heads))
    place_N = place_N[table.head_N]
    witness_N = fates.witness_H[place_N] if count else np.zeros(0, np.int64)
    method_N = np.full(count, len(names), np.uint8)
    for method in sorted(range(len(names)), key=lambda method: bool(verifies_M[method]), reverse=True):
        can_tell = table.takes_part_N[names[method]] & (not verifies_M[method] or table.num_shingles_N > 0)
        method_N[can_tell] = method
    is_copy = table.head_N != np.arange(count)
    removed = witness_N != NO_DOCUMENT
    copies = is_copy & ~removed & (method_N < len(names))
    whole = Fates(
        witness_H=np.where(removed, heads[np.where(removed, witness_N, 0)] if count else 0, NO_DOCUMENT),
        similarity_H=np.where(removed, fates.similarity_H[place_N] if count else 0.0, 0.0),
        method_H=np.where(removed, fates.method_H[place_N] if count else 0, method_N).astype(np.uint8),
        state=fates.state,
    )
    whole.witness_H[copies] = table.head_N[copies]
    whole.similarity_H[copies] = 1.0
    return whole, copies


def _link_equal_texts(table: DocumentTable, kept_N: NDArray[np.bool_], component_N: NDArray[np.int64]) -> None:
    """Join the components of kept documents of equal bytes (in sources that opted out, or in other sources)."""
    kept = np.flatnonzero(kept_N)
    order = kept[np.lexsort((kept, table.size_N[kept], table.hash_N2[kept, 0], table.hash_N2[kept, 1]))]
    same = (table.hash_N2[order[1:]] == table.hash_N2[order[:-1]]).all(axis=1)
    same &= table.size_N[order[1:]] == table.size_N[order[:-1]]
    for worse, better in zip(order[1:][same].tolist(), order[:-1][same].tolist(), strict=True):
        a, b = _root(component_N, worse), _root(component_N, better)
        component_N[max(a, b)] = min(a, b)


def _root(parent_N: NDArray[np.int64], document: int) -> int:
    while parent_N[document] != document:
        document = int(parent_N[document])
    return document


def _components(table: DocumentTable, buckets: Buckets, rules: Rules, sets: Sets, fates: Fates) -> NDArray[np.int64]:
    """Best document (N) of each document's component; removed documents are alone."""
    heads = table.heads
    parent_H = np.arange(len(heads), dtype=np.int64)
    link_kept(buckets, rules, sets, fates, parent_H)
    component_N = np.arange(len(table.head_N), dtype=np.int64)
    component_N[heads] = heads[parent_H]
    kept_N = np.ones(len(component_N), np.bool_)
    kept_N[heads] = fates.witness_H == NO_DOCUMENT
    kept_N &= kept_N[table.head_N]
    _link_equal_texts(table, kept_N, component_N)
    while True:
        roots = component_N[component_N]
        if np.array_equal(roots, component_N):
            return roots
        component_N = roots


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
    names = sorted(config.methods, key=lambda name: (methods[name].verifies, name))
    heads, count = table.heads, len(table.head_N)
    buckets, unverified = _head_buckets(table, methods, names, config)
    rules = _rules(table, methods, names, config)
    linking = holdout.fraction > 0
    lowest = min(config.threshold, holdout.linked_at) if linking else config.threshold
    candidate_H = np.zeros(len(heads), np.uint8)
    find_candidates(buckets, _at(rules, lowest), candidate_H)
    read = read_sets(heads[candidate_H != 0])
    sets = Sets(read.value_S, read.start_N[heads], read.stop_N[heads])
    fates = Fates(
        np.full(len(heads), NO_DOCUMENT), np.zeros(len(heads)), np.zeros(len(heads), np.uint8), np.zeros(2, np.int64)
    )
    walk(buckets, rules, sets, fates)
    component_N = np.arange(count, dtype=np.int64)
    if linking:
        component_N = _components(table, buckets, _at(rules, holdout.linked_at), sets, fates)
    whole, copies = _spread_over_copies(table, fates, names, rules.verifies_M)
    kept_N = whole.witness_H == NO_DOCUMENT
    if not kept_N[whole.witness_H[~kept_N]].all():
        raise AssertionError("a removed document's witness is not kept")
    status_M = np.array([*(methods[name].status for name in names), Status.KEPT], np.uint8)
    status_N = np.where(kept_N, np.uint8(Status.KEPT), status_M[whole.method_H]).astype(np.uint8)
    figures = {
        "documents": count,
        "candidate_documents": int(np.count_nonzero(candidate_H)),
        "signatures_compared": int(fates.state[0]),
        "similarities": int(fates.state[1]),
        "copies": int(copies.sum()),
        "unverified_pairs": unverified,
    }
    return Decision(status_N, whole.witness_H, whole.similarity_H, component_N, figures)
