"""What was found, as tables and counts that a person can check. Shapes: G grams, H hits of all files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.files import write_atomic
from loader.text.records import document_ids

from ..dedup.outputs import file_order
from ..documents import InputFile
from ..normalize import RULES_VERSION, UNICODE_VERSION
from ..screen_config import DecontaminateConfig
from ..tables import write_parquet
from .files import FileFound
from .index import ItemIndex
from .items import ALLOWED, DUPLICATE, MATCHABLE, UNMATCHABLE

__all__ = ["count_documents", "hit_table", "write_report"]

_HIT_SCHEMA = pa.schema(
    [
        ("document", pa.uint64()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("record", pa.int64()),
        ("benchmark", pa.string()),
        ("split", pa.string()),
        ("item", pa.string()),
        ("score", pa.float64()),
        ("matched", pa.int64()),
        ("grams", pa.int64()),
        ("byte_start", pa.int64()),
        ("byte_stop", pa.int64()),
        ("ngram", pa.string()),
        ("ngram_documents", pa.int64()),
        ("frequent", pa.bool_()),
    ]
)


def count_documents(index: ItemIndex, found: Sequence[FileFound]) -> NDArray[np.int64]:
    """In how many of the documents searched each gram occurs (int64, G)."""
    documents_G = np.zeros(len(index.place_G3), np.int64)
    for one in found:
        documents_G[one.grams[:, 0]] += one.grams[:, 1]
    return documents_G


def _sample_grams(one: FileFound, documents_G: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per hit the matched gram that fewest documents hold (the strongest evidence), and how many hold it."""
    gram, hit = one.hit_grams["gram"].astype(np.int64), one.hit_grams["hit"]
    order = np.lexsort((gram, documents_G[gram], hit))
    first = order[np.searchsorted(hit[order], np.arange(len(one.hits)))]
    return gram[first], documents_G[gram[first]]


def hit_table(
    inputs: Sequence[InputFile],
    index: ItemIndex,
    found: Sequence[FileFound],
    config: DecontaminateConfig,
    salt: int,
) -> pa.Table:
    """Every hit, by (source rank, source, path, record, item); columns in the module of the stage.

    ``ngram``: of the matched grams the one that fewest documents hold, ``ngram_documents`` of them; ``frequent``:
    even that one is in more than ``frequent_documents``, so all are.
    """
    documents_G = count_documents(index, found)
    texts: dict[int, str] = {}
    rows = []
    for file in file_order(inputs):
        one, source = found[file], inputs[file]
        ids = document_ids(source.source, source.path, one.hits["record"], salt).tolist()
        grams, documents = _sample_grams(one, documents_G)
        for hit, document, gram, count in zip(one.hits.tolist(), ids, grams.tolist(), documents.tolist(), strict=True):
            record, number, form, matched, byte_start, byte_stop = hit
            item, total = index.items[number], int(index.grams_F[form])
            if gram not in texts:
                texts[gram] = index.gram_text(gram)
            where = (document, source.source, source.path, record)
            what = (item.benchmark, item.split, item.id, matched / total, matched, total, byte_start, byte_stop)
            rows.append((*where, *what, texts[gram], count, count > config.frequent_documents))
    columns = zip(*rows, strict=True) if rows else [()] * len(_HIT_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, _HIT_SCHEMA, strict=True)], schema=_HIT_SCHEMA)


def _frequent_table(index: ItemIndex, documents_G: NDArray[np.int64], config: DecontaminateConfig) -> pa.Table:
    """Grams in more documents than ``frequent_documents``, most frequent first."""
    grams = np.flatnonzero(documents_G > config.frequent_documents)
    grams = grams[np.lexsort((grams, -documents_G[grams]))]
    first = [index.items[item] for item in index.item_F[index.place_G3[grams, 0]].tolist()]
    holders = (
        np.unique(index.item_F[index.posting_L[slice(*index.posting_start_G[gram : gram + 2])]]) for gram in grams
    )
    return pa.table(
        {
            "ngram": pa.array([index.gram_text(gram) for gram in grams.tolist()], pa.string()),
            "documents": pa.array(documents_G[grams], pa.int64()),
            "items": pa.array([len(items) for items in holders], pa.int64()),
            "benchmark": pa.array([item.benchmark for item in first], pa.string()),
            "split": pa.array([item.split for item in first], pa.string()),
            "item": pa.array([item.id for item in first], pa.string()),
        }
    )


def _item_table(index: ItemIndex, hits: pa.Table) -> pa.Table:
    """All items with what became of them and the documents that hold each."""
    names = ("benchmark", "split", "item")
    documents: dict[tuple[str, ...], int] = {}
    for name in zip(*(hits.column(column).to_pylist() for column in names), strict=True):
        documents[name] = documents.get(name, 0) + 1
    keys = [(item.benchmark, item.split, item.id) for item in index.items]
    return pa.table(
        {
            **{
                name: pa.array(values, pa.string()) for name, values in zip(names, zip(*keys, strict=True), strict=True)
            },
            "words": pa.array(index.words_I, pa.int64()),
            "grams": pa.array(index.grams_F[: len(index.items)], pa.int64()),
            "status": pa.array(index.status_I, pa.string()),
            "documents_hit": pa.array([documents.get(key, 0) for key in keys], pa.int64()),
        }
    )


def _benchmark_counts(index: ItemIndex, hits: pa.Table) -> list[dict[str, Any]]:
    """One entry per benchmark and split."""
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for item, status in zip(index.items, index.status_I, strict=True):
        zeros: dict[str, Any] = dict.fromkeys(("items", MATCHABLE, UNMATCHABLE, DUPLICATE, ALLOWED), 0)
        entry = counts.setdefault((item.benchmark, item.split), zeros)
        entry["items"] += 1
        entry[status] += 1
    items: dict[tuple[str, str], set[str]] = {}
    documents: dict[tuple[str, str], set[int]] = {}
    rare: dict[tuple[str, str], set[int]] = {}
    columns = ("benchmark", "split", "item", "document", "frequent")
    for benchmark, split, item, document, frequent in zip(*(hits.column(c).to_pylist() for c in columns), strict=True):
        items.setdefault((benchmark, split), set()).add(item)
        documents.setdefault((benchmark, split), set()).add(document)
        if not frequent:
            rare.setdefault((benchmark, split), set()).add(document)
    for key, entry in counts.items():
        hit = documents.get(key, set())
        entry["benchmark"], entry["split"] = key
        entry["items_hit"], entry["documents_hit"] = len(items.get(key, ())), len(hit)
        entry["documents_hit_by_frequent_only"] = len(hit - rare.get(key, set()))
    return [counts[key] for key in sorted(counts)]


def write_report(
    folder: Path,
    index: ItemIndex,
    hits: pa.Table,
    documents_G: NDArray[np.int64],
    config: DecontaminateConfig,
    counts: dict[str, Any],
) -> None:
    """Write the tables, and ``report.json`` last; ``counts``: what the stage knows beside (documents, canary)."""
    frequent = _frequent_table(index, documents_G, config)
    write_parquet(folder / "contamination.parquet", hits)
    write_parquet(folder / "frequent.parquet", frequent)
    write_parquet(folder / "items.parquet", _item_table(index, hits))
    rule = {
        "n": config.n,
        "threshold": config.threshold,
        "min_words": config.min_words,
        "action": config.action,
        "question_alone": config.question_alone,
        "joints": list(config.joints),
        "frequent_documents": config.frequent_documents,
        "allowed_texts": len(config.allow),
        "rules_version": RULES_VERSION,
        "unicode_version": UNICODE_VERSION,
    }
    report = {
        "rule": rule,
        "grams": len(index.place_G3),
        "frequent_grams": len(frequent),
        "benchmarks": _benchmark_counts(index, hits),
        **counts,
    }
    write_atomic(folder / "report.json", canonical_json(report))
