"""The jobs that sweeps run: small, with every stage; each verb that writes a Dataset or an export.

A warm process forks the job, as its imports would cost most of the time; task processes are forked by the job itself
for the same reason, and not by a fork server (tests of kills from outside run the real command).
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dataprep.stages import Stage
from loader.cli import main

from .corpora import make_corpus, write_config

__all__ = ["JOBS", "Job", "command", "job_files", "left_overs", "make_job", "warm_up"]

_BUILD_OUTPUTS = ("out-index", "out-validation", "out")
_SCREENED: Mapping[str, Any] = {
    "quality": [{"filter": "periodic"}, {"filter": "length", "options": {"min_words": 2}}],
    "decontaminate": {"benchmarks": {"own": {"path": "items.jsonl"}}},
    "dedup": {"methods": ["exact", "minhash", "simhash", "ngram"], "ngram": {"n": 8}, "write_index": True},
}
"""Every stage that a configuration can ask for."""


def make_job(root: Path, corpus: Path, *, whole: bool = False, **changes: object) -> Path:
    """A job with every stage on two small files (or ``whole``, four), one compressed; makes the files as well."""
    made = make_corpus(corpus, documents=16)
    for name in () if whole else ("web/deep/b.jsonl", "code/x.jsonl"):
        (corpus / name).unlink()
    config = write_config(root / "build.yaml", made, **{"run": {"workers": 1}, **_SCREENED, **changes})
    item = " ".join(made.texts["web", "a.jsonl", 0].split()[:30])
    (root / "items.jsonl").write_text(json.dumps({"question": item, "answer": ""}) + "\n", encoding="utf-8")
    return config


@dataclass(frozen=True)
class Job:
    """A command of the command line.

    Attributes:
        prepare: makes what it reads in the folder that it gets.
        arguments: of the command line, given that folder.
        outputs: folders that it leaves, in the order in which they appear.
        transient: names that must not be there when it is done.
    """

    prepare: Callable[[Path], object]
    arguments: Callable[[Path], list[str]]
    outputs: tuple[str, ...] = _BUILD_OUTPUTS
    transient: tuple[str, ...] = ()

    def left_overs(self, root: Path) -> list[str]:
        """What should be gone."""
        return [*left_overs(root), *(name for name in self.transient if os.path.lexists(root / name))]


def _build(folder: Path, workers: int) -> Job:
    return Job(
        lambda root: make_job(root, folder / "corpus", run={"workers": workers}),
        lambda root: ["build", str(root / "build.yaml")],
    )


def _repack(folder: Path, workers: int) -> Job:
    def arguments(root: Path) -> list[str]:
        options = ["--seq-len", "32", "--shard-bytes", "12000", "--workers", str(workers)]
        return ["repack", str(folder / "build" / "out"), "--output", str(root / "out"), *options]

    return Job(lambda root: None, arguments, ("out",), ("out.work",))


def _import(folder: Path, workers: int) -> Job:
    def arguments(root: Path) -> list[str]:
        dataset = folder / "build" / "out"
        sources = [f"{name}={dataset / name}" for name in ("web", "code")]
        options = ["--format", "mds", "--seq-len", "32", "--tokenizer", str(dataset / "tokenizer"), "--workers"]
        return ["import", *sources, "--output", str(root / "out"), "--shard-bytes", "12000", *options, str(workers)]

    return Job(lambda root: None, arguments, ("out",), ("out.work",))


def _export(form: str) -> Callable[[Path, int], Job]:
    def job(folder: Path, workers: int) -> Job:
        def arguments(root: Path) -> list[str]:
            return ["export", str(folder / "build" / "out"), "--format", form, "--output", str(root / "out")]

        return Job(lambda root: None, arguments, ("out",))

    return job


JOBS: Mapping[str, Callable[[Path, int], Job]] = {
    "build": _build,
    "repack": _repack,
    "import": _import,
    **{f"export-{form}": _export(form) for form in ("mds", "megatron", "datatrove", "parquet")},
}
"""name -> the job for a folder and a number of workers; ``folder/build`` must hold a finished build for all others."""


def job_files(root: Path, folders: Sequence[str] = _BUILD_OUTPUTS) -> dict[str, bytes]:
    """Bytes of all outputs, by path; job.json, which no digest covers, by its name and form alone."""
    return {
        path.relative_to(root).as_posix(): _job_form(path) if path.name == "job.json" else path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def _job_form(path: Path) -> bytes:
    try:
        return " ".join(sorted(json.loads(path.read_bytes()))).encode()
    except ValueError:
        return b"no JSON"


def left_overs(root: Path) -> list[str]:
    """Temporary files and folders."""
    return sorted(str(path.relative_to(root)) for path in root.rglob(".tmp-*"))


def warm_up(job: Job, root: Path, *, last: bool) -> None:
    """Run a job in this process, so that what it imports and compiles is there for all attempts; after the ``last``
    one, let the local engine fork its tasks."""
    import sysconfig

    from datatrove.executor import base

    from dataprep.engines import local

    run = local.LocalEngine.run
    local.LocalEngine.run = _run_here  # type: ignore[method-assign]
    root.mkdir()
    job.prepare(root)
    said = root.with_name(root.name + ".said")
    assert command(job.arguments(root), said) == 0, said.read_text()
    local.LocalEngine.run = run  # type: ignore[method-assign]
    if not last:
        return
    logger = type(base.logger)
    logger.exception = logger.error  # type: ignore[method-assign]  # a traceback in the log costs more than the attempt
    sysconfig.get_path = cache(sysconfig.get_path)  # type: ignore[assignment]  # loguru asks for each log file
    forked = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: forked  # type: ignore[assignment,misc,return-value]
    os.register_at_fork(after_in_child=_drop_locks)
    gc.collect()
    gc.freeze()


def _run_here(self: object, stage: Stage, done: Callable[[int], None]) -> None:
    """``LocalEngine.run`` without processes: this one then has all that tasks need when it forks them later."""
    from dataprep.engines.local import StageExecutor

    executor = StageExecutor(stage)
    for rank in stage.incomplete_ranks():
        executor._run_for_rank(rank, local_rank=1)
    executor.merge_statistics()


def _drop_locks() -> None:
    """What the fork server's ``exec`` does for a real job's tasks: they do not hold its work folder's lock."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").endswith(".work/lock"):
                os.close(int(name))


def command(arguments: Sequence[str], said: Path) -> int:
    """The command line in this process; what it prints goes to a file."""
    kept = os.dup(1), os.dup(2)
    with open(said, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        return main([*arguments, "--json", "--quiet"])
    finally:
        sys.stdout.flush()
        for descriptor, number in zip(kept, (1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
