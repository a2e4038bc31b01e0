"""From tokens that exist already to a Dataset: the stages and the publishing that repacking and importing share.

A job is a folder of parts (``token_store``) that its own first stage makes, then ``pack`` and ``write`` as in a build.
All of it lies in ``<output>.work``: a job killed anywhere is finished by the same command, one that is finished leaves
no work folder, and the Dataset appears by one rename.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.canonical import canonical_json
from loader.cli_options import Output
from loader.errors import RefusedError
from loader.files import fsync_folder, make_folder, remove_folder, remove_stale_temporaries, write_atomic
from loader.settings import to_plain
from loader.shards.commit import DatasetInfo, write_dataset_manifest
from loader.shards.dataset import open_dataset, read_manifest
from loader.shards.writer import ShardRecord

from .buckets import COUNTS, Bucket, BuildFolders
from .config import PackConfig, ShardsConfig
from .engines import EngineOptions, make_engine, run_stage
from .pipeline import STAGES, locked
from .stages import RawFile, Stage, read_json, stage_digest
from .token_facts import TokenFacts

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep

__all__ = [
    "TokenJob",
    "WrittenSet",
    "finished_set",
    "remove_work",
    "run_token_job",
    "work_folder",
    "write_roots",
]

_OWN_NAME = re.compile(r"lock|(repack|import|pack|write)-[0-9a-f]{12}|\.tmp-.+")
"""What such jobs put into their work folders."""


@dataclass(frozen=True)
class TokenJob:
    """Tokens to pack.

    Attributes:
        kind: name of the first stage, and of the digest in ``parents``: ``repack`` or ``import``.
        digest: of everything that was asked for; two jobs with the same one make the same Dataset.
        output: folder of the Dataset.
        split: its place in ``places.SPLITS``.
        seed: keys buckets and samples.
        pack, shards: as in a build.
        parts: parts of each source.
        bits: each source has 2^bits buckets.
        facts: of the tokens.
        make_step: given the folder for the parts, the step that makes part ``rank``.
        inputs: files that it reads, checked to stay the same.
    """

    kind: str
    digest: str
    output: Path
    split: int
    seed: int
    pack: PackConfig
    shards: ShardsConfig
    parts: Mapping[str, tuple[int, ...]]
    bits: Mapping[str, int]
    facts: TokenFacts
    make_step: Callable[[Path], PipelineStep]
    inputs: tuple[RawFile, ...] = ()

    @property
    def work(self) -> Path:
        """Folder of what lies between."""
        return work_folder(self.output)


@dataclass(frozen=True)
class WrittenSet:
    """What the stages left: shard records, ``COUNTS`` of each source, and the folder with the parts."""

    records: tuple[ShardRecord, ...]
    counts: Mapping[str, Mapping[str, int]]
    folder: Path


def finished_set(output: Path, kind: str, digest: str) -> bool:
    """Whether the Dataset of this very job is at ``output``; False if nothing is there.

    Raises:
        RefusedError: something else is there, or in the work folder, which goes when the job is done; or the place lies
            inside a Dataset.
        DamageError: its manifest is damaged.
    """
    for folder in (output.parent.resolve() / output.name).parents:
        if (folder / "manifest.json").is_file() and (folder / "shards.npy").is_file():
            raise _taken("the output would lie inside a Dataset", output, f"a place outside {folder}")
    work = work_folder(output)
    if os.path.lexists(work) and (work.is_symlink() or not work.is_dir()):
        raise _taken("the work folder is no folder", work, "nothing, or what such a job left")
    others = sorted(path.name for path in work.iterdir() if not _OWN_NAME.fullmatch(path.name)) if work.is_dir() else []
    if others:
        raise _taken(f"the work folder holds something else, {others[0]!r}", work, "nothing, or what such a job left")
    if not os.path.lexists(output) or (output.is_dir() and not output.is_symlink() and not any(output.iterdir())):
        return False
    if (output / "manifest.json").is_file() and read_manifest(output).parents.get(kind) == digest:
        return True
    raise _taken("the output is taken by something else", output, f"nothing, or the result of this very {kind}")


def _taken(what: str, place: Path, expected: str) -> RefusedError:
    return RefusedError(
        "TR-OUTPUT-TAKEN",
        f"{what}; Datasets are write-once",
        str(place),
        expected,
        "choose another output, or move away what is there",
    )


def run_token_job(
    job: TokenJob, workers: int, output: Output, describe: Callable[[WrittenSet, Path], DatasetInfo]
) -> str:
    """Run the stages and publish; returns the Dataset's digest.

    Args:
        job: what to do.
        workers: processes; the result does not depend on them.
        output: where progress is shown.
        describe: given what was written and the folder of the Dataset in the making, writes its side files there and
            returns what the manifest says (``shards`` is filled in here).

    Raises:
        TokenreelError: what a stage raised.
        RefusedError: the output is taken.
    """
    if not finished_set(job.output, job.kind, job.digest):
        with locked(job.work):
            written = _run_stages(job, workers, output)
            staging = _folders(job, _stages(job)).dataset(job.split)
            for place in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
                remove_stale_temporaries(place)
            info = describe(written, staging)
            write_dataset_manifest(staging, replace(info, shards=written.records))
            make_folder(job.output.parent)
            os.rename(staging, job.output)
            fsync_folder(staging.parent)
            fsync_folder(job.output.parent)
    return open_dataset(job.output).digest


def remove_work(output: Path) -> None:
    """Remove the work folder of a finished job, at once: what a kill left of it would be taken for finished stages."""
    work = work_folder(output)
    remove_stale_temporaries(work.parent, work.name)
    remove_folder(work)


def work_folder(output: Path) -> Path:
    """Where the job for ``output`` works."""
    return output.with_name(f"{output.name}.work")


def _buckets(job: TokenJob) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(job.split, source, number, job.bits[source])
        for source in job.parts
        for number in range(1 << job.bits[source])
    )


def _stages(job: TokenJob) -> dict[str, tuple[str, Any, Path, int]]:
    """name -> digest, its description, folder and number of tasks."""
    buckets = _buckets(job)
    shape = [[bucket.split, bucket.source, bucket.number, bucket.bits] for bucket in buckets]
    packing = {"pack": to_plain(job.pack), "shards": to_plain(job.shards), "seed": job.seed}
    num_parts = sum(len(parts) for parts in job.parts.values())
    stages: dict[str, tuple[str, Any, Path, int]] = {}
    parents: list[str] = []
    for name, config, tasks, extra in (
        (job.kind, {"asked": job.digest}, num_parts, None),
        ("pack", packing, len(buckets), shape),
        ("write", {}, len(buckets), None),
    ):
        digest, description = stage_digest(name, STAGES.get(name, 1), config, parents, [tasks, extra])
        stages[name] = (digest, description, job.work / f"{name}-{digest[:12]}", tasks)
        parents = [digest]
    return stages


def _folders(job: TokenJob, stages: Mapping[str, tuple[str, Any, Path, int]]) -> BuildFolders:
    none = job.work / "none"
    return BuildFolders(none, stages[job.kind][2], none, stages["pack"][2], stages["write"][2])


def _run_stages(job: TokenJob, workers: int, output: Output) -> WrittenSet:
    plans = _stages(job)
    folders, buckets = _folders(job, plans), _buckets(job)
    if not folders.dataset(job.split).is_dir():
        # A Dataset that was moved out and is gone again: its stage's markers would say that it is there.
        remove_folder(folders.write)

    def steps(name: str) -> Callable[[], tuple[PipelineStep, ...]]:
        def make() -> tuple[PipelineStep, ...]:
            from .build import PackDocuments, PackJob, WriteShards

            if name == job.kind:
                return (job.make_step(folders.tokenised),)
            packing = PackJob(
                job.seed, job.pack, job.shards.size_bytes, job.parts, folders, buckets, job.facts, mixed=False
            )
            return (PackDocuments(packing) if name == "pack" else WriteShards(packing),)

        return make

    engine = make_engine("local", EngineOptions(workers))
    for name, (digest, description, folder, tasks) in plans.items():
        inputs = job.inputs if name == job.kind else ()
        stage = Stage(name, folder, digest, description, tasks, steps(name), inputs)
        with output.progress(name, float(len(stage.incomplete_ranks())), "tasks") as progress:
            run_stage(stage, engine, lambda rank, shown=progress: shown.advance(1))  # type: ignore[misc]
    return _read_written(job, folders, buckets)


def _read_written(job: TokenJob, folders: BuildFolders, buckets: tuple[Bucket, ...]) -> WrittenSet:
    records: list[ShardRecord] = []
    counts = {source: dict.fromkeys(COUNTS, 0) for source in job.parts}
    for task, bucket in enumerate(buckets):
        content = read_json(folders.write / f"shards.{task:05d}.json")
        records += [ShardRecord.from_json(record) for record in content["records"]]
        for name in COUNTS:
            counts[bucket.source][name] += content["counts"][name]
    return WrittenSet(tuple(records), counts, folders.tokenised)


def write_roots(folder: Path, roots: Mapping[str, str]) -> None:
    """job.json, which remembers where the input files lie."""
    write_atomic(folder / "job.json", canonical_json({"roots": dict(roots)}))
