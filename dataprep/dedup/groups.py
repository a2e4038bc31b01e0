"""Groups of documents that are decided together: whole components of candidates, as many as fit into memory.

Documents of different components share no bucket, so no rule lets one touch the other: how components are grouped
changes nothing but the memory. A component that is larger than the memory is a group of its own whose columns are
mapped files. Shapes: H heads, L heads of a group, M members, G buckets, K signature rows, T methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..kernels.jaccard import Sets
from ..kernels.walk import CHECK_BITS, CHECK_CONTENT, CHECK_ROWS, Buckets
from .buckets import Band, Proposals
from .config import DedupConfig
from .minhash import split_bucket
from .spill import Spill, Workspace, forget_pages, new_map
from .table import SignedColumns

__all__ = ["CHECKS", "Group", "Groups", "SetSpill", "Shape", "form_groups"]

CHECKS = {"content": CHECK_CONTENT, "rows": CHECK_ROWS, "bits": CHECK_BITS}
_MEMBER_BYTES = 28
_HEAD_BYTES = 128
_PERMUTED_ROWS = 1 << 14


@dataclass(frozen=True)
class Group:
    """One group in memory (or mapped).

    Attributes:
        head_L: int64 heads, ascending, so in priority order.
        buckets: their buckets, by place in ``head_L``.
        signature_LK, simhash_L: their signed columns.
    """

    head_L: NDArray[np.int64]
    buckets: Buckets
    signature_LK: NDArray[np.uint32]
    simhash_L: NDArray[np.uint64]


@dataclass(frozen=True)
class Shape:
    """How heads fall into groups: ``group_H`` int32 (-1 = in no bucket), the number of groups, which are too large."""

    group_H: NDArray[np.int32]
    num_groups: int
    too_large: frozenset[int]


def form_groups(
    proposals: Proposals, num_shingles_H: NDArray[np.int32], num_permutations: int, reads: bool, workspace: Workspace
) -> Shape:
    """Components of candidates in groups of at most a quarter of the memory.

    A head takes room for its buckets and signed columns, and (if texts are read) for its shingle set.
    """
    involved = np.flatnonzero(proposals.count_H)
    cost_C = proposals.count_H[involved].astype(np.int64) * _MEMBER_BYTES + (_HEAD_BYTES + 8 * num_permutations)
    if reads:
        cost_C += 8 * num_shingles_H[involved].astype(np.int64)
    group_H = np.full(len(proposals.count_H), -1, np.int32)
    total, budget = int(cost_C.sum()), max(1, workspace.memory_bytes // 4)
    if total <= budget and workspace.partitions <= 1:
        group_H[involved] = 0
        return Shape(group_H, 1, frozenset())
    limit = max(1.0, min(budget / 2, total / max(1, workspace.partitions)))
    _, component_C = np.unique(proposals.root_H[involved], return_inverse=True)
    cost_R = np.bincount(component_C, weights=cost_C)
    alone_R = cost_R > limit
    number_R = np.floor(np.cumsum(np.where(alone_R, 0.0, cost_R)) / limit).astype(np.int64)
    number_R[alone_R] = len(cost_R) + 1 + np.arange(int(alone_R.sum()))
    names, number_R = np.unique(number_R, return_inverse=True)
    group_H[involved] = number_R[component_C]
    return Shape(group_H, max(1, len(names)), frozenset(number_R[cost_R > budget].tolist()))


class Groups:
    """Everything that was proposed, sorted by group; groups are loaded one at a time (a single one is kept)."""

    def __init__(
        self, proposals: Proposals, shape: Shape, bands: Sequence[Band], config: DedupConfig, workspace: Workspace
    ) -> None:
        self.group_H = shape.group_H
        self.num_groups = shape.num_groups
        self.too_large = shape.too_large
        self._bands = bands
        self._config = config
        self._workspace = workspace
        self._members = workspace.spill("group-members", (np.uint32,), shape.num_groups)
        self._buckets = workspace.spill("group-buckets", (np.uint32, np.uint16), shape.num_groups)
        self._route(proposals)
        involved = np.flatnonzero(self.group_H >= 0)
        self._by_group = involved[np.argsort(self.group_H[involved], kind="stable")]
        sizes = np.bincount(self.group_H[involved], minlength=shape.num_groups)
        self._stops = np.cumsum(sizes)
        starts = np.repeat(self._stops - sizes, sizes)
        self.local_H = np.full(len(self.group_H), -1, np.int32)
        self.local_H[self._by_group] = (np.arange(len(involved)) - starts).astype(np.int32)
        self._columns: Spill | None = None
        self._kept: Group | None = None

    def _route(self, proposals: Proposals) -> None:
        for partition in range(proposals.members.num_partitions):
            if not proposals.members.num_rows[partition]:
                continue
            (member_M,) = proposals.members.read(partition)
            size_G, band_G = proposals.buckets.read(partition)
            proposals.members.drop(partition)
            proposals.buckets.drop(partition)
            first_G = np.cumsum(size_G, dtype=np.int64) - size_G
            self._buckets.route(self.group_H[member_M[first_G]], size_G, band_G)
            self._members.route(self.group_H[member_M], member_M)

    @property
    def scratch_bytes(self) -> int:
        """Disk that buckets and signed columns took."""
        columns = self._columns.spilled_bytes if self._columns is not None else 0
        return self._members.spilled_bytes + self._buckets.spilled_bytes + columns

    def add_columns(self, head_C: NDArray[np.int64], columns: SignedColumns) -> None:
        """Take the signed columns of heads that are in a group; each of them once, in any order."""
        if self._columns is None:
            rows = (np.uint32, columns.signature_NK.shape[1:])
            spill_bytes = self._workspace.memory_bytes // (4 if self.num_groups == 1 else 16)
            kinds = (np.uint32, np.uint64, rows)
            self._columns = Spill(self._workspace.folder, "signatures", kinds, self.num_groups, spill_bytes)
        self._columns.route(self.group_H[head_C], head_C.astype(np.uint32), columns.simhash_N, columns.signature_NK)

    def heads(self, group: int) -> NDArray[np.int64]:
        """Heads of a group, ascending."""
        return self._by_group[self._stops[group - 1] if group else 0 : self._stops[group]]

    def load(self, group: int) -> Group:
        """A group with fresh buckets."""
        if self._kept is not None:
            return self._kept
        signature_LK, simhash_L = self._signed(group)
        loaded = Group(self.heads(group), self._load_buckets(group), signature_LK, simhash_L)
        if self.num_groups == 1:
            self._kept = loaded
        return loaded

    def _signed(self, group: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        if self._columns is None or not self._columns.num_rows[group]:
            return np.zeros((0, 0), np.uint32), np.zeros(0, np.uint64)
        mapped = group in self.too_large
        head_L, simhash_L, signature_LK = (self._columns.map if mapped else self._columns.read)(group)
        place_L = self.local_H[head_L]
        ordered_L = np.empty_like(simhash_L)
        ordered_L[place_L] = simhash_L
        if mapped:
            path = self._workspace.folder / f"ordered-signatures.{group:05d}"
            rows_LK = new_map(path, signature_LK.dtype, signature_LK.shape)
        else:
            rows_LK = np.empty_like(signature_LK)
        for start in range(0, len(place_L), _PERMUTED_ROWS):
            rows = slice(start, start + _PERMUTED_ROWS)
            rows_LK[place_L[rows]] = signature_LK[rows]
            if mapped:
                forget_pages(signature_LK)
                forget_pages(rows_LK)
        return rows_LK, ordered_L

    def _load_buckets(self, group: int) -> Buckets:
        """Buckets in the order of bands."""
        (member_M,) = self._members.read(group)
        size_G, band_G = self._buckets.read(group)
        order = np.argsort(band_G, kind="stable")
        is_part_G = np.zeros(len(size_G), np.uint8)
        return self._in_order(group, self.local_H[member_M], (size_G.astype(np.int64), band_G, is_part_G), order)

    def with_parts(self, group: int, loaded: Group) -> Group:
        """The group with fresh buckets, those that kept too many members followed by their parts.

        A part holds members that agree on further signature rows too; only ``rows`` methods have them.
        """
        overfull = np.flatnonzero(loaded.buckets.fill_G > self._config.max_bucket)
        fresh = self._load_buckets(group)
        size_G = np.diff(fresh.start_G)
        _, band_G = self._buckets.read(group)
        band_G = band_G[np.argsort(band_G, kind="stable")]
        members, sizes, bands = [fresh.member_M], [size_G], [band_G]
        for bucket in overfull.tolist():
            band = self._bands[band_G[bucket]]
            if band.rule.check == "rows":
                inside = fresh.member_M[fresh.start_G[bucket] : fresh.start_G[bucket + 1]]
                parts = split_bucket(inside, loaded.signature_LK, band.number, self._config)
                members += parts
                sizes.append(np.array([len(part) for part in parts], np.int64))
                bands.append(np.full(len(parts), band_G[bucket], np.uint16))
                forget_pages(loaded.signature_LK)
        all_sizes, all_bands = np.concatenate(sizes), np.concatenate(bands)
        is_part_G = (np.arange(len(all_sizes)) >= len(size_G)).astype(np.uint8)
        order = np.argsort(all_bands * 2 + is_part_G, kind="stable")
        columns = (all_sizes, all_bands, is_part_G)
        return replace(loaded, buckets=self._in_order(group, np.concatenate(members), columns, order))

    def _in_order(
        self,
        group: int,
        member_M: NDArray[np.int32],
        columns: tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.uint8]],
        order: NDArray[np.int64],
    ) -> Buckets:
        """Buckets from members, sizes, bands and marks of parts, put in ``order``."""
        from ..kernels.bands import gather_runs, index_buckets

        size_G, band_G, is_part_G = columns
        start_G = np.concatenate((np.zeros(1, np.int64), np.cumsum(size_G[order])))
        ordered_M = np.empty_like(member_M)
        gather_runs(member_M, (np.cumsum(size_G) - size_G)[order], start_G, ordered_M)
        method_B = np.array([band.method for band in self._bands], np.uint8)
        first_L = np.zeros(len(self.heads(group)) + 1, np.int64)
        entry_E = np.empty(len(member_M), np.int32)
        index_buckets(ordered_M, start_G, first_L, entry_E)
        fill_G = np.zeros(len(size_G), np.int32)
        return Buckets(ordered_M, start_G, fill_G, method_B[band_G[order]], is_part_G[order], first_L, entry_E)


class SetSpill:
    """Shingle sets of heads, by group."""

    def __init__(self, groups: Groups, workspace: Workspace) -> None:
        self._groups = groups
        share = 4 if groups.num_groups == 1 else 16
        limit = workspace.memory_bytes // share
        self._values = Spill(workspace.folder, "sets", (np.uint64,), groups.num_groups, limit)
        self._sizes = Spill(workspace.folder, "set-sizes", (np.uint32, np.int64), groups.num_groups, limit)

    @property
    def scratch_bytes(self) -> int:
        """Disk that sets took."""
        return self._values.spilled_bytes + self._sizes.spilled_bytes

    def add(self, head_C: NDArray[np.int32], size_C: NDArray[np.int64], values: NDArray[np.uint64]) -> None:
        """Take sets of heads, one after another."""
        group_C = self._groups.group_H[head_C]
        self._sizes.route(group_C, head_C.astype(np.uint32), size_C)
        self._values.route(np.repeat(group_C, size_C) if self._groups.num_groups > 1 else group_C, values)

    def load(self, group: int) -> Sets:
        """Sets of one group, by place in it; heads that were not read have empty ones."""
        count = len(self._groups.heads(group))
        start_L, stop_L = np.zeros(count, np.int64), np.zeros(count, np.int64)
        if not self._sizes.num_rows[group]:
            return Sets(np.zeros(0, np.uint64), start_L, stop_L)
        head_C, size_C = self._sizes.read(group)
        place_C = self._groups.local_H[head_C]
        stop_C = np.cumsum(size_C)
        start_L[place_C], stop_L[place_C] = stop_C - size_C, stop_C
        mapped = group in self._groups.too_large
        (values,) = self._values.map(group) if mapped else self._values.read(group)
        return Sets(values, start_L, stop_L)

    def drop(self, group: int) -> None:
        """Forget one group's sets."""
        self._values.drop(group)
        self._sizes.drop(group)
