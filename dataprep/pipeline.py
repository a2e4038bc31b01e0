"""The stages of a job in their order: what each one is made of, which are finished, and running those that are not.

    [quality] -> [items -> contamination -> decontaminate] -> sign -> decide -> [anchors -> repeats -> grams -> spans]
    -> [index] -> choose -> sample -> tokenizer -> [gauge -> thin] -> tokenize -> mix -> pack -> write -> (publish)

Stages in brackets exist only where the configuration asks for them. The digest of every stage is known before anything
runs, because it is made of configuration, input hashes and parents' digests only. So a finished job is recognised from
the Dataset's manifest alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.errors import ConfigError, JobError
from loader.files import hash_file, make_folder, remove_stale_temporaries
from loader.settings import to_plain

from .buckets import Bucket, BuildFolders, bucket_bits
from .dedup.order_keys import order_field
from .fates import Fates
from .job import Job
from .mix_plan import most_tokens
from .normalize import RULES_VERSION, UNICODE_VERSION
from .places import find_index
from .stage_makers import StageParts, build_folders, decide_config, fates_of, stage_makers
from .stages import Stage, stage_digest
from .thin import candidates, text_bytes
from .tokenizer_config import LoadedModel, TokenizerConfig

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep


__all__ = ["STAGES", "Pipeline", "locked", "plan_pipeline"]

STAGES: Mapping[str, int] = {
    "quality": 1,
    "items": 1,
    "contamination": 2,
    "decontaminate": 2,
    "sign": 2,
    "decide": 2,
    "anchors": 1,
    "repeats": 1,
    "grams": 1,
    "spans": 1,
    "index": 1,
    "choose": 1,
    "sample": 2,
    "tokenizer": 3,
    "gauge": 1,
    "thin": 2,
    "tokenize": 3,
    "mix": 4,
    "pack": 1,
    "write": 3,
}
"""Stage -> version: raised whenever the same configuration and input would give other output."""

_READERS = frozenset(
    {"quality", "contamination", "sign", "decide", "anchors", "grams", "index", "sample", "gauge", "tokenize"}
)
"""Stages that read the raw input."""
_TOKEN_BYTES = 8  # bytes of text for each token, for sizing tasks only


@dataclass(frozen=True)
class Pipeline:
    """A job's stages.

    Attributes:
        job: configuration and inputs.
        work: folder of intermediate results.
        stages: name -> stage, in order.
        buckets: tasks of pack and write.
    """

    job: Job
    work: Path
    stages: Mapping[str, Stage]
    buckets: tuple[Bucket, ...]

    @property
    def deduplicated(self) -> str:
        """The last stage of the verb ``dedup``."""
        return next(name for name in ("index", "spans", "decide") if name in self.stages)

    def screened(self) -> str:
        """The last stage of the verb ``decontaminate``.

        Raises:
            ConfigError: no screen is configured.
        """
        for name in ("decontaminate", "quality"):
            if name in self.stages:
                return name
        raise ConfigError(
            "TR-SCREEN-NONE",
            "there is nothing to screen for",
            "decontaminate.benchmarks, quality",
            "at least one benchmark or quality filter",
        )

    def folder(self, name: str) -> Path:
        """The folder of a stage."""
        return self.stages[name].folder

    def until(self, last: str) -> list[Stage]:
        """Stages up to and including ``last``."""
        names = list(self.stages)
        return [self.stages[name] for name in names[: names.index(last) + 1]]

    @property
    def digest(self) -> str:
        """Digest of the last stage: two jobs with the same one make the same Datasets."""
        return self.stages["write"].digest

    def build_folders(self) -> BuildFolders:
        """What packing and writing read and write."""
        return build_folders({name: stage.folder for name, stage in self.stages.items()})

    def fates(self) -> Fates:
        """Where the fate of every record stands once all stages that decide are finished."""
        return fates_of({name: stage.folder for name, stage in self.stages.items()})


def plan_pipeline(job: Job, work: Path, model: Path | None) -> Pipeline:
    """All stages of ``job`` below ``work``; nothing is read but the tokenizer ``model`` to load, nothing written.

    Raises:
        ConfigError: the model cannot be read.
    """
    plans = _StagePlans(job, work)
    config = job.config
    files = len(job.inputs)
    loaded = _plan_loading(plans, config.tokenizer, model)
    screens = _plan_screens(plans, job)
    _plan_dedup(plans, job, screens)
    fates = fates_of(plans.folders)
    last = [name for name in (*screens, "decide", "spans") if name in plans.digests]
    if loaded is None:
        plain = {"tokenizer": to_plain(config.tokenizer), "seed": config.seed, "ratios": to_plain(config.mix.ratios)}
        plans.add("choose", plain, last, 1)
        plans.add("sample", plain, ["choose"], files)
        plans.add("tokenizer", plain, ["sample"], 1)
    thinned = _plan_thinning(plans, job, last)
    plans.add("tokenize", {"seed": config.seed}, [*last, "tokenizer", *thinned], files)
    plans.add("mix", _what_mixing_uses(job), ["tokenize"], 1)
    buckets = _buckets(job)
    shape = [[bucket.split, bucket.source, bucket.number, bucket.bits] for bucket in buckets]
    packing = {"pack": to_plain(config.pack), "shards": to_plain(config.shards), "seed": config.seed}
    plans.add("pack", packing, ["mix"], len(buckets), shape)
    plans.add("write", {}, ["pack"], len(buckets))
    indexes = plans.extra_of("decide")[0]
    makers = stage_makers(StageParts(job, plans.folders, fates, buckets, loaded, plans.extra_of("items"), indexes))
    return Pipeline(job, work, {name: plans.stage(name, makers[name]) for name in plans.digests}, buckets)


def _plan_loading(plans: _StagePlans, config: TokenizerConfig, model: Path | None) -> LoadedModel | None:
    """Add the stage that loads ``model``; None where one is trained. It is the first, though nothing needs it before
    the texts are tokenised: a wrong file must not show after hours of deduplication.
    """
    if config.train is not None:
        return None
    assert model is not None
    loaded = LoadedModel(model, _model_hash(model, config.kind), config.policy(model))
    plans.add("tokenizer", {"kind": config.kind, **loaded.policy.to_plain()}, [], 1, [loaded.model_hash])
    return loaded


def _plan_screens(plans: _StagePlans, job: Job) -> list[str]:
    """Add the screens that are configured; the names of those that leave verdicts, in order."""
    config, files = job.config, len(job.inputs)
    reading = {"line_limit_bytes": config.ingest.line_limit_bytes, **_rules()}
    screens = []
    if config.quality:
        from .quality.check import quality_versions

        names = {"quality", *(step.name for step in config.quality)}
        plain = {"quality": to_plain(config.quality), **reading, **quality_versions(config.quality)}
        plans.add("quality", plain, [], files, [_read_identity(job), _opt_outs(job, names)])
        screens.append("quality")
    if config.decontaminate.benchmarks:
        from .decontamination.items import items_identity

        rule = _plain(config.decontaminate)
        del rule["benchmarks"]  # their items, whatever the path: see items_identity
        judged = {name: rule.pop(name) for name in ("action", "frequent_documents")}
        seed, threshold = {"seed": config.seed}, {"threshold": config.decontaminate.threshold}
        plans.add("items", {**rule, **seed, **_rules()}, [], 1, items_identity(config.decontaminate, job.base))
        found = [_read_identity(job), _opt_outs(job, {"decontaminate"})]
        plans.add("contamination", {**threshold, **reading}, ["items", *screens], files, found)
        ranks = [file.rank for file in job.inputs]
        plans.add("decontaminate", {**judged, **threshold, **seed, **_rules()}, ["contamination"], 1, ranks)
        screens.append("decontaminate")
    return screens


def _rules() -> dict[str, Any]:
    return {"rules_version": RULES_VERSION, "unicode_version": UNICODE_VERSION}


def _plan_dedup(plans: _StagePlans, job: Job, screens: Sequence[str]) -> None:
    """Signing, deciding, and what follows from the methods."""
    config, files = job.config, len(job.inputs)
    rules = _rules()
    plans.add("sign", {**_what_signing_uses(job), **rules}, [], files, [_read_identity(job), _order_fields(job)])
    decide = _plain(decide_config(job))
    for name in ("write_index", "ngram", "against"):  # results beside the same decisions; Indexes by what they hold
        del decide["dedup"][name]
    indexes = [hash_file(find_index(job.base, name) / "index.json") for name in config.dedup.against]
    priorities = [[file.rank, list(file.opt_out)] for file in job.inputs]
    plans.add("decide", {**decide, **rules}, ["sign", *screens], 1, [indexes, priorities])
    last = "decide"
    if "ngram" in config.dedup.methods:
        plain = {"ngram": to_plain(config.dedup.ngram), "seed": config.seed, **rules}
        plans.add("anchors", plain, ["decide"], files)
        plans.add("repeats", plain, ["anchors"], 1)
        plans.add("grams", plain, ["repeats"], files)
        plans.add("spans", plain, ["grams"], 1)
        last = "spans"
    if config.dedup.write_index:
        plans.add("index", {**decide, **rules}, [last], 1)


def _what_signing_uses(job: Job) -> dict[str, Any]:
    """Only what shapes signatures: another threshold or policy must not read a large corpus again."""
    dedup, minhash = job.config.dedup, job.config.dedup.minhash
    return {
        "line_limit_bytes": job.config.ingest.line_limit_bytes,
        "minhash": [minhash.num_permutations, minhash.seed] if "minhash" in dedup.methods else None,
        "simhash": "simhash" in dedup.methods,
        "order_by": dedup.keep if dedup.keep in ("newest", "quality") else None,
    }


def _plan_thinning(plans: _StagePlans, job: Job, last: Sequence[str]) -> list[str]:
    """Add the stages that thin sources which are far too large, if there are any; the one that tokenising follows."""
    found = candidates(job)
    if not found:
        return []
    seed = {"seed": job.config.seed}
    samples = {source: candidate.sample_limit for source, candidate in found.items()}
    plans.add("gauge", {**seed, "sample_limits": samples}, [*last, "tokenizer"], len(job.inputs))
    most = {source: candidate.most_tokens for source, candidate in found.items()}
    plans.add("thin", {**seed, "most_tokens": most}, ["gauge"], 1)
    return ["thin"]


def _what_mixing_uses(job: Job) -> dict[str, Any]:
    """The mix, and the samples in whose blocks its stages are counted; thinning changes nothing that the mix says."""
    mix = _plain(job.config.mix)
    del mix["thin"]
    seq_len = job.config.pack.seq_len if job.config.mix.asks else None
    return {"mix": mix, "seed": job.config.seed, "seq_len": seq_len}


class _StagePlans:
    """Stages under construction: digests, descriptions and folders by name."""

    def __init__(self, job: Job, work: Path) -> None:
        self._job = job
        self._work = work
        self.digests: dict[str, str] = {}
        self.folders: dict[str, Path] = {}
        self._descriptions: dict[str, Any] = {}
        self._num_tasks: dict[str, int] = {}

    def add(self, name: str, config: object, parents: Sequence[str], num_tasks: int, extra: object = None) -> None:
        """Add a stage; its parents must be there."""
        digests = [self.digests[parent] for parent in parents]
        digest, description = stage_digest(name, STAGES[name], config, digests, [num_tasks, extra])
        self.digests[name] = digest
        self.folders[name] = self._work / f"{name}-{digest[:12]}"
        self._descriptions[name] = description
        self._num_tasks[name] = num_tasks

    def extra_of(self, name: str) -> Any:
        """What a stage was added with; None without it."""
        return self._descriptions[name]["extra"][1] if name in self._descriptions else None

    def stage(self, name: str, make_steps: Callable[[], tuple[PipelineStep, ...]]) -> Stage:
        """The finished stage."""
        reads_inputs = name in _READERS
        sizes = tuple(file.size_bytes for file in self._job.raw) if self._num_tasks[name] == len(self._job.raw) else ()
        return Stage(
            name,
            self.folders[name],
            self.digests[name],
            self._descriptions[name],
            self._num_tasks[name],
            make_steps,
            self._job.raw if reads_inputs else (),
            sizes if reads_inputs else (),
        )


def _plain(config: object) -> dict[str, Any]:
    plain = to_plain(config)
    assert isinstance(plain, dict)
    return plain


def _read_identity(job: Job) -> list[object]:
    """Inputs as whoever reads their texts sees them, in the order of their numbers."""
    return [[*raw.identity(), file.format, file.text_field] for raw, file in zip(job.raw, job.inputs, strict=True)]


def _order_fields(job: Job) -> list[object]:
    """The field that the keep policy reads of each input."""
    return [order_field(file, job.config.dedup.keep) for file in job.inputs]


def _opt_outs(job: Job, names: set[str]) -> list[object]:
    """Which of ``names`` each input opts out of."""
    return [sorted(names & set(file.opt_out)) for file in job.inputs]


def _model_hash(model: Path, kind: str) -> str:
    try:
        return hash_file(model)
    except OSError as error:
        raise ConfigError(
            "TR-TOKENIZER-LOAD",
            f"cannot read the model: {error.strerror}",
            str(model),
            f"a model file of kind {kind}, or a Dataset's tokenizer folder of that kind",
        ) from error


def _buckets(job: Job) -> tuple[Bucket, ...]:
    """Tasks of packing: 2^k buckets of about 256 MiB of text for each source and split that may have documents; fewer
    where the mix keeps little of it, as a bucket is a shard at least."""
    config, fraction = job.config, job.config.holdout.fraction
    most = most_tokens(list(config.sources), config.mix, config.pack.seq_len)
    buckets = []
    for split, share in enumerate((1.0, fraction)):
        if share == 0:
            continue
        for source in job.config.sources:
            size_bytes = text_bytes(job, source) * share
            if split == 0 and source in most:
                size_bytes = min(size_bytes, most[source] * _TOKEN_BYTES)
            bits = bucket_bits(size_bytes)
            buckets += [Bucket(split, source, number, bits) for number in range(1 << bits)]
    return tuple(buckets)


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Hold the work folder: two jobs in it would do everything twice (harmless, but nobody wants it).

    Raises:
        JobError: another process holds it.
    """
    make_folder(work)
    descriptor = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(
                "TR-WORK-BUSY",
                "another job is running in this work folder",
                str(work),
                next_command="wait for it to end",
            ) from error
        except OSError:
            pass  # no locks on this file system: two jobs are harmless, only slow
        remove_stale_temporaries(work)
        yield
    finally:
        os.close(descriptor)
