"""From written shards to Datasets: side files, manifest, and one rename that makes the whole appear at once.

The write stage's folder *is* the Dataset in the making, so nothing is copied. The validation Dataset is published
first; the training
Dataset's rename is the commit. A job killed anywhere between is finished by the same command.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loader.canonical import digest_of
from loader.errors import RefusedError
from loader.files import TEMPORARY_PREFIX, fsync_folder, remove_stale_temporaries, write_atomic
from loader.shards.commit import DatasetInfo, write_dataset_manifest
from loader.shards.manifest import InputFile
from loader.text.tokenizers import load_tokenizer

from .account import Written
from .config import semantic_of
from .mix_stage import REMOVED_SCHEMA, write_parquet
from .pipeline import Pipeline
from .places import SPLITS, existing_build, split_outputs

__all__ = ["CUTS_SCHEMA", "Published", "publish"]

CUTS_SCHEMA = pa.schema(
    [
        ("document", pa.uint64()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("record", pa.int64()),
        ("method", pa.string()),
        ("byte_start", pa.int64()),
        ("byte_count", pa.int64()),
        ("witness_document", pa.uint64()),
    ]
)
_TABLES = ("removed.parquet", "cuts.parquet", "rejected.parquet", "report.html")


@dataclass(frozen=True)
class Published:
    """Where the Datasets are and what their digests are; ``validation`` is None when nothing was held out."""

    output: Path
    digest: str
    validation: Path | None
    validation_digest: str | None


def publish(pipeline: Pipeline, output: Path, written: Written, report: str, facts: Mapping[str, Any]) -> Published:
    """Finish both Datasets in the write stage's folder and move them to their places.

    Args:
        pipeline: with all stages finished.
        output: folder of the training Dataset.
        written: what the write stage left.
        report: HTML of report.html.
        facts: ``accounting``, for the manifest; ``job``, for job.json.

    Raises:
        RefusedError: another Dataset is at one of the places.
        DamageError: a shard is not what its record says.
    """
    places = split_outputs(output)
    digests: list[str | None] = [None, None]
    for split in (1, 0):
        if not written.records[split]:
            continue
        found = existing_build(places[split])
        if found is None:
            staging = pipeline.build_folders().dataset(split)
            _finish(pipeline, staging, split, written, report, facts)
            _move(staging, places[split])
        elif found != pipeline.digest:
            raise _other_dataset(places[split], pipeline.digest)
        digests[split] = _digest(places[split])
    assert digests[0] is not None, "the training Dataset has no shard"
    return Published(places[0], digests[0], places[1] if digests[1] else None, digests[1])


def _other_dataset(path: Path, digest: str) -> RefusedError:
    return RefusedError(
        "TR-DATASET-OTHER",
        "another Dataset is at the output already; Datasets are write-once",
        str(path),
        f"a build with digest {digest}",
        "choose another output, or move the old Dataset away",
    )


def _digest(path: Path) -> str:
    """The Dataset's digest, from its sealed manifest."""
    from loader.shards.dataset import open_dataset

    return open_dataset(path).digest


def _finish(
    pipeline: Pipeline, folder: Path, split: int, written: Written, report: str, facts: Mapping[str, Any]
) -> None:
    """Everything but the move: side files, job.json, manifest."""
    job = pipeline.job
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        remove_stale_temporaries(place)
    tokenizer_folder = pipeline.folder("tokenizer") / "tokenizer"
    extra = []
    for path in sorted(tokenizer_folder.iterdir()):
        write_atomic(folder / "tokenizer" / path.name, path.read_bytes())
        extra.append(f"tokenizer/{path.name}")
    if split == 0:
        _write_tables(pipeline, folder)
        write_atomic(folder / "report.html", report.encode())
        extra += _TABLES
    roots = {name: _root(job.config.sources[name].root, facts["base"], facts["output"]) for name in job.config.sources}
    write_atomic(folder / "job.json", json.dumps({"roots": roots, **facts["job"]}, indent=1, sort_keys=True).encode())
    tokenizer = load_tokenizer(folder / "tokenizer")
    about = json.loads((folder / "tokenizer" / "tokenizer.json").read_bytes())
    info = DatasetInfo(
        sources=tuple(job.config.sources),
        seq_len=job.config.pack.seq_len,
        vocab_size=tokenizer.vocab_size,
        shards=written.records[split],
        files=tuple(InputFile(raw.source, raw.relative, raw.size_bytes, raw.digest) for raw in job.raw),
        tokenizer={key: value for key, value in about.items() if key != "version"},
        salt=job.config.seed,
        package_version=str(facts["package_version"]),
        parents={"build": pipeline.digest, "inputs": digest_of([raw.identity() for raw in job.raw])},
        config={**semantic_of(job.config), "split": SPLITS[split]},
        accounting=facts["accounting"],
        extra_files=tuple(extra),
    )
    write_dataset_manifest(folder, info)


def _root(root: str, base: Path, output: Path) -> str:
    """A source's root as job.json remembers it: relative to the Dataset, or absolute if it was given so."""
    return root if os.path.isabs(root) else os.path.relpath(base / root, output)


def _write_tables(pipeline: Pipeline, folder: Path) -> None:
    """removed (deduplication, then mix), rejected and cuts."""
    removed = pq.read_table(pipeline.folder("decide") / "removed.parquet").cast(REMOVED_SCHEMA)
    mixed_out = pq.read_table(pipeline.folder("mix") / "mixed_out.parquet").cast(REMOVED_SCHEMA)
    write_parquet(folder / "removed.parquet", pa.concat_tables([removed, mixed_out]))
    write_parquet(folder / "rejected.parquet", pq.read_table(pipeline.folder("decide") / "rejected.parquet"))
    write_parquet(folder / "cuts.parquet", CUTS_SCHEMA.empty_table())


def _move(staging: Path, place: Path) -> None:
    """Rename a finished Dataset to its place; across file systems copy first, then rename."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(staging, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        for torn in place.parent.glob(f"{TEMPORARY_PREFIX}*-{place.name}"):
            shutil.rmtree(torn)
        copy = place.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{place.name}")
        shutil.copytree(staging, copy)
        for path in (copy, *copy.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.rename(copy, place)
    fsync_folder(place.parent)
