"""Counting documents from the shards themselves: do they begin with BOS and end with EOS, how long are they, how cut.

What a manifest promises is no evidence: a tokenizer that lost its BOS (one peer: for a whole corpus) is seen in tokens
only. Whole Datasets are counted on request, otherwise a few shards; the result says how many of how many. Either way
documents.npy is read whole, a block at a time (16 bytes a row): it alone says which documents lie in other shards too.

Shape letters: S segments, D documents, N samples, K shards counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dataset import Dataset
from .index_blocks import shared_documents
from .segments import SegmentTable

__all__ = ["count_documents"]

_SAMPLED_SHARDS = 16
_SAMPLED_DOCUMENTS = 4096
_READ_SAMPLES = 256


@dataclass(frozen=True)
class _Counts:
    """Documents that stand in one shard (lengths, border tokens of those that were read), and the shard's own sums."""

    num_tokens_D: NDArray[np.int64]
    num_segments_D: NDArray[np.int64]
    first_token_N: NDArray[np.int64]
    last_token_N: NDArray[np.int64]
    num_bytes: int
    tokens: int
    segments: int
    samples: int


def count_documents(dataset: Dataset, exact: bool = False) -> dict[str, dict[str, Any]]:
    """Source -> what its documents are, counted from shards.

    Args:
        dataset: opened.
        exact: every shard and document; else 16 shards in all (one a source at least), chosen by the digest, and the
            borders of 4,096 documents a shard.

    Each value holds ``exact``, ``shards`` (read, of how many), ``documents`` (whose lengths were counted), ``borders``
    (whose first and last token were read), ``bos_fraction`` and ``eos_fraction`` (of those; None without such an id),
    ``tokens`` a document (mean, median, longest), ``bytes_per_token``, ``segments_per_sample``, ``split`` (documents in
    more than one segment).

    Raises:
        DamageError: a shard or documents.npy is not what was written.
    """
    shared = shared_documents(dataset)
    shared_ids = np.array(sorted(shared), np.uint64)
    budget = max(1, _SAMPLED_SHARDS // max(1, len(dataset.source_names)))
    found = {}
    for number, source in enumerate(dataset.source_names):
        rows_K = np.flatnonzero(dataset.shards_R["source"] == number)
        chosen_K = rows_K
        if not exact and len(rows_K) > budget:
            rng = np.random.default_rng([number, int(dataset.digest[:15], 16)])
            chosen_K = np.sort(rng.choice(rows_K, budget, replace=False))
        starts = np.cumsum([0, *dataset.shards_R["num_samples"][rows_K].tolist()])[chosen_K - rows_K[:1]]
        counts = [
            _count_shard(dataset, source, (row, start), (shared, shared_ids), exact)
            for row, start in zip(chosen_K.tolist(), starts.tolist(), strict=True)
        ]
        found[source] = _summary(dataset, counts, (len(chosen_K), len(rows_K)), exact)
    return found


def _count_shard(
    dataset: Dataset,
    source: str,
    place: tuple[int, int],
    shared: tuple[dict[int, int], NDArray[np.uint64]],
    exact: bool,
) -> _Counts:
    """``place`` = (row of shards.npy, its first sample)."""
    row, start = place
    sample_N = np.arange(start, start + int(dataset.shards_R["num_samples"][row]))
    whole = dataset.segments_of(source, sample_N)
    real = whole.take(~whole.padding_S)
    mine = [document for document in np.unique(real.document_id_S).tolist() if shared[0].get(document) == row]
    table = _with_shared(dataset, source, real, mine, shared[1])
    order_S = np.lexsort((table.document_token_start_S, table.document_id_S))
    table = table.take(order_S)
    first_D = np.flatnonzero(np.append(True, table.document_id_S[1:] != table.document_id_S[:-1])[: len(table)])
    last_D = np.append(first_D[1:], len(table))[: len(first_D)] - 1
    tokens_D = np.add.reduceat(table.num_tokens_S, first_D) if len(first_D) else np.zeros(0, np.int64)
    chosen_D = np.arange(len(first_D))
    if not exact and len(first_D) > _SAMPLED_DOCUMENTS:
        # Ids are hashes: those that come first are no kind of document.
        chosen_D = chosen_D[:_SAMPLED_DOCUMENTS]
    begins = table.take(first_D[chosen_D])
    begins = begins.take(begins.document_token_start_S == 0)
    ends = table.take(last_D[chosen_D])
    return _Counts(
        tokens_D,
        last_D - first_D + 1,
        _tokens_at(dataset, source, begins.source_sample_S, begins.token_start_S),
        _tokens_at(dataset, source, ends.source_sample_S, ends.token_start_S + ends.num_tokens_S - 1),
        int(real.byte_count_S.sum()),
        int(real.num_tokens_S.sum()),
        len(real),
        len(sample_N),
    )


def _with_shared(
    dataset: Dataset, source: str, table: SegmentTable, mine: Iterable[int], shared_ids: NDArray[np.uint64]
) -> SegmentTable:
    """Without the segments of documents that other shards hold too; those of ``mine`` come back whole."""
    parts = [table.take(~np.isin(table.document_id_S, shared_ids))]
    for document in mine:
        for name, samples_N in dataset.samples_of_document(document):
            if name == source:
                own = dataset.segments_of(source, samples_N)
                parts.append(own.take(own.document_id_S == np.uint64(document)))
    return SegmentTable.join(parts, [np.arange(int(p.sample_index_S.max(initial=-1)) + 1) for p in parts])


def _tokens_at(
    dataset: Dataset, source: str, sample_N: NDArray[np.int64], token_N: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Token ``token_N[i]`` of sample ``sample_N[i]``, reading each sample once, a few at a time."""
    found_N = np.zeros(len(sample_N), np.int64)
    unique_U, inverse_N = np.unique(sample_N, return_inverse=True)
    for start in range(0, len(unique_U), _READ_SAMPLES):
        tokens_NT = dataset.read_samples(source, unique_U[start : start + _READ_SAMPLES])
        mine = np.flatnonzero((inverse_N >= start) & (inverse_N < start + _READ_SAMPLES))
        found_N[mine] = tokens_NT[inverse_N[mine] - start, token_N[mine]]
    return found_N


def _summary(dataset: Dataset, counts: list[_Counts], shards: tuple[int, int], exact: bool) -> dict[str, Any]:
    tokenizer = dataset.manifest.tokenizer
    tokens_D = np.concatenate([np.zeros(0, np.int64), *(one.num_tokens_D for one in counts)])
    segments_D = np.concatenate([np.zeros(0, np.int64), *(one.num_segments_D for one in counts)])
    first_N = np.concatenate([np.zeros(0, np.int64), *(one.first_token_N for one in counts)])
    last_N = np.concatenate([np.zeros(0, np.int64), *(one.last_token_N for one in counts)])
    total = sum(one.tokens for one in counts)
    samples = sum(one.samples for one in counts)
    return {
        "exact": exact or (shards[0] == shards[1] and len(last_N) == len(tokens_D)),
        "shards": {"read": shards[0], "of": shards[1]},
        "documents": len(tokens_D),
        "borders": len(last_N),
        "bos_fraction": _fraction(first_N, tokenizer.get("bos_id")),
        "eos_fraction": _fraction(last_N, tokenizer.get("eos_id")),
        "tokens": {
            "mean": float(tokens_D.mean()) if len(tokens_D) else None,
            "median": float(np.median(tokens_D)) if len(tokens_D) else None,
            "longest": int(tokens_D.max(initial=0)),
        },
        "bytes_per_token": sum(one.num_bytes for one in counts) / total if total else None,
        "segments_per_sample": sum(one.segments for one in counts) / samples if samples else None,
        "split": int((segments_D > 1).sum()),
    }


def _fraction(token_N: NDArray[np.int64], wanted: Any) -> float | None:
    return float((token_N == wanted).mean()) if isinstance(wanted, int) and len(token_N) else None
