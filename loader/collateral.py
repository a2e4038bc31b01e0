"""What a skip entry takes out, and what goes with it: counted from the Datasets, for one epoch of their sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .order.plan import Plan
    from .order.skips import SkipEntry
    from .shards.segments import SegmentTable
    from .sources import Sources

__all__ = ["CHUNK_SAMPLES", "asked_segments", "collateral_of", "touched_samples"]

CHUNK_SAMPLES = 4096
"""Whose segments are looked at together."""


def collateral_of(plan: Plan, sources: Sources, entry: SkipEntry) -> dict[str, Any]:
    """``samples`` and ``by_source`` (samples a source loses, or holds masked segments of), ``tokens`` that are cut,
    ``documents`` touched, and ``other_tokens`` of ``other_documents``: not asked for, but in dropped samples.

    A range of positions is not made up for: ``by_source`` is what each source is read less.
    """
    tokens = other_tokens = 0
    by_source: dict[str, int] = {}
    documents: set[int] = set()
    others: set[int] = set()
    for source, samples_N, _ in touched_samples(plan, sources, entry):
        name = sources.names[source]
        for first in range(0, len(samples_N), CHUNK_SAMPLES):
            table = sources.segments_of(source, samples_N[first : first + CHUNK_SAMPLES])
            table = table.take(~table.padding_S)
            asked_S = asked_segments(table, entry)
            touched = np.unique(table.sample_index_S[asked_S])
            by_source[name] = by_source.get(name, 0) + len(touched)
            tokens += int(table.num_tokens_S[asked_S].sum())
            documents.update(np.unique(table.document_id_S[asked_S]).tolist())
            if entry.mode == "drop":
                beside_S = ~asked_S & np.isin(table.sample_index_S, touched)
                other_tokens += int(table.num_tokens_S[beside_S].sum())
                others.update(np.unique(table.document_id_S[beside_S]).tolist())
    return {
        "samples": sum(by_source.values()),
        "by_source": dict(sorted(by_source.items())),
        "tokens": tokens,
        "documents": len(documents),
        "other_tokens": other_tokens,
        "other_documents": len(others - documents),
    }


def asked_segments(table: SegmentTable, entry: SkipEntry) -> NDArray[np.bool_]:
    """Which segments the entry itself names; the rest of a dropped sample is collateral."""
    if entry.kind == "documents":
        return np.isin(table.document_id_S, np.array(entry.documents, np.uint64))
    if entry.kind == "segments":
        asked_S = np.zeros(len(table), np.bool_)
        for start, stop in entry.ranges:
            asked_S |= (table.segment_S >= start) & (table.segment_S < stop)
        return asked_S
    return np.ones(len(table), np.bool_)


def touched_samples(
    plan: Plan, sources: Sources, entry: SkipEntry
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """(source, source sample numbers, and of an entry about positions those where each is read) that it touches."""
    nowhere = np.empty(0, np.int64)
    if entry.kind == "documents":
        found: dict[int, list[NDArray[np.int64]]] = {}
        for document in entry.documents:
            for name, samples_N in sources.samples_of_document(document):
                if name in sources.names:
                    found.setdefault(sources.names.index(name), []).append(samples_N)
        yield from ((source, np.unique(np.concatenate(parts)), nowhere) for source, parts in sorted(found.items()))
    elif entry.kind == "positions":
        for start, stop in _pairs(entry):
            for first in range(start, stop, 1 << 16):
                positions_N = np.arange(first, min(stop, first + (1 << 16)))
                refs = plan.samples(positions_N)
                for source in np.unique(refs.source_N).tolist():
                    own_N = refs.source_N == source
                    yield source, np.asarray(refs.sample_N[own_N], np.int64), positions_N[own_N]
    else:
        source = sources.names.index(entry.source or "")
        num_samples = int(sources.shard_samples(entry.source or "").sum())
        ranges = [(0, num_samples)] if entry.kind in ("source", "segments") else _pairs(entry)
        for start, stop in ranges:
            yield source, np.arange(start, min(stop, num_samples)), nowhere


def _pairs(entry: SkipEntry) -> list[tuple[int, int]]:
    """The ranges that act, none twice: positions before the stamp stay what they are."""
    return list(zip(entry.acting.start_R.tolist(), entry.acting.stop_R.tolist(), strict=True))
