"""From written shards to Datasets: side files, manifest, and one rename that makes the whole appear at once.

The write stage's folder *is* the Dataset in the making, so nothing is copied. The validation Dataset is published
first; the training
Dataset's rename is the commit. A job killed anywhere between is finished by the same command.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loader.canonical import digest_of
from loader.errors import RefusedError
from loader.files import (
    fsync_folder,
    make_folder,
    remove_all_temporaries,
    remove_stale_temporaries,
    sync_tree,
    temporary_path,
    write_atomic,
)
from loader.remote.store import is_url
from loader.shards.commit import DatasetInfo, write_dataset_manifest
from loader.shards.manifest import InputFile
from loader.text.tokenizers import load_tokenizer

from .account import Written
from .config import semantic_of
from .pipeline import Pipeline
from .places import SPLITS, existing_build, index_output, split_outputs
from .tables import (
    CUTS_SCHEMA,
    REMOVED_SCHEMA,
    copy_tables,
    cut_batches,
    emptied_batches,
    followed_rows,
    rows_of,
    write_batches,
)

__all__ = ["Published", "publish", "publish_index"]

_CHUNK_BYTES = 1 << 22
_OPTIONAL_TABLES = (
    ("decide", "superseded.parquet"),
    ("decontaminate", "contamination.parquet"),
    ("decontaminate", "frequent.parquet"),
)


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
        facts: ``accounting`` and ``mixture``, for the manifest; ``job``, for job.json.

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
            found = _publish(staging, places[split])
        if found not in (None, pipeline.digest):
            raise _other_dataset(places[split], pipeline.digest)
        remove_all_temporaries(places[split])
        digests[split] = _digest(places[split])
    assert digests[0] is not None, "the training Dataset has no shard"
    return Published(places[0], digests[0], places[1] if digests[1] else None, digests[1])


def _publish(staging: Path, place: Path) -> str | None:
    """Move a finished Dataset to its place; the digest of the one that another job has put there meanwhile, if any."""
    try:
        _move(staging, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return existing_build(place)
    return None


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
        extra += [*_write_tables(pipeline, folder), "report.html"]
        write_atomic(folder / "report.html", report.encode())
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
        mixture=facts["mixture"] if split == 0 else None,
        extra_files=tuple(extra),
    )
    write_dataset_manifest(folder, info)


def _root(root: str, base: Path, output: Path) -> str:
    """A source's root as job.json remembers it: relative to the Dataset, or absolute or a URL if it was given so."""
    return root if os.path.isabs(root) or is_url(root) else os.path.relpath(base / root, output)


def _write_tables(pipeline: Pipeline, folder: Path) -> list[str]:
    """removed (screens and deduplication, then mix), rejected, cuts and what else the stages list; their names."""
    decided = pipeline.folder("decide")
    first, *later = [table / "removed.parquet" for table in pipeline.fates().tables]
    mixed_out = pipeline.folder("mix") / "mixed_out.parquet"
    emptied = pa.Table.from_batches(emptied_batches(pipeline, REMOVED_SCHEMA), REMOVED_SCHEMA)
    decided_rows = rows_of([first], REMOVED_SCHEMA)
    for table in later:
        decided_rows = followed_rows(decided_rows, pq.read_table(table))
    removed_rows = followed_rows(itertools.chain(decided_rows, rows_of([*later], REMOVED_SCHEMA)), emptied)
    rows = itertools.chain(removed_rows, emptied.to_batches(), rows_of([mixed_out], REMOVED_SCHEMA))
    write_batches(folder / "removed.parquet", REMOVED_SCHEMA, rows)
    rejected = decided / "rejected.parquet"
    copy_tables(folder / "rejected.parquet", [rejected], pq.read_schema(rejected))
    write_batches(folder / "cuts.parquet", CUTS_SCHEMA, cut_batches(pipeline))
    names = ["removed.parquet", "cuts.parquet", "rejected.parquet"]
    for stage, name in _OPTIONAL_TABLES:
        path = pipeline.folder(stage) / name if stage in pipeline.stages else None
        if path is not None and path.is_file() and pq.read_metadata(path).num_rows:
            copy_tables(folder / name, [path], pq.read_schema(path))
            names.append(name)
    return names


def publish_index(pipeline: Pipeline, output: Path) -> Path | None:
    """Copy the Index of a finished ``index`` stage beside ``output``; None if the job writes none.

    Raises:
        RefusedError: another Index, or something else, is there.
    """
    if "index" not in pipeline.stages:
        return None
    made, place = pipeline.folder("index") / "index", index_output(output)
    wanted = (made / "index.json").read_bytes()
    if place.exists():
        found = place / "index.json"
        if not found.is_file() or found.read_bytes() != wanted:
            raise RefusedError(
                "TR-INDEX-OTHER",
                "something else is where the Index goes; an Index is written once",
                str(place),
                "the Index of this very job",
                "choose another output, or move the old Index away",
            )
        return place
    staging = temporary_path(pipeline.work / "index")
    shutil.rmtree(staging, ignore_errors=True)
    _link_folder(made, staging)
    _move(staging, place)
    return place


def _link_folder(source: Path, target: Path) -> None:
    """The same files in another folder, durably; by hard links where the file system has them, as an Index is as large
    as the text.
    """
    for folder, _, files in os.walk(source):
        there = target / Path(folder).relative_to(source)
        make_folder(there)
        for name in sorted(files):
            try:
                os.link(Path(folder) / name, there / name)
            except OSError:
                write_atomic(there / name, _chunks(Path(folder) / name))
    sync_tree(target)


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _move(staging: Path, place: Path) -> None:
    """Durably rename a finished folder to its place; across file systems copy first, then rename."""
    make_folder(place.parent)
    try:
        os.rename(staging, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_over(staging, place)
    else:
        fsync_folder(staging.parent)
    fsync_folder(place.parent)


def _copy_over(staging: Path, place: Path) -> None:
    """Copy to a temporary folder beside ``place``, then rename; copies that killed processes left go away."""
    remove_stale_temporaries(place.parent, place.name)
    copy = temporary_path(place)
    shutil.rmtree(copy, ignore_errors=True)
    try:
        for folder, _, files in os.walk(staging):
            there = copy / Path(folder).relative_to(staging)
            for name in sorted(files):
                write_atomic(there / name, _chunks(Path(folder) / name))
        os.rename(copy, place)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    shutil.rmtree(staging, ignore_errors=True)
