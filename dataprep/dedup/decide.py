"""The one rule that removes documents, whatever proposed the pairs.

Documents are visited in priority order; one is removed only if a *kept* better document is its duplicate: equal
bytes, or exact Jaccard similarity of shingle sets at or above the threshold. So no removal is wrong, nothing chains
from duplicate to duplicate, and the witness of every removal is in the final kept set. The result depends on the
documents and their priority alone, not on the order in which pairs were found, nor on the memory: components of
candidates are independent of each other, so they are decided group by group.

Shapes: N documents in priority order, P documents in the order of the files, H heads, L heads of a group, T methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..documents import Status
from ..kernels.jaccard import Sets
from ..kernels.walk import CHECK_ROWS, NO_DOCUMENT, Fates, Rules, find_candidates, link_kept, walk
from .buckets import Band, plan_bands, propose
from .candidates import ReadColumns, ReadSets
from .clusters import remove_clusters
from .config import DedupConfig, HoldoutConfig
from .groups import CHECKS, Group, Groups, SetSpill, form_groups
from .minhash import estimate_floor
from .spill import Workspace, forget_pages
from .table import DocumentTable, Method

__all__ = ["Decision", "Reads", "decide", "pair_methods"]

_STEP_HEADS = 1 << 13
"""Heads of a mapped group that are walked before its pages are given back."""


@dataclass(frozen=True)
class Reads:
    """What a decision reads, each once: signed columns of all documents twice, shingle sets of candidates."""

    columns: ReadColumns
    sets: ReadSets


@dataclass(frozen=True)
class Decision:
    """Fate of N documents in priority order.

    Attributes:
        status_N: uint8, KEPT or a REMOVED status (hold-out comes later).
        witness_N: int32, the kept document that removed this one, else ``NO_DOCUMENT``.
        similarity_N: float64, similarity to the witness.
        component_N: int32, best document of the component of kept documents that must stay together (itself if alone).
        passed_N: whether a pair of the document was passed over in a bucket of too many.
        figures: what was compared: candidate documents and pairs, similarities computed, pairs unverified.
        scratch_bytes: disk that was used meanwhile.
    """

    status_N: NDArray[np.uint8]
    witness_N: NDArray[np.int32]
    similarity_N: NDArray[np.float64]
    component_N: NDArray[np.int32]
    passed_N: NDArray[np.bool_]
    figures: dict[str, int]
    scratch_bytes: int


def pair_methods(methods: Mapping[str, Method], config: DedupConfig) -> list[str]:
    """The configured methods that propose pairs; those whose pairs need no verification first."""
    names = [name for name in config.methods if methods[name].kind == "pairs"]
    return sorted(names, key=lambda name: (methods[name].verifies, name))


def _no_fates(count: int) -> Fates:
    """Fates of documents that are all kept."""
    return Fates(
        np.full(count, NO_DOCUMENT, np.int32),
        np.zeros(count),
        np.zeros(count, np.uint8),
        np.zeros(count, np.uint8),
        np.zeros(3, np.int64),
    )


class _Decider:
    """One decision on its way."""

    def __init__(
        self,
        table: DocumentTable,
        methods: Mapping[str, Method],
        settings: tuple[DedupConfig, HoldoutConfig],
        reads: Reads,
        workspace: Workspace,
    ) -> None:
        self.table, self.methods, self.reads = table, methods, reads
        self.workspace = workspace.beside(len(table.file_N))
        self.config, self.holdout = settings
        self.names = pair_methods(methods, self.config)
        self.heads = table.heads
        count = len(self.heads)
        self.fates = _no_fates(count)
        self.root_H = np.arange(count, dtype=np.int32)
        self.num_candidates = 0
        self.scratch_bytes = 0

    @property
    def verifies(self) -> bool:
        """Whether texts are read again."""
        return self.config.decision == "leader"

    def run(self) -> None:
        """Fates of the heads, and their components."""
        groups = self._form_groups()
        needed = [self._candidates(groups, group) for group in range(groups.num_groups)]
        needed_H = np.concatenate([np.zeros(0, np.int64), *needed])
        self.num_candidates = len(needed_H)
        sets = SetSpill(groups, self.workspace)
        if self.verifies:
            number_N = np.full(len(self.table.head_N), NO_DOCUMENT, np.int32)
            number_N[self.heads] = np.arange(len(self.heads), dtype=np.int32)
            for documents, sizes, values in self.reads.sets(np.sort(self.heads[needed_H])):
                sets.add(number_N[documents], sizes, values)
        for group in range(groups.num_groups):
            self._decide_group(groups, group, sets)
        self.scratch_bytes += groups.scratch_bytes + sets.scratch_bytes

    def _form_groups(self) -> Groups:
        table, heads, config = self.table, self.heads, self.config
        bands: list[Band] = plan_bands(self.methods, self.names, config)
        place_N = np.full(len(table.head_N) + 1, NO_DOCUMENT, np.int32)  # the last one is for what screens took
        place_N[heads] = np.arange(len(heads), dtype=np.int32)
        head_P = place_N[table.number_P]
        text_H = table.text_N[heads]
        shared_text_H = np.bincount(text_H, minlength=len(table.text_N))[text_H] > 1
        proposals = propose(self.reads.columns(head_P), bands, shared_text_H, config, self.workspace)
        permutations = config.minhash.num_permutations if "minhash" in self.names else 0
        shape = form_groups(proposals, table.num_shingles_N[heads], permutations, self.verifies, self.workspace)
        groups = Groups(proposals, shape, bands, config, self.workspace)
        in_group_H = np.append(groups.group_H >= 0, False)
        wanted_P = np.where(in_group_H[head_P], head_P, NO_DOCUMENT).astype(np.int32)
        for head_C, columns in self.reads.columns(wanted_P):
            groups.add_columns(head_C, columns)
        self.scratch_bytes = proposals.scratch_bytes
        return groups

    def _rules(self, group: Group, similarity: float) -> Rules:
        table, config, names = self.table, self.config, self.names
        document_L = self.heads[group.head_L]
        takes_part = [table.takes_part_N[name][document_L] for name in names]
        count = len(document_L)
        return Rules(
            signature_LK=group.signature_LK,
            simhash_L=group.simhash_L,
            text_L=table.text_N[document_L],
            check_T=np.array([CHECKS[self.methods[name].check] for name in names], np.uint8),
            takes_part_TL=np.array(takes_part, np.bool_).reshape(len(names), count),
            group_L=np.zeros(count, np.int32) if config.across else table.source_N[document_L],
            threshold=similarity,
            floor=estimate_floor(similarity, max(1, group.signature_LK.shape[1])),
            max_distance=config.simhash.max_distance,
            max_members=config.max_bucket,
            num_fixed=int(np.searchsorted(document_L, table.num_earlier)),
            estimate=not self.verifies,
        )

    def _candidates(self, groups: Groups, number: int) -> NDArray[np.int64]:
        """Heads of one group whose texts are needed."""
        group = groups.load(number)
        linking = self.holdout.fraction > 0
        lowest = min(self.config.threshold, self.holdout.linked_at) if linking else self.config.threshold
        candidate_L = np.zeros(len(group.head_L), np.uint8)
        rules, count = self._rules(group, lowest), len(group.buckets.fill_G)
        step = max(1, count)
        if number in groups.too_large:
            step = max(1, count * _STEP_HEADS // len(group.buckets.member_M))
        for first in range(0, count, step):
            find_candidates(group.buckets, rules, candidate_L, (first, min(count, first + step)))
            forget_pages(group.signature_LK)
        needed: NDArray[np.int64] = group.head_L[candidate_L != 0]
        return needed

    def _decide_group(self, groups: Groups, number: int, sets: SetSpill) -> None:
        group = groups.load(number)
        count = len(group.head_L)
        step = _STEP_HEADS if number in groups.too_large else max(1, count)
        own = sets.load(number)
        rules = self._rules(group, self.config.threshold)
        clusters = self.config.decision == "union_find" and "minhash" in self.names
        takes_part_L = rules.takes_part_TL[self.names.index("minhash")].copy() if clusters else None
        if takes_part_L is not None:
            rules.takes_part_TL[self.names.index("minhash")] = False
        fates = _walk(group, rules, own, step)
        if _overfull(group, rules):  # a question for each bucket alone: what else is in the group plays no part
            group = groups.with_parts(number, group)
            fates = _walk(group, rules, own, step)
        if takes_part_L is not None:
            document_L = self.heads[group.head_L]
            place_L2 = np.stack((self.table.place_F[self.table.file_N[document_L]], self.table.record_N[document_L]), 1)
            fates.method_L[takes_part_L & (fates.witness_L == NO_DOCUMENT)] = self.names.index("minhash")
            remove_clusters(rules, takes_part_L, place_L2, self.config.minhash, fates)
        removed_L = fates.witness_L != NO_DOCUMENT
        witness_L = group.head_L[np.where(removed_L, fates.witness_L, 0)] if count else group.head_L
        self.fates.witness_L[group.head_L] = np.where(removed_L, witness_L, NO_DOCUMENT)
        self.fates.similarity_L[group.head_L] = fates.similarity_L
        self.fates.method_L[group.head_L] = fates.method_L
        self.fates.passed_L[group.head_L] = fates.passed_L
        self.fates.state[:] += fates.state
        if self.holdout.fraction > 0 and count:
            parent_L = np.arange(count, dtype=np.int32)
            linking, linked = self._rules(group, self.holdout.linked_at), fates._replace(state=self.fates.state)
            last = int(np.searchsorted(self.heads[group.head_L], len(self.table.head_N) - self.table.num_planted))
            for first in range(0, last, step):
                link_kept(group.buckets, linking, own, linked, parent_L, (first, min(last, first + step)))
                forget_pages(own.value_S)
                forget_pages(group.signature_LK)
            self.root_H[group.head_L] = group.head_L[_flat(parent_L)]
        sets.drop(number)


def _overfull(group: Group, rules: Rules) -> bool:
    """Whether some bucket that can be split kept too many members: its parts show which of them are near each other,
    also those that are linked only (an opted-out source's)."""
    can_split_G = rules.check_T[group.buckets.method_G] == CHECK_ROWS
    return bool((group.buckets.fill_G[can_split_G] > rules.max_members).any())


def _walk(group: Group, rules: Rules, sets: Sets, step: int) -> Fates:
    """Fates of one group, walked ``step`` documents at a time."""
    count = len(group.head_L)
    fates = _no_fates(count)
    seen_L = np.full(count, NO_DOCUMENT, np.int64)
    for first in range(0, count, step):
        walk(group.buckets, rules, sets, fates, seen_L, (first, min(count, first + step)))
        forget_pages(sets.value_S)
        forget_pages(group.signature_LK)
    return fates


def _flat(parent_N: NDArray[np.int32]) -> NDArray[np.int32]:
    """Roots instead of parents."""
    while True:
        roots = parent_N[parent_N]
        if np.array_equal(roots, parent_N):
            return roots
        parent_N = roots


def _spread_over_copies(decider: _Decider) -> tuple[Fates, NDArray[np.bool_]]:
    """Fates of all N documents from those of the heads, and which documents went because their own head is kept.

    A document that is no head shares the fate of its text, and goes if its head is kept, if it takes part in a
    method that can tell: in one that needs no verification, else in one that compares sets, if it has a set.
    """
    table, heads, names, fates = decider.table, decider.heads, decider.names, decider.fates
    count = len(table.head_N)
    if count == 0:
        return fates, np.zeros(0, np.bool_)
    place_N = np.zeros(count, np.int32)
    place_N[heads] = np.arange(len(heads), dtype=np.int32)
    place_N = place_N[table.head_N]
    witness_N = fates.witness_L[place_N]
    method_N = np.full(count, len(names), np.uint8)
    for method in reversed(range(len(names))):
        can_tell = table.takes_part_N[names[method]].copy()
        if decider.methods[names[method]].verifies:
            can_tell &= table.num_shingles_N > 0
        method_N[can_tell] = method
    removed = witness_N != NO_DOCUMENT
    copies = (table.head_N != np.arange(count)) & ~removed & (method_N < len(names))
    whole = Fates(
        np.where(removed, heads[np.where(removed, witness_N, 0)], NO_DOCUMENT).astype(np.int32),
        np.where(removed, fates.similarity_L[place_N], 0.0),
        np.where(removed, fates.method_L[place_N], method_N).astype(np.uint8),
        fates.passed_L[place_N],
        fates.state,
    )
    whole.witness_L[copies] = table.head_N[copies]
    whole.similarity_L[copies] = 1.0
    return whole, copies


def _components(decider: _Decider) -> NDArray[np.int32]:
    """Best document (N) of each document's component; removed documents are alone. Kept documents of equal bytes (in
    sources that opted out, or in other sources) are linked as well."""
    from ..kernels.bands import join_members

    table, heads = decider.table, decider.heads
    count = len(table.head_N)
    component_N = np.arange(count, dtype=np.int32)
    component_N[heads] = heads[_flat(decider.root_H)]
    kept_N = np.ones(count, np.bool_)
    kept_N[heads] = decider.fates.witness_L == NO_DOCUMENT
    kept_N &= kept_N[table.head_N]
    kept_N[count - table.num_planted :] = False
    kept = np.flatnonzero(kept_N)
    kept = kept[np.argsort(table.text_N[kept], kind="stable")]
    text_K = table.text_N[kept]
    sizes = np.diff(np.append(np.flatnonzero(np.diff(text_K, prepend=-1)), len(kept))).astype(np.uint32)
    several = sizes > 1
    members = kept[np.repeat(several, sizes)].astype(np.uint32)
    join_members(members, sizes[several], component_N, np.zeros(count, np.int32))
    return _flat(component_N)


def decide(
    table: DocumentTable,
    methods: Mapping[str, Method],
    settings: tuple[DedupConfig, HoldoutConfig],
    reads: Reads,
    workspace: Workspace,
) -> Decision:
    """Decide every document of ``table``.

    Args:
        table: the documents.
        methods: what names in the configuration mean.
        settings: of dedup and of hold-out (documents are linked only if some are held out).
        reads: signed columns, and texts of candidates.
        workspace: memory and scratch folder.

    Raises:
        AssertionError: a removal whose witness is not kept (an error of this program).
    """
    decider = _Decider(table, methods, settings, reads, workspace)
    names: Sequence[str] = decider.names
    if names:
        decider.run()
    component_N = np.arange(len(table.head_N), dtype=np.int32)
    if settings[1].fraction > 0:
        component_N = _components(decider)
    whole, copies = _spread_over_copies(decider)
    kept_N = whole.witness_L == NO_DOCUMENT
    if not kept_N[whole.witness_L[~kept_N]].all() or not kept_N[: table.num_earlier].all():
        raise AssertionError("a removed document's witness is not kept")
    status_T = np.array([*(methods[name].status for name in names), Status.KEPT], np.uint8)
    status_N = np.where(kept_N, np.uint8(Status.KEPT), status_T[whole.method_L]).astype(np.uint8)
    figures = {
        "documents": len(status_N) - table.num_earlier - table.num_planted,
        "candidate_documents": decider.num_candidates,
        "signatures_compared": int(whole.state[0]),
        "similarities": int(whole.state[1]),
        "copies": int(copies[: len(copies) - table.num_planted].sum()),
        "unverified_pairs": int(whole.state[2]),
    }
    passed_N = whole.passed_L > 0
    return Decision(
        status_N, whole.witness_L, whole.similarity_L, component_N, passed_N, figures, decider.scratch_bytes
    )
