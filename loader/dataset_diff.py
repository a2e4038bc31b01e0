"""What differs between two Datasets: configuration, inputs, tokenizer, counts, and the documents trained on.

Documents are compared by a merge of both sorted documents.npy, a block at a time; what is held are 16 bytes for each
document that only one side has. Ids say source, path and record, not text: a document whose file changed stays the same
document, and its file is listed under ``inputs``.

Shape letters: M rows of documents.npy, D documents that one side lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .canonical import digest_of
from .diff import changed_keys
from .document_fates import fates_of
from .remote.store_failures import changed_error
from .sealed import read_sealed, unseal
from .shards.dataset import Dataset
from .shards.index_blocks import index_blocks
from .shards.layout import DOCUMENT_INDEX_DTYPE
from .shards.manifest import InputFile, Manifest, parse_manifest
from .shards.reader import read_documents

__all__ = ["compare_datasets", "document_difference"]

_MANIFEST = "manifest.json"
_COUNTS = ("num_tokens", "num_documents", "num_samples", "num_segments", "num_shards", "share")
_LAYOUT = ("seq_len", "vocab_size", "dtype", "max_segments", "salt", "package_version")


@dataclass(frozen=True)
class _Side:
    location: str
    manifest: Manifest
    raw: dict[str, Any]
    dataset: Dataset | None


def compare_datasets(left: str, right: str, examples: int) -> dict[str, Any]:
    """Compare two Datasets, folders or URLs; a path may be a manifest.json on its own, whose documents and input files
    stay unknown.

    Raises:
        ConfigError: no Dataset there.
        DamageError: one is damaged where it was read.
    """
    one, other = _open(left), _open(right)
    value: dict[str, Any] = {
        "kind": "dataset",
        "same": one.manifest.digest == other.manifest.digest,
        "left": _about(one),
        "right": _about(other),
    }
    if value["same"]:
        return value
    value["changes"] = _changes(one, other)
    value["notes"] = []
    if one.dataset is None or other.dataset is None:
        value["notes"].append("a manifest on its own names neither input files nor documents: neither is compared")
        return value
    files = (one.dataset.input_files(), other.dataset.input_files())
    value["inputs"] = _inputs(*files, examples)
    if one.manifest.salt != other.manifest.salt:
        value["notes"].append("the salts (seeds) differ, so document ids do too: documents are not compared")
        return value
    value["documents"] = _documents(one.dataset, other.dataset, examples)
    return value


def _open(location: str) -> _Side:
    from .stream.store import folder_of, look_into_dataset

    path = folder_of(location)
    if path is not None and path.is_file() and not (path.name == _MANIFEST and (path.parent / "shards.npy").is_file()):
        return _Side(location, parse_manifest(path.read_bytes(), location), read_sealed(path), None)
    if path is None or path.is_file():
        location = location.removesuffix(f"/{_MANIFEST}") if path is None else str(path.parent)
    dataset = look_into_dataset(location)
    raw = unseal(dataset.storage.unverified(_MANIFEST), f"{dataset.location}/{_MANIFEST}")
    if digest_of(raw) != dataset.digest:
        raise changed_error(f"{dataset.location}/{_MANIFEST}")
    return _Side(location, dataset.manifest, raw, dataset)


def _about(side: _Side) -> dict[str, Any]:
    return {
        "path": side.location,
        "digest": side.manifest.digest,
        "num_tokens": sum(source.num_tokens for source in side.manifest.sources),
        "num_documents": sum(source.num_documents for source in side.manifest.sources),
    }


def _changes(one: _Side, other: _Side) -> dict[str, list[dict[str, Any]]]:
    """By area; each a list of changed keys."""
    raws = (one.raw, other.raw)
    known = {"format", "version", "sources", "tokenizer", "config", "parents", "accounting", "order", *_LAYOUT}
    hidden = {"files_hashed", "self_hash"}
    areas: dict[str, Any] = {
        "format": [{name: raw.get(name) for name in ("format", "version")} for raw in raws],
        "configuration": [raw.get("config") for raw in raws],
        "tokenizer": [{k: v for k, v in raw.get("tokenizer", {}).items() if k != "golden"} for raw in raws],
        "sources": [_source_counts(side.manifest) for side in (one, other)],
        "layout": [{name: raw.get(name) for name in _LAYOUT} for raw in raws],
        "parents": [raw.get("parents") for raw in raws],
        "order": [raw.get("order") for raw in raws],
        "accounting": [raw.get("accounting") for raw in raws],
        "files": [
            {name: item["xxh3_128"] for name, item in raw["files_hashed"].items() if "/" not in name} for raw in raws
        ],
        "other": [{name: v for name, v in raw.items() if name not in known | hidden} for raw in raws],
    }
    return {area: changed_keys(*pair) for area, pair in areas.items()}


def _source_counts(manifest: Manifest) -> dict[str, Any]:
    sources = {source.name: {name: getattr(source, name) for name in _COUNTS} for source in manifest.sources}
    totals = {
        name: sum(getattr(source, name) for source in manifest.sources) for name in _COUNTS if name.startswith("num_")
    }
    return {**sources, "(all)": totals}


def _inputs(left: tuple[InputFile, ...], right: tuple[InputFile, ...], examples: int) -> dict[str, Any]:
    """Input files by source and path: which one side lacks, and whose bytes differ."""
    one = {(file.source, file.path): file for file in left}
    other = {(file.source, file.path): file for file in right}
    names = {
        "added": sorted(set(other) - set(one)),
        "removed": sorted(set(one) - set(other)),
        "changed": sorted(key for key in set(one) & set(other) if one[key] != other[key]),
    }
    shown = {f"{kind}_examples": [f"{s}/{path}" for s, path in keys[:examples]] for kind, keys in names.items() if keys}
    return {**{kind: len(keys) for kind, keys in names.items()}, **shown}


def _documents(one: Dataset, other: Dataset, examples: int) -> dict[str, Any]:
    only_left_D, only_right_D, both = document_difference(one, other)
    return {
        "in_both": both,
        "removed": _side_of_difference(one, only_left_D, other, examples),
        "added": _side_of_difference(other, only_right_D, one, examples),
    }


def _side_of_difference(mine: Dataset, rows_D: NDArray[np.void], theirs: Dataset, examples: int) -> dict[str, Any]:
    """Documents that ``theirs`` does not train on: how many, by source, and what became of them there."""
    if not len(rows_D):
        return {"count": 0}
    source_D = mine.shards_R["source"][rows_D["shard"]]
    counts = np.bincount(source_D, minlength=len(mine.source_names)).tolist()
    fates = fates_of(theirs, mine, rows_D)
    origins = [_example(mine, row) for row in rows_D[:examples]]
    return {
        "count": len(rows_D),
        "by_source": {name: count for name, count in zip(mine.source_names, counts, strict=True) if count},
        "there": dict(sorted(fates.items())),
        "examples": origins,
    }


def _example(dataset: Dataset, row: np.void) -> dict[str, Any]:
    document = read_documents(dataset.shard_files(int(row["shard"])), dataset.read_path)[int(row["row"])]
    file = dataset.input_files()[int(document["file"])]
    return {
        "document": f"{int(row['id']):016x}",
        "source": file.source,
        "file": file.path,
        "record": int(document["record"]),
    }


def document_difference(one: Dataset, other: Dataset) -> tuple[NDArray[np.void], NDArray[np.void], int]:
    """(rows of documents.npy that only ``one`` has, that only ``other`` has, documents in both); one row a document,
    its first, sorted by id.

    Raises:
        DamageError: one of the files is not what was written.
    """
    only: tuple[list[NDArray[np.void]], list[NDArray[np.void]]] = ([], [])
    both = 0
    streams = (_firsts(index_blocks(one)), _firsts(index_blocks(other)))
    empty_M = np.zeros(0, DOCUMENT_INDEX_DTYPE)
    heads = [next(streams[0], empty_M), next(streams[1], empty_M)]
    while len(heads[0]) or len(heads[1]):
        # Up to the smaller of both last ids, nothing more can come from either side.
        limit = min(int(head["id"][-1]) for head in heads if len(head))
        stops = [int(np.searchsorted(head["id"], np.uint64(limit), "right")) for head in heads]
        parts = [head[:stop] for head, stop in zip(heads, stops, strict=True)]
        common = np.isin(parts[0]["id"], parts[1]["id"], assume_unique=True)
        both += int(common.sum())
        only[0].append(parts[0][~common].copy())
        only[1].append(parts[1][~np.isin(parts[1]["id"], parts[0]["id"], assume_unique=True)].copy())
        for side in (0, 1):
            heads[side] = heads[side][stops[side] :]
            if not len(heads[side]) and stops[side]:
                heads[side] = next(streams[side], empty_M)
    return np.concatenate([empty_M, *only[0]]), np.concatenate([empty_M, *only[1]]), both


def _firsts(blocks: Iterator[NDArray[np.void]]) -> Iterator[NDArray[np.void]]:
    """The first row of each id; no empty blocks."""
    last = -1
    for rows_M in blocks:
        ids_M = rows_M["id"]
        first_M = np.ones(len(rows_M), np.bool_)
        first_M[1:] = ids_M[1:] != ids_M[:-1]
        first_M[0] = int(ids_M[0]) != last
        last = int(ids_M[-1])
        if first_M.any():
            yield rows_M[first_M]
