"""What the report of a Dataset shows and no account holds otherwise: clusters of duplicates, lengths of documents,
reasons of rejects. JSON-able and bounded, however large the job; part of the manifest's account.

Legend: N rows of a table, D documents of a file.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .arrays import load_array
from .dedup.expect import removal_rows
from .documents import Status

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["MOST_CLUSTERS", "cluster_facts", "expected_removals", "length_facts", "reject_facts"]

MOST_CLUSTERS = 20
_WITNESSES_AT_ONCE = 1 << 24
_MOST_BITS = 48


def expected_removals(pipeline: Pipeline) -> list[dict[str, Any]]:
    """P(seen | J) and P(removed | J) of the job's configuration (``dedup.expect``); empty where no method goes by
    similarity."""
    return [dict(row) for row in removal_rows(pipeline.job.config.dedup)]


def cluster_facts(removed: Path, at_once: int = _WITNESSES_AT_ONCE) -> dict[str, Any]:
    """Clusters of duplicates: a document that stayed, and those that were removed because of it.

    Args:
        removed: removed.parquet of the decide stage. at_once: most witnesses in memory; more are counted in passes,
            each over the ids with one remainder (ids are hashes).

    Returns:
        ``sizes``: ["2" | "3-4" | "5-8" .., clusters of so many documents]; ``largest``: the ``MOST_CLUSTERS`` largest,
        ``{document, source, file, record, removed}``; file and record are None of a document of an earlier run.
    """
    with pq.ParquetFile(removed) as file:
        passes = max(1, -(-file.metadata.num_rows // at_once))
    bins = np.zeros(65, np.int64)
    largest: list[tuple[int, int]] = []
    for remainder in range(passes):
        parts = [
            ids_N[ids_N % np.uint64(passes) == np.uint64(remainder)] for ids_N in _column(removed, "witness_document")
        ]
        ids, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
        # 1 removed: 2 documents; 2-3: 3-4; 4-7: 5-8; ...: the bit length of the removed ones
        bins += np.bincount(np.frexp(counts.astype(np.float64))[1], minlength=65)
        top = np.lexsort((ids, -counts))[:MOST_CLUSTERS]
        found = [(int(counts[i]), -int(ids[i])) for i in top]
        largest = heapq.nlargest(MOST_CLUSTERS, [*largest, *found])
    sizes = [
        ["2" if bits == 1 else f"{2 ** (bits - 1) + 1}-{2**bits}", int(count)]
        for bits, count in enumerate(bins.tolist())
        if count
    ]
    places = _places(removed, np.array([-negative for _, negative in largest], np.uint64))
    return {
        "sizes": sizes,
        "largest": [
            {"document": f"{-negative:016x}", **places[-negative], "removed": count} for count, negative in largest
        ],
    }


def _column(path: Path, name: str) -> Iterator[NDArray[np.uint64]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[name]):
            yield batch.column(0).drop_null().cast(pa.uint64()).to_numpy(zero_copy_only=False)


def _places(path: Path, ids: NDArray[np.uint64]) -> dict[int, dict[str, Any]]:
    """Where the documents with these ids come from, as the first removal because of each says."""
    places: dict[int, dict[str, Any]] = {}
    names = ["witness_document", "witness_source", "witness_file", "witness_record"]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=names):
            if len(places) == len(ids):
                break
            witness_N = batch.column(0).fill_null(0).to_numpy(zero_copy_only=False)
            here_N = np.isin(witness_N, ids) & ~batch.column(0).is_null().to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(here_N).tolist():
                source, name, record = (batch.column(column)[row].as_py() for column in (1, 2, 3))
                places.setdefault(int(witness_N[row]), {"source": source, "file": name, "record": record})
    return places


def length_facts(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Lengths of documents in bytes of UTF-8 text, by source: ``read`` and ``kept`` (by screens, dedup and hold-out)
    with ``documents``, ``bytes``, ``longest`` and ``by_bits`` = documents of [2^(b-1), 2^b) bytes, b = 0 first."""
    fates, signed = pipeline.fates(), pipeline.folder("sign")
    lengths: dict[str, dict[str, Any]] = {}
    for file, inputs in enumerate(pipeline.job.inputs):
        row = lengths.setdefault(inputs.source, {name: _no_lengths() for name in ("read", "kept")})
        documents_D = load_array(signed / f"documents.{file:05d}.npy")
        size_D = documents_D["size_bytes"].astype(np.int64)
        kept_D = fates.status_of_file(file)[documents_D["record"]] == Status.KEPT
        for name, sizes in (("read", size_D), ("kept", size_D[kept_D])):
            _add_lengths(row[name], sizes)
    for row in lengths.values():
        for part in row.values():
            part["by_bits"] = np.trim_zeros(part["by_bits"], "b").tolist()
    return lengths


def _no_lengths() -> dict[str, Any]:
    return {"documents": 0, "bytes": 0, "longest": 0, "by_bits": np.zeros(_MOST_BITS, np.int64)}


def _add_lengths(part: dict[str, Any], size_D: NDArray[np.int64]) -> None:
    part["documents"] += len(size_D)
    part["bytes"] += int(size_D.sum())
    part["longest"] = max(part["longest"], int(size_D.max(initial=0)))
    part["by_bits"] += np.bincount(np.frexp(size_D.astype(np.float64))[1], minlength=_MOST_BITS)[:_MOST_BITS]


def reject_facts(rejected: Path) -> dict[str, dict[str, Any]]:
    """Rejected records by source and reason: how many, and the first one's ``file``, ``record`` and ``record_start``.

    Args:
        rejected: rejected.parquet of the decide stage.
    """
    found: dict[str, dict[str, Any]] = {}
    with pq.ParquetFile(rejected) as file:
        for batch in file.iter_batches():
            table = pa.Table.from_batches([batch])
            table = table.append_column("row", pa.array(np.arange(len(table))))
            counted = table.group_by(["source", "reason"]).aggregate([("row", "count"), ("row", "min")])
            for one in sorted(counted.to_pylist(), key=lambda one: int(one["row_min"])):
                row_min = one["row_min"]
                first = {name: table.column(name)[row_min].as_py() for name in ("file", "record", "record_start")}
                row = found.setdefault(one["source"], {}).setdefault(one["reason"], {"records": 0, **first})
                row["records"] += int(one["row_count"])
    return found
