"""Running a job up to a stage, and everything that is said on the way: plan, tables, results."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loader.cli_options import Output
from loader.errors import RefusedError
from loader.files import make_folder, remove_all_temporaries, remove_folder
from loader.progress import Progress
from loader.settings import load_config, to_plain

from .config import BuildConfig, semantic_of
from .dedup.expect import removal_rows, removal_text
from .engines import EngineOptions, check_engine, make_engine, run_stage
from .holdout import holdout_remarks
from .inputs import check_names, load_job
from .job import Job
from .pipeline import Pipeline, locked, plan_pipeline
from .places import SPLITS, config_paths, existing_build, find_index, index_output, split_outputs
from .planned_tokens import planned_tokens, tokens_text
from .stages import RawFile, Stage

__all__ = [
    "Prepared",
    "describe_plan",
    "finished_build",
    "lacks_index",
    "mix_text",
    "package_version",
    "prepare",
    "run_build",
    "run_until",
]


@dataclass(frozen=True)
class Prepared:
    """A job ready to run: its configuration's folder, its output, its stages."""

    base: Path
    output: Path
    pipeline: Pipeline
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def to_fetch(self) -> tuple[RawFile, ...]:
        """Remote inputs that are not here yet: until they are, their hashes and so all digests are unknown. Empty but
        for a read-only job."""
        return tuple(raw for raw in self.pipeline.job.raw if not raw.digest)


def prepare(path: Path, overrides: Sequence[str], *, read_only: bool, output: Output | None = None) -> Prepared:
    """Read the configuration, find the inputs, fetch remote ones, hash them, plan the stages.

    Args:
        path: the YAML file.
        overrides: ``a.b=c``.
        read_only: fetch and write nothing, not even the notes of input hashes; see ``Prepared.to_fetch``.
        output: where the progress of fetching is shown.

    Raises:
        ConfigError: the configuration or an input is wrong.
        JobError, RefusedError: a remote input cannot be had.
    """
    config = load_config(path, BuildConfig, overrides).config
    base = path.resolve().parent
    place, work, model = config_paths(config, base)
    check_engine(config.run.engine)
    if not read_only:
        make_folder(work)
    job = load_job(config, base, work / "inputs.json", output=output, read_only=read_only)
    return Prepared(base, place, plan_pipeline(job, work, model))


def _check_job(job: Job) -> None:
    """Refuse names that no table knows and Indexes of other settings, before anything is read."""
    check_names(job.config)
    if job.config.dedup.against:
        from .dedup.index import check_index

        for name in job.config.dedup.against:
            check_index(find_index(job.base, name), job.config.dedup)


def describe_plan(prepared: Prepared, last: str, *, finished: bool = False) -> tuple[dict[str, Any], str]:
    """What would be done, as JSON and as text; nothing is written. ``finished``: no stage runs again.

    While remote files are still to fetch, digests and folders are null: they depend on bytes that nobody has seen.
    """
    pipeline = prepared.pipeline
    config = pipeline.job.config
    _check_job(pipeline.job)
    sources = {name: {"files": 0, "size_bytes": 0, "to_fetch_bytes": 0} for name in config.sources}
    for raw in pipeline.job.raw:
        sources[raw.source]["files"] += 1
        sources[raw.source]["size_bytes"] += raw.size_bytes
    to_fetch = prepared.to_fetch
    fetch_bytes = sum(raw.size_bytes for raw in to_fetch)
    for raw in to_fetch:
        sources[raw.source]["to_fetch_bytes"] += raw.size_bytes
    stages = [
        {
            "stage": stage.name,
            "tasks": stage.num_tasks,
            "to_run": 0 if finished else len(stage.incomplete_ranks()),
            "digest": None if to_fetch else stage.digest,
            "folder": None if to_fetch else str(stage.folder),
        }
        for stage in pipeline.until(last)
    ]
    plan = {
        "digest": None if to_fetch else pipeline.digest,
        "output": str(prepared.output),
        "work": str(pipeline.work),
        "to_fetch": {"files": len(to_fetch), "size_bytes": fetch_bytes},
        "sources": sources,
        "removal_probability": removal_rows(config.dedup),
        "tokens": planned_tokens(pipeline),
        "stages": stages,
    }
    width = max(len(name) for name in sources)
    digest = "not known before the remote files are fetched" if to_fetch else pipeline.digest
    lines = [f"output  {prepared.output}", f"work    {pipeline.work}", f"digest  {digest}"]
    if to_fetch:
        lines.append(f"fetch   {len(to_fetch):,} files  {fetch_bytes:,} bytes, into the work folder")
    lines += ["", "sources"]
    lines += [
        f"  {name:<{width}}  {row['files']:>7,} files  {row['size_bytes']:>17,} bytes" for name, row in sources.items()
    ]
    lines += ["", *tokens_text(plan["tokens"])]
    if any(stage["stage"] == "decide" for stage in stages):
        lines += ["", removal_text(config.dedup)]
    lines += ["", "stages"]
    lines += [
        f"  {s['stage']:<13} {s['tasks']:>6} tasks  {s['to_run']:>6} to run  {s['digest'] or '?'}" for s in stages
    ]
    return plan, "\n".join(lines)


def run_until(
    prepared: Prepared, last: str, output: Output, after: Callable[[Stage], None] = lambda stage: None
) -> None:
    """Run all stages up to ``last``; ``after(stage)`` is called behind each one, run or found finished.

    Raises:
        TokenreelError: what a stage raised.
    """
    run = prepared.pipeline.job.config.run
    _check_job(prepared.pipeline.job)
    if "decide" in [stage.name for stage in prepared.pipeline.until(last) if stage.incomplete_ranks()]:
        output.note(removal_text(prepared.pipeline.job.config.dedup))
    engine = make_engine(run.engine, EngineOptions(run.workers, run.retries))
    for stage in prepared.pipeline.until(last):
        started = time.monotonic()
        sizes = stage.sizes or (1,) * stage.num_tasks
        waiting = stage.incomplete_ranks()
        unit = "bytes" if stage.sizes else "tasks"
        with output.progress(stage.name, float(sum(sizes[rank] for rank in waiting)), unit) as progress:
            run_stage(stage, engine, _counting(progress, sizes))
        prepared.timings[stage.name] = round(time.monotonic() - started, 3)
        after(stage)


def _counting(progress: Progress, sizes: Sequence[int]) -> Callable[[int], None]:
    """A callback that counts finished tasks by their size."""

    def done(rank: int) -> None:
        progress.advance(sizes[rank])

    return done


def finished_build(prepared: Prepared) -> bool:
    """Whether the output is this very build already.

    Raises:
        RefusedError: the output is another Dataset, or something else.
    """
    if prepared.to_fetch:
        return False  # nobody knows yet whether it is
    places = split_outputs(prepared.output)
    found = [existing_build(place) for place in places]
    for place, digest in zip(places, found, strict=True):
        if digest is not None and digest != prepared.pipeline.digest:
            raise RefusedError(
                "TR-DATASET-OTHER",
                "the output holds a Dataset of another configuration or other input; Datasets are write-once",
                str(place),
                f"a build with digest {prepared.pipeline.digest}, found {digest or 'none'}",
                "choose another output, or move the old Dataset away",
            )
    return found[0] is not None and (found[1] is not None or not _has_validation(prepared.output))


def lacks_index(prepared: Prepared) -> bool:
    """Whether the job leaves an Index and none is in its place: asked for after the Datasets were finished, or moved
    away since."""
    return "index" in prepared.pipeline.stages and not index_output(prepared.output).exists()


def _has_validation(output: Path) -> bool:
    """Whether the finished Dataset at ``output`` says that documents were held out."""
    from loader.shards.dataset import read_manifest

    sources = read_manifest(output).accounting.get("sources", {})
    return any(row.get("held_out") for row in sources.values())


def run_build(prepared: Prepared, output: Output) -> dict[str, Any]:
    """Run everything and publish; returns digests, places and the account.

    Raises:
        TokenreelError: what a stage raised; a sum that does not hold; an output that is taken.
    """
    started = time.time()
    pipeline = prepared.pipeline
    with locked(pipeline.work):
        if not finished_build(prepared):
            _forget_half_moved(prepared)
            _run_and_publish(prepared, output, started)
        elif lacks_index(prepared):
            from .publish import publish_index

            run_until(prepared, "index", output)
            publish_index(pipeline, prepared.output)
        for place in split_outputs(prepared.output):
            remove_all_temporaries(place)
        remove_folder(pipeline.folder("write"))
    return _result(prepared)


def _run_and_publish(prepared: Prepared, output: Output, started: float) -> None:
    """All stages, the tables that belong between them, the account, the Datasets."""
    from .account import account, account_table, dedup_account, read_written
    from .mix_output import check_output, dataset_mixture, mixture_text
    from .publish import publish, publish_index
    from .report import dataset_page

    pipeline = prepared.pipeline

    def after(stage: Stage) -> None:
        if stage.name == pipeline.deduplicated:
            output.note(account_table(dedup_account(pipeline)))
        elif stage.name == "mix":
            output.note(mix_text(pipeline))
        elif stage.name == "pack":
            check_output(pipeline)
            output.note(mixture_text(pipeline))

    run_until(prepared, "write", output, after)
    written = read_written(pipeline)
    accounting = account(pipeline, written)
    page = dataset_page(
        {**semantic_of(pipeline.job.config), "split": SPLITS[0]}, accounting, _tokenizer_facts(pipeline)
    )
    facts = {
        "base": prepared.base,
        "output": prepared.output,
        "accounting": accounting,
        "mixture": dataset_mixture(pipeline),
        "package_version": package_version(),
        "job": _job_facts(prepared, started),
    }
    publish_index(pipeline, prepared.output)
    publish(pipeline, prepared.output, written, page, facts)


def mix_text(pipeline: Pipeline) -> str:
    """The tables of the finished mix stage: sources, stages if there are several, what the shards will take."""
    from .mix import mix_table, stages_table
    from .mix_output import predicted_output, predicted_text
    from .mix_stage import read_mix

    mix = read_mix(pipeline.folder("mix"))
    parts = [mix_table(mix.rows), *([stages_table(mix.stages)] if len(mix.stages) > 1 else [])]
    return "\n\n".join([*parts, predicted_text(predicted_output(pipeline))])


def package_version() -> str:
    """Version of the installed distribution, or of a clone."""
    try:
        return importlib.metadata.version("tokenreel")
    except importlib.metadata.PackageNotFoundError:
        return "0+clone"


def _forget_half_moved(prepared: Prepared) -> None:
    """A Dataset that was moved out and is gone again must be written again: its stage's markers would say it is
    there.
    """
    write = prepared.pipeline.stages["write"]
    if write.incomplete_ranks():
        return
    folders = prepared.pipeline.build_folders()
    records = _splits_with_shards(prepared.pipeline)
    for split, place in enumerate(split_outputs(prepared.output)):
        if SPLITS[split] in records and not folders.dataset(split).is_dir() and existing_build(place) is None:
            remove_folder(write.folder)
            return


def _splits_with_shards(pipeline: Pipeline) -> set[str]:
    from .account import read_written

    return {name for name, records in zip(SPLITS, read_written(pipeline).records, strict=True) if records}


def _tokenizer_facts(pipeline: Pipeline) -> dict[str, Any]:
    from .stages import read_json

    return read_json(pipeline.folder("tokenizer") / "tokenizer" / "tokenizer.json")


def _job_facts(prepared: Prepared, started: float) -> dict[str, Any]:
    """What job.json says of how the job was run; no digest covers it."""
    names = ("numpy", "numba", "pyarrow", "datatrove", "sentencepiece")
    versions = {name: importlib.metadata.version(name) for name in names}
    return {
        "run": to_plain(prepared.pipeline.job.config.run),
        "elapsed_s": round(time.time() - started, 3),
        "stages_s": prepared.timings,
        "work": str(prepared.pipeline.work),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "versions": versions,
    }


def _result(prepared: Prepared) -> dict[str, Any]:
    """Digests and places of a finished build."""
    from loader.shards.dataset import open_dataset

    main, validation = split_outputs(prepared.output)
    dataset = open_dataset(main)
    accounting = dict(dataset.manifest.accounting)
    accounting["sources"] = {name: accounting["sources"][name] for name in dataset.source_names}
    result = {
        "output": str(main),
        "digest": dataset.digest,
        "build": prepared.pipeline.digest,
        "accounting": accounting,
        "remarks": holdout_remarks(accounting["sources"], prepared.pipeline.job.config.holdout.fraction),
        "validation": None,
        "validation_digest": None,
        "stages_s": prepared.timings,
    }
    if (validation / "manifest.json").is_file():
        result["validation"] = str(validation)
        result["validation_digest"] = open_dataset(validation).digest
    return result
