"""The stages of a job in their order: what each one is made of, which are finished, and running those that are not.

    sign -> decide -> choose -> sample -> tokenizer -> tokenize -> mix -> pack -> write -> (publish)

The digest of every stage is known before anything runs, because it is made of configuration, input hashes and
parents' digests only.
So a finished job is recognised from the Dataset's manifest alone.

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
from loader.files import hash_file
from loader.settings import to_plain

from .buckets import Bucket, BuildFolders
from .dedup.config import DecideConfig, SignConfig
from .job import Job
from .normalize import RULES_VERSION, UNICODE_VERSION
from .stages import RawFile, Stage, stage_digest

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep


__all__ = ["STAGES", "Pipeline", "locked", "plan_pipeline"]

STAGES: Mapping[str, int] = {
    "sign": 1,
    "decide": 1,
    "choose": 1,
    "sample": 1,
    "tokenizer": 1,
    "tokenize": 1,
    "mix": 1,
    "pack": 1,
    "write": 1,
}
"""Stage -> version: raised whenever the same configuration and input would give other output."""

_BUCKET_BYTES = 1 << 28
_MAX_BUCKET_BITS = 12
_COMPRESSION = 4  # decompressed over compressed size, for sizing tasks only


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
        return _build_folders({name: stage.folder for name, stage in self.stages.items()})


def _build_folders(folders: Mapping[str, Path]) -> BuildFolders:
    return BuildFolders(folders["tokenizer"], folders["tokenize"], folders["mix"], folders["pack"], folders["write"])


def plan_pipeline(job: Job, work: Path, model: Path | None) -> Pipeline:
    """All stages of ``job`` below ``work``; nothing is read but the tokenizer ``model`` to load, nothing written.

    Raises:
        ConfigError: the model cannot be read.
    """
    plans = _StagePlans(job, work)
    config = job.config
    files = len(job.inputs)
    sign = SignConfig(config.ingest, config.dedup)
    decide = DecideConfig(config.ingest, config.dedup, config.holdout, config.seed, config.seed)
    rules = {"rules_version": RULES_VERSION, "unicode_version": UNICODE_VERSION}
    plans.add("sign", {**_plain(sign), **rules}, [], files, [_input_identity(job)])
    plans.add("decide", {**_plain(decide), **rules}, ["sign"], 1)
    sentencepiece = config.tokenizer.sentencepiece
    plain = {"tokenizer": to_plain(config.tokenizer), "seed": config.seed, "ratios": to_plain(config.mix.ratios)}
    if sentencepiece.train is not None:
        plans.add("choose", plain, ["decide"], 1)
        plans.add("sample", plain, ["choose"], files)
        plans.add("tokenizer", plain, ["sample"], 1)
        loaded = None
    else:
        assert model is not None
        loaded = (model, _model_hash(model))
        policy = {"add_bos": config.tokenizer.add_bos, "add_eos": config.tokenizer.add_eos}
        plans.add("tokenizer", policy, [], 1, [loaded[1]])
    plans.add("tokenize", {"seed": config.seed}, ["decide", "tokenizer"], files)
    plans.add("mix", {"mix": to_plain(config.mix), "seed": config.seed}, ["tokenize"], 1)
    buckets = _buckets(job)
    shape = [[bucket.split, bucket.source, bucket.number, bucket.bits] for bucket in buckets]
    packing = {"pack": to_plain(config.pack), "shards": to_plain(config.shards), "seed": config.seed}
    plans.add("pack", packing, ["mix"], len(buckets), shape)
    plans.add("write", {}, ["pack"], len(buckets))
    makers = _makers(job, plans.folders, buckets, loaded)
    return Pipeline(job, work, {name: plans.stage(name, makers[name]) for name in plans.digests}, buckets)


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

    def stage(self, name: str, make_steps: Callable[[], tuple[PipelineStep, ...]]) -> Stage:
        """The finished stage."""
        reads_inputs = name in ("sign", "decide", "sample", "tokenize")
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


def _input_identity(job: Job) -> list[object]:
    """Inputs as digests see them; the order of sources is their priority."""
    return [
        [*raw.identity(), file.rank, file.format, file.text_field, list(file.opt_out)]
        for raw, file in zip(job.raw, job.inputs, strict=True)
    ]


def _model_hash(model: Path) -> str:
    try:
        return hash_file(model)
    except OSError as error:
        raise ConfigError(
            "TR-TOKENIZER-LOAD",
            f"cannot read the model: {error.strerror}",
            str(model),
            "a sentencepiece model file, or a Dataset's tokenizer folder",
        ) from error


def _buckets(job: Job) -> tuple[Bucket, ...]:
    """Tasks of packing: 2^k buckets of about 256 MiB of text for each source and split that may have documents."""
    fraction = job.config.holdout.fraction
    buckets = []
    for split, share in enumerate((1.0, fraction)):
        if share == 0:
            continue
        for source in job.config.sources:
            size_bytes = sum(_text_bytes(file) for file in job.raw if file.source == source) * share
            bits = 0
            while bits < _MAX_BUCKET_BITS and size_bytes > _BUCKET_BYTES << bits:
                bits += 1
            buckets += [Bucket(split, source, number, bits) for number in range(1 << bits)]
    return tuple(buckets)


def _text_bytes(file: RawFile) -> int:
    return file.size_bytes * (1 if file.relative.endswith((".jsonl", ".json", ".txt")) else _COMPRESSION)


def _makers(
    job: Job, folders: Mapping[str, Path], buckets: tuple[Bucket, ...], loaded: tuple[Path, str] | None
) -> dict[str, Callable[[], tuple[PipelineStep, ...]]]:
    """Stage -> function that makes its steps; datatrove is imported only when one is called."""

    def sign() -> tuple[PipelineStep, ...]:
        from .dedup.steps import SignDocuments

        config = SignConfig(job.config.ingest, job.config.dedup)
        return (SignDocuments(job.inputs, config, folders["sign"]),)

    def decide() -> tuple[PipelineStep, ...]:
        from .dedup.steps import DecideDocuments

        config = job.config
        whole = DecideConfig(config.ingest, config.dedup, config.holdout, config.seed, config.seed)
        return (DecideDocuments(job.inputs, whole, folders["sign"], folders["decide"]),)

    def choose() -> tuple[PipelineStep, ...]:
        from .tokenizer_stage import ChooseSample

        return (ChooseSample(job, (folders["sign"], folders["decide"], folders["choose"])),)

    def sample() -> tuple[PipelineStep, ...]:
        from .tokenizer_stage import SampleTexts

        return (SampleTexts(job, (folders["sign"], folders["choose"], folders["sample"])),)

    def tokenizer() -> tuple[PipelineStep, ...]:
        from .tokenizer_stage import MakeTokenizer

        return (MakeTokenizer(job.config.tokenizer, folders["tokenizer"], folders.get("sample"), loaded),)

    def tokenize() -> tuple[PipelineStep, ...]:
        from .tokenize import TokenizeDocuments

        places = (folders["sign"], folders["decide"], folders["tokenizer"], folders["tokenize"])
        return (TokenizeDocuments(job, places),)

    def mix() -> tuple[PipelineStep, ...]:
        from .mix_stage import MixDocuments

        return (MixDocuments(job, (folders["tokenize"], folders["tokenizer"], folders["mix"])),)

    def pack() -> tuple[PipelineStep, ...]:
        from .build import PackDocuments

        return (PackDocuments(job, _build_folders(folders), buckets),)

    def write() -> tuple[PipelineStep, ...]:
        from .build import WriteShards

        return (WriteShards(job, _build_folders(folders), buckets),)

    return {maker.__name__: maker for maker in (sign, decide, choose, sample, tokenizer, tokenize, mix, pack, write)}


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Hold the work folder: two jobs in it would do everything twice (harmless, but nobody wants it).

    Raises:
        JobError: another process holds it.
    """
    work.mkdir(parents=True, exist_ok=True)
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
        yield
    finally:
        os.close(descriptor)
