"""Candidate pairs of all methods, out of core: keys by partition, buckets of at least two, components of what they
join.

A record is 12 bytes on disk (key 8, of which 13 bits name the band; document 4). A partition is a range of keys; each
is sorted in memory, and what shares its key with nothing is dropped at once. Shapes: H heads, C heads of a chunk, S
records, M members of buckets, G buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import DedupConfig
from .spill import Spill, Workspace
from .table import Method, SignedColumns

__all__ = ["Band", "Proposals", "plan_bands", "propose"]

_SORT_BYTES = 48
"""Memory of one record while its partition is sorted."""


@dataclass(frozen=True)
class Band:
    """Band ``number`` of a method, which is number ``method`` of those at work."""

    method: int
    rule: Method
    number: int


@dataclass(frozen=True)
class Proposals:
    """Buckets and what they join.

    Attributes:
        members: uint32 heads, bucket by bucket, best first, by partition.
        buckets: size uint32 and band uint16 of each bucket, by partition.
        root_H: int32, best head of each head's component (itself if it shares no bucket).
        count_H: int32, buckets a head is in.
        scratch_bytes: disk that keys and buckets took.
    """

    members: Spill
    buckets: Spill
    root_H: NDArray[np.int32]
    count_H: NDArray[np.int32]
    scratch_bytes: int


def plan_bands(methods: Mapping[str, Method], names: Sequence[str], config: DedupConfig) -> list[Band]:
    """All bands of the methods ``names``, in their order."""
    return [
        Band(method, methods[name], number)
        for method, name in enumerate(names)
        for number in range(methods[name].num_bands(config))
    ]


def _records(
    head_C: NDArray[np.int64],
    columns: SignedColumns,
    bands: Sequence[Band],
    shared_text_H: NDArray[np.bool_],
    config: DedupConfig,
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Finished keys and heads of one chunk, all bands one after another."""
    from ..kernels.bands import finish_keys

    has_words_C = columns.num_shingles_N > 0
    numbers_C = head_C.astype(np.uint32)
    keys, heads = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    for place, band in enumerate(bands):
        wanted_C = has_words_C if band.rule.verifies else shared_text_H[head_C]
        if not wanted_C.any():
            continue
        key_C = band.rule.keys(columns, band.number, config)
        finish_keys(key_C, place)
        everything = bool(wanted_C.all())
        keys.append(key_C if everything else key_C[wanted_C])
        heads.append(numbers_C if everything else numbers_C[wanted_C])
    return np.concatenate(keys), np.concatenate(heads)


def _sorted_buckets(
    key_S: NDArray[np.uint64], head_S: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint16]]:
    """Members (best first in each bucket), sizes and bands of the buckets of one partition."""
    from ..kernels.bands import find_buckets
    from ..kernels.sorting import sort_records

    count = len(key_S)
    ordered_S, carried_S = np.empty(count, np.uint64), np.empty(count, np.uint32)
    sort_records(key_S, head_S, ordered_S, carried_S, np.zeros(1 << max(0, count.bit_length() - 1), np.int64))
    member_M, size_G, band_G = (
        np.empty(count, np.uint32),
        np.empty(count // 2, np.uint32),
        np.empty(count // 2, np.uint16),
    )
    num_members, num_buckets = find_buckets(ordered_S, carried_S, member_M, size_G, band_G)
    size_G, band_G = size_G[:num_buckets].copy(), band_G[:num_buckets].copy()
    packed = np.repeat(np.arange(num_buckets, dtype=np.uint64) << np.uint64(32), size_G) | member_M[:num_members]
    packed.sort()
    return packed.astype(np.uint32), size_G, band_G


def propose(
    chunks: Iterable[tuple[NDArray[np.int64], SignedColumns]],
    bands: Sequence[Band],
    shared_text_H: NDArray[np.bool_],
    config: DedupConfig,
    workspace: Workspace,
) -> Proposals:
    """The buckets of all bands over the heads that ``chunks`` go through once.

    Args:
        chunks: heads and their signed columns, every head once.
        bands: what is proposed.
        shared_text_H: heads whose text is another head's too: only they can be copies of each other.
        config: parameters of the methods.
        workspace: memory and scratch folder.
    """
    from ..kernels.bands import flatten_roots, join_members

    num_heads = len(shared_text_H)
    wanted = num_heads * len(bands) * _SORT_BYTES // max(1, workspace.memory_bytes // 8) + 1
    num_partitions = min(4096, max(workspace.partitions, wanted))
    records = workspace.spill("keys", (np.uint64, np.uint32), num_partitions, share=6)
    for head_C, columns in chunks:
        key_S, head_S = _records(head_C, columns, bands, shared_text_H, config)
        partition_S = np.zeros(0, np.uint16)
        if num_partitions > 1:
            partition_S = (((key_S >> np.uint64(32)) * np.uint64(num_partitions)) >> np.uint64(32)).astype(np.uint16)
        records.route(partition_S, key_S, head_S)
    members = workspace.spill("members", (np.uint32,), num_partitions)
    buckets = workspace.spill("buckets", (np.uint32, np.uint16), num_partitions)
    root_H, count_H = np.arange(num_heads, dtype=np.int32), np.zeros(num_heads, np.int32)
    for partition in range(num_partitions):
        if records.num_rows[partition]:
            member_M, size_G, band_G = _sorted_buckets(*records.read(partition))
            records.drop(partition)
            join_members(member_M, size_G, root_H, count_H)
            members.add(partition, member_M)
            buckets.add(partition, size_G, band_G)
    flatten_roots(root_H)
    scratch_bytes = records.spilled_bytes + members.spilled_bytes + buckets.spilled_bytes
    return Proposals(members, buckets, root_H, count_H, scratch_bytes)
