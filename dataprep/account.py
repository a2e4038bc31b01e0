"""Law 1, checked at the end of every build: documents in = trained + held out + removed + rejected, and the same for
bytes.

Both sides are counted where they happen: what came in from the signed files and the statuses, what went out from the
shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from loader.errors import DamageError
from loader.shards.writer import ShardRecord

from .arrays import load_array
from .buckets import COUNTS, PACKING_COUNTS
from .documents import REMOVED, Status
from .fates import Fates
from .mix import SourceMix
from .pipeline import Pipeline
from .report_facts import cluster_facts, expected_removals, length_facts, reject_facts
from .screen_report import screen_account
from .stages import read_json

__all__ = ["Written", "account", "account_table", "dedup_account", "dedup_figures", "read_written"]


@dataclass(frozen=True)
class Written:
    """What the write stage left: per split the shard records, and counts[split][source] of documents, bytes, tokens,
    padding.
    """

    records: tuple[tuple[ShardRecord, ...], tuple[ShardRecord, ...]]
    counts: tuple[Mapping[str, Mapping[str, int]], Mapping[str, Mapping[str, int]]]


def read_written(pipeline: Pipeline) -> Written:
    """Collect the results of the write stage's tasks.

    Raises:
        DamageError: one of them cannot be read.
    """
    records: tuple[list[ShardRecord], list[ShardRecord]] = ([], [])
    counts = tuple({source: dict.fromkeys(COUNTS, 0) for source in pipeline.job.config.sources} for _ in range(2))
    for task, bucket in enumerate(pipeline.buckets):
        content = read_json(pipeline.folder("write") / f"shards.{task:05d}.json")
        records[bucket.split].extend(ShardRecord.from_json(record) for record in content["records"])
        for name in COUNTS:
            counts[bucket.split][bucket.source][name] += content["counts"][name]
    return Written((tuple(records[0]), tuple(records[1])), (counts[0], counts[1]))


def dedup_account(pipeline: Pipeline, fates: Fates | None = None) -> dict[str, dict[str, Any]]:
    """Per source what came in and what screens, deduplication, cuts and hold-out made of it, in documents and bytes of
    text. ``cut_bytes``: cut from the kept documents; ``held_out_cut_bytes``: from those held out."""
    sources: dict[str, dict[str, Any]] = {
        source: {
            "files": 0,
            "records": 0,
            "rejected": 0,
            "documents": 0,
            "bytes": 0,
            "removed": {status.method: 0 for status in REMOVED},
            "removed_bytes": {status.method: 0 for status in REMOVED},
            "held_out": 0,
            "held_out_bytes": 0,
            "kept": 0,
            "kept_bytes": 0,
            "cut_bytes": 0,
            "held_out_cut_bytes": 0,
        }
        for source in pipeline.job.config.sources
    }
    for file, inputs in enumerate(pipeline.job.inputs):
        _add_file(sources[inputs.source], pipeline.folder("sign"), fates or pipeline.fates(), file)
    return sources


def _add_file(row: dict[str, Any], signed: Path, fates: Fates, file: int) -> None:
    status_R = fates.status_of_file(file)
    documents_D = load_array(signed / f"documents.{file:05d}.npy")
    count = np.bincount(status_R, minlength=256)
    of_document_D = status_R[documents_D["record"]]
    size = np.bincount(of_document_D, weights=documents_D["size_bytes"].astype(np.float64), minlength=256)
    row["files"] += 1
    row["records"] += int(len(status_R) - count[Status.BLANK])
    row["rejected"] += int(count[Status.REJECTED])
    row["documents"] += len(documents_D)
    row["bytes"] += int(documents_D["size_bytes"].sum())
    for status in REMOVED:
        row["removed"][status.method] += int(count[status])
        row["removed_bytes"][status.method] += int(size[status])
    row["held_out"] += int(count[Status.HELD_OUT])
    row["held_out_bytes"] += int(size[Status.HELD_OUT])
    row["kept"] += int(count[Status.KEPT])
    row["kept_bytes"] += int(size[Status.KEPT])
    for record, ranges in fates.ranges_of_file(file).items():
        cut_bytes = sum(stop - start for start, stop in ranges)
        if status_R[record] == Status.KEPT:
            row["cut_bytes"] += cut_bytes
        elif status_R[record] == Status.HELD_OUT:
            row["held_out_cut_bytes"] += cut_bytes


def account(pipeline: Pipeline, written: Written) -> dict[str, Any]:
    """The whole account of a build, checked.

    Returns:
        ``{"sources": {source: {...}}, "mix": [rows], "mixture": stages of the default Mixture as
        realised (only where something is asked for), "cut_bytes": bytes cut from documents of both Datasets,
        "dedup": {...}, "screens": {...}, "lengths": and "rejects":
        of ``report_facts``}``.

    Raises:
        DamageError: ``TR-ACCOUNT-WRONG``: something was lost or doubled; nothing is published.
    """
    from .mix_output import mixture_rows
    from .mix_stage import read_mix

    sources = dedup_account(pipeline)
    mix = read_mix(pipeline.folder("mix"))
    for row in mix.rows:
        _finish_source(sources[row.source], row, written)
        _check_source(row.source, sources[row.source])
    for split, records in enumerate(written.records):
        for source in sources:
            tokens = sum(record.num_tokens for record in records if record.source == source)
            _equal(
                source,
                f"tokens in {('training', 'validation')[split]} shards",
                tokens,
                written.counts[split][source]["tokens"],
            )
    cut_bytes = sum(row["trained_cut_bytes"] + row["held_out_cut_bytes"] for row in sources.values())
    folder = pipeline.folder("decide")
    dedup = {**dedup_figures(pipeline), "expected": expected_removals(pipeline)}
    dedup |= {"clusters": cluster_facts(folder / "removed.parquet")}
    account = {"sources": sources, "mix": [row.to_json() for row in mix.rows], "cut_bytes": cut_bytes}
    account |= {"mixture": stages} if (stages := mixture_rows(pipeline)) else {}
    account |= {"lengths": length_facts(pipeline), "rejects": reject_facts(folder / "rejected.parquet")}
    return {**account, "dedup": dedup, "screens": screen_account(pipeline)}


def dedup_figures(pipeline: Pipeline) -> dict[str, Any]:
    """What the decision looked at (``counts.json``), and how similar removed documents were to their witnesses:
    removals by similarity, rounded down to a twentieth."""
    folder = pipeline.folder("decide")
    figures = read_json(folder / "counts.json")["dedup"]
    bins: dict[str, int] = {}
    with pq.ParquetFile(folder / "removed.parquet") as file:
        for batch in file.iter_batches(columns=["similarity"]):
            similarity = batch.column("similarity").drop_null().to_numpy()
            twentieths, counts = np.unique(np.floor(similarity * 20 + 1e-9).astype(np.int64), return_counts=True)
            for twentieth, count in zip(twentieths.tolist(), counts.tolist(), strict=True):
                bins[f"{twentieth / 20:.2f}"] = bins.get(f"{twentieth / 20:.2f}", 0) + count
    return {"figures": figures, "removed_by_similarity": dict(sorted(bins.items()))}


def _finish_source(row: dict[str, Any], mix: SourceMix, written: Written) -> None:
    """Add what was trained on, held out and left out by the mix."""
    train, validation = (counts[mix.source] for counts in written.counts)
    row["removed"]["mix"] = row["kept"] - mix.kept_documents
    row["removed_bytes"]["mix"] = row["kept_bytes"] - train["bytes"] - train["cut_bytes"]
    row["trained"] = train["documents"]
    row["trained_bytes"] = train["bytes"]
    row["trained_cut_bytes"] = train["cut_bytes"]
    row["trained_tokens"] = train["tokens"]
    row["padding_tokens"] = train["padding"]
    row["packing"] = {name: train[name] for name in PACKING_COUNTS}
    row["validation_packing"] = {name: validation[name] for name in PACKING_COUNTS}
    row["validation"] = validation["documents"]
    row["validation_bytes"] = validation["bytes"]
    row["validation_cut_bytes"] = validation["cut_bytes"]
    row["validation_tokens"] = validation["tokens"]
    row["mix_kept"] = mix.kept_documents
    row["mix_kept_tokens"] = mix.kept_tokens


def _check_source(source: str, row: dict[str, Any]) -> None:
    removed, removed_bytes = sum(row["removed"].values()), sum(row["removed_bytes"].values())
    _equal(source, "records in", row["records"], row["rejected"] + removed + row["held_out"] + row["trained"])
    emitted = row["trained_bytes"] + row["trained_cut_bytes"]
    _equal(source, "bytes in", row["bytes"], removed_bytes + row["held_out_bytes"] + emitted)
    _equal(source, "documents read", row["documents"], row["records"] - row["rejected"])
    _equal(source, "documents trained", row["trained"], row.pop("mix_kept"))
    _equal(source, "tokens trained", row["trained_tokens"], row.pop("mix_kept_tokens"))
    _equal(source, "documents held out", row["held_out"], row.pop("validation"))
    held_out_cut = row.pop("validation_cut_bytes")
    _equal(source, "bytes cut from documents held out", held_out_cut, row["held_out_cut_bytes"])
    _equal(source, "bytes held out", row["held_out_bytes"], row.pop("validation_bytes") + held_out_cut)
    if not row["removed"]["mix"]:
        _equal(source, "bytes left out by the mix", row["removed_bytes"]["mix"], 0)
        _equal(source, "bytes cut", row["trained_cut_bytes"], row["cut_bytes"])


def _equal(source: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise DamageError(
            "TR-ACCOUNT-WRONG",
            f"source {source!r}: {what}: {found:,}, but {expected:,} are accounted for",
            source,
            "in = trained + held out + removed + rejected",
            "remove the work folder and build again; if it repeats, please report it",
        )


def account_table(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """The account as text: one row a source, documents by fate; ways of being removed that took nothing are left
    out, but for the two that everybody looks for."""
    final = any("trained" in row for row in sources.values())
    last = "trained" if final else "kept"
    methods = [status.method for status in REMOVED] + (["mix"] if final else [])
    shown = [
        m for m in methods if m in ("exact", "minhash", "mix") or any(row["removed"][m] for row in sources.values())
    ]
    heads = ["source", "records", "rejected", *shown, "held out", last]
    cuts = any(row["cut_bytes"] for row in sources.values())
    rows = []
    for source, row in sources.items():
        fate = [row["removed"][method] for method in shown]
        rows.append([source, row["records"], row["rejected"], *fate, row["held_out"], row[last]])
        if cuts:
            rows[-1].append(row["cut_bytes"])
    if cuts:
        heads.append("bytes cut")
    rows.append(["total", *(sum(row[i] for row in rows) for i in range(1, len(heads)))])
    cells = [heads, *([str(row[0]), *(f"{n:,}" for n in row[1:])] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]
    return "\n".join(["documents", *lines])
