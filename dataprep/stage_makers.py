"""Stage -> function that makes its steps. datatrove and the kernels are imported only when one is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from loader.errors import RefusedError
from loader.files import hash_file

from .buckets import Bucket, BuildFolders
from .dedup.config import DecideConfig, SignConfig
from .documents import Status
from .fates import Fates
from .job import Job
from .places import find_index
from .tokenizer_config import LoadedModel

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep

    from .thin import Thinning

__all__ = ["StageParts", "build_folders", "decide_config", "fates_of", "sign_config", "stage_makers"]

SCREENS: Mapping[str, Status] = {
    "quality": Status.REMOVED_QUALITY,
    "decontaminate": Status.REMOVED_CONTAMINATED,
}
"""Stages that leave verdicts, in their order, and what their removals are called."""


@dataclass(frozen=True)
class StageParts:
    """What the makers draw on.

    Attributes:
        job: configuration and inputs.
        folders: stage -> folder, of the stages that exist.
        fates: where statuses and cuts will stand.
        buckets: tasks of pack and write.
        loaded: tokenizer model to load; None = train one.
        items: identity of the benchmark items that the stage's digest names; None = no benchmark.
        indexes: hashes of the ``index.json`` of the earlier Indexes that the stage's digest names.
    """

    job: Job
    folders: Mapping[str, Path]
    fates: Fates
    buckets: tuple[Bucket, ...]
    loaded: LoadedModel | None
    items: Sequence[object] | None = None
    indexes: Sequence[str] = ()


def sign_config(job: Job) -> SignConfig:
    """What signing depends on."""
    return SignConfig(job.config.ingest, job.config.dedup)


def decide_config(job: Job) -> DecideConfig:
    """What deciding depends on."""
    config = job.config
    return DecideConfig(config.ingest, config.dedup, config.holdout, config.seed, config.seed)


def fates_of(folders: Mapping[str, Path]) -> Fates:
    """Where statuses, cuts and removals stand, given the folders of the stages that exist."""
    return Fates(
        status=folders.get("spans", folders["decide"]),
        cuts=tuple(folders[name] for name in (*SCREENS, "spans") if name in folders),
        tables=tuple(folders[name] for name in ("decide", "spans") if name in folders),
        signed=folders["sign"],
    )


def build_folders(folders: Mapping[str, Path]) -> BuildFolders:
    """Folders that packing and writing read and write."""
    return BuildFolders(folders["tokenizer"], folders["tokenize"], folders["mix"], folders["pack"], folders["write"])


_Maker = Callable[[StageParts], "tuple[PipelineStep, ...]"]


def _quality(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .quality import QualityDocuments

    return (
        QualityDocuments(parts.job.inputs, parts.job.config.quality, parts.job.config.ingest, parts.folders["quality"]),
    )


def _items(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .decontaminate import IndexItems

    job = parts.job
    return (IndexItems(job.config.decontaminate, job.base, parts.folders["items"], job.config.seed, parts.items),)


def _contamination(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .decontaminate import FindItems
    from .formats import read_options

    config, folders = parts.job.config, parts.folders
    earlier = [folders["quality"]] if "quality" in folders else []
    step = FindItems(
        parts.job.inputs,
        config.decontaminate,
        folders["items"],
        folders["contamination"],
        earlier,
        options=read_options(config.ingest),
    )
    return (step,)


def _decontaminate(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .decontaminate import JudgeDocuments

    config, folders = parts.job.config, parts.folders
    places = (folders["items"], folders["contamination"], folders["decontaminate"])
    return (JudgeDocuments(parts.job.inputs, config.decontaminate, *places, config.seed),)


def _sign(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .dedup.steps import SignDocuments

    return (SignDocuments(parts.job.inputs, sign_config(parts.job), parts.folders["sign"]),)


def _decide(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .dedup.steps import DecideDocuments

    job, folders, config = parts.job, parts.folders, decide_config(parts.job)
    indexes = [find_index(job.base, name) for name in job.config.dedup.against]
    for place, expected in zip(indexes, parts.indexes, strict=True):
        if hash_file(place / "index.json") != expected:
            message = "the Index was replaced while the job was running"
            raise RefusedError("TR-INPUT-CHANGED", message, str(place), f"xxh3-128 {expected} of index.json")
    step = DecideDocuments(
        job.inputs,
        # An Index may be asked for later, of these very decisions: they leave the priorities that it needs either way.
        replace(config, dedup=replace(config.dedup, write_index=True)),
        folders["sign"],
        folders["decide"],
        screens=[(status, folders[name]) for name, status in SCREENS.items() if name in folders],
        indexes=indexes,
        memory_bytes=job.config.run.memory_bytes,
    )
    return (step,)


_SPAN_STAGES = ("anchors", "repeats", "grams", "spans")


def _span_step(place: int) -> _Maker:
    """Maker of one of the four stages that cut passages; tasks of a file share the memory between the workers."""

    def make(parts: StageParts) -> tuple[PipelineStep, ...]:
        from .spans import SpanFolders
        from .spans.steps import CutSpans, FindAnchors, FindRepeats, ListGrams

        step = (FindAnchors, FindRepeats, ListGrams, CutSpans)[place]
        job, run = parts.job, parts.job.config.run
        folders = SpanFolders(*(parts.folders[stage] for stage in ("sign", "decide", *_SPAN_STAGES)))
        memory_bytes = run.memory_bytes // run.workers if place in (0, 2) else run.memory_bytes
        return (step(job.inputs, decide_config(job), folders, memory_bytes),)

    return make


def _index(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .dedup.index import WriteIndex

    folders = parts.folders
    places = (folders["sign"], folders["decide"], folders["index"])
    return (WriteIndex(parts.job.inputs, decide_config(parts.job), *places, status=parts.fates.status_of_file),)


def _choose(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .tokenizer_stage import ChooseSample

    return (ChooseSample(parts.job, parts.fates, (parts.folders["sign"], parts.folders["choose"])),)


def _sample(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .tokenizer_stage import SampleTexts

    folders = parts.folders
    return (SampleTexts(parts.job, parts.fates, (folders["sign"], folders["choose"], folders["sample"])),)


def _tokenizer(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .tokenizer_stage import MakeTokenizer

    folders = parts.folders
    return (MakeTokenizer(parts.job.config.tokenizer, folders["tokenizer"], folders.get("sample"), parts.loaded),)


def _thinning(parts: StageParts) -> Thinning | None:
    """What was left out before tokenising; None where nothing can have been."""
    from .thin import Thinning

    return Thinning(parts.job, parts.fates, parts.folders["thin"]) if "thin" in parts.folders else None


def _thinned_fates(parts: StageParts) -> Fates:
    """What became of each record, as tokenising is to see it."""
    from .thin import ThinnedFates

    fates = parts.fates
    return ThinnedFates(fates.status, fates.cuts, fates.tables, fates.signed, _thinning(parts))


def _gauge(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .thin import candidates
    from .thin_stage import GaugeDocuments

    folders, found = parts.folders, candidates(parts.job)
    return (GaugeDocuments(parts.job, parts.fates, found, (folders["sign"], folders["tokenizer"], folders["gauge"])),)


def _thin(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .thin import candidates
    from .thin_stage import ThinDocuments

    folders, found = parts.folders, candidates(parts.job)
    return (ThinDocuments(parts.job, parts.fates, found, (folders["sign"], folders["gauge"], folders["thin"])),)


def _tokenize(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .tokenize import TokenizeDocuments

    folders = parts.folders
    fates = _thinned_fates(parts)
    return (TokenizeDocuments(parts.job, fates, (folders["sign"], folders["tokenizer"], folders["tokenize"])),)


def _mix(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .mix_stage import MixDocuments

    folders = parts.folders
    places = (folders["tokenize"], folders["tokenizer"], folders["mix"])
    return (MixDocuments(parts.job, places, _thinning(parts)),)


def _pack(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .build import PackDocuments, pack_job

    return (PackDocuments(pack_job(parts.job, build_folders(parts.folders), parts.buckets)),)


def _write(parts: StageParts) -> tuple[PipelineStep, ...]:
    from .build import WriteShards, pack_job

    return (WriteShards(pack_job(parts.job, build_folders(parts.folders), parts.buckets)),)


_MAKERS: Mapping[str, _Maker] = {
    "quality": _quality,
    "items": _items,
    "contamination": _contamination,
    "decontaminate": _decontaminate,
    "sign": _sign,
    "decide": _decide,
    **{name: _span_step(place) for place, name in enumerate(_SPAN_STAGES)},
    "index": _index,
    "choose": _choose,
    "sample": _sample,
    "tokenizer": _tokenizer,
    "gauge": _gauge,
    "thin": _thin,
    "tokenize": _tokenize,
    "mix": _mix,
    "pack": _pack,
    "write": _write,
}


def stage_makers(parts: StageParts) -> dict[str, Callable[[], tuple[PipelineStep, ...]]]:
    """Makers of all stages that exist."""
    return {name: _bound(_MAKERS[name], parts) for name in parts.folders}


def _bound(maker: _Maker, parts: StageParts) -> Callable[[], tuple[PipelineStep, ...]]:
    return lambda: maker(parts)
