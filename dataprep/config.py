"""The configuration of a dataprep job: frozen dataclasses that mirror the YAML, key by key.

Everything but ``run`` is semantic. ``semantic_of`` is what enters digests and the manifest: it leaves out where
things lie on this
machine (``output``, each source's ``root``), because the same documents under the same relative paths are the same
job anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loader.shards.layout import RESERVED_NAMES

from .config_problems import raise_problems
from .dedup.config import DedupConfig, HoldoutConfig, IngestConfig
from .mix_config import MixConfig, MixStageConfig
from .screen_config import DecontaminateConfig, QualityStep
from .source_config import SourceConfig
from .tokenizer_config import (
    HuggingFaceConfig,
    SentencepieceConfig,
    SentencepieceTrainConfig,
    TiktokenConfig,
    TokenizerConfig,
)

__all__ = [
    "BuildConfig",
    "DecontaminateConfig",
    "DedupConfig",
    "HoldoutConfig",
    "HuggingFaceConfig",
    "IngestConfig",
    "MixConfig",
    "MixStageConfig",
    "PackConfig",
    "QualityStep",
    "RunConfig",
    "SentencepieceConfig",
    "SentencepieceTrainConfig",
    "ShardsConfig",
    "SourceConfig",
    "TiktokenConfig",
    "TokenizerConfig",
    "semantic_of",
    "source_priority",
]

_MAX_SOURCES = 256
_MEMORY_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MAX_MEMORY_DIGITS = 12
_MAX_SHARD_BYTES = (1 << 31) - (1 << 20)
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


@dataclass(frozen=True)
class PackConfig:
    """Packing to samples of ``seq_len`` tokens by ``strategy`` (``dataprep.pack.PACKERS``) in windows of
    ``window_documents``.
    """

    seq_len: int = 2048
    strategy: str = "best_fit"
    window_documents: int = 8192

    def __post_init__(self) -> None:
        problems = []
        if not 8 <= self.seq_len <= 1 << 24:
            problems.append("seq_len: from 8 to 2^24")
        if not 1 <= self.window_documents <= 1 << 24:
            problems.append("window_documents: from 1 to 2^24")
        raise_problems(problems)


@dataclass(frozen=True)
class ShardsConfig:
    """``size_bytes``: the size a shard file aims at."""

    size_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.size_bytes <= _MAX_SHARD_BYTES:
            raise_problems([f"size_bytes: from 1 to {_MAX_SHARD_BYTES} (a shard stays below 2 GiB)"])


@dataclass(frozen=True)
class RunConfig:
    """How to run, never what comes out: not part of any digest.

    Attributes:
        workers: processes.
        engine: key of ``dataprep.engines.ENGINES``.
        work: folder of intermediate results; ``null`` = the output's name with ``.work``.
        retries: further attempts at a task whose process was killed.
        memory: what the deciding stages may hold, such as ``4GB``: the rest waits on disk.
        fast: tokenizer backends of the extra ``[fast]``: ``auto`` where installed and equal, ``off``, or ``require``
            (fail where there is none). Each must pass a self-check first: the ids are the same either way.
        rehash: hash every input again instead of trusting an unchanged size and time of change; remote ones are
            fetched again.
    """

    workers: int = 2
    engine: str = "local"
    work: str | None = None
    retries: int = 3
    memory: str = "4GB"
    fast: Literal["auto", "off", "require"] = "auto"
    rehash: bool = False

    def __post_init__(self) -> None:
        problems = []
        number, unit = self._memory()
        plain = number.isdecimal() and len(number) <= _MAX_MEMORY_DIGITS and unit in _MEMORY_UNITS
        if not plain or not 1 << 26 <= self.memory_bytes < 10**18:
            problems.append(
                "memory: a whole number with MB, GB, TB, MiB, GiB or TiB, at least 64MiB, below 10^18 bytes"
            )
        if not 1 <= self.workers <= 4096:
            problems.append("workers: from 1 to 4096")
        if not 0 <= self.retries <= 100:
            problems.append("retries: from 0 to 100")
        raise_problems(problems)

    def _memory(self) -> tuple[str, str]:
        unit = self.memory.lstrip("0123456789")
        return self.memory[: len(self.memory) - len(unit)], unit.strip()

    @property
    def memory_bytes(self) -> int:
        """``memory`` in bytes."""
        number, unit = self._memory()
        return int(number or 0) * _MEMORY_UNITS.get(unit, 1)


@dataclass(frozen=True)
class BuildConfig:
    """A whole dataprep job; paths are relative to the folder of the configuration file."""

    version: Literal[1]
    output: str
    sources: Mapping[str, SourceConfig]
    seed: int = 17
    ingest: IngestConfig = field(default_factory=IngestConfig)
    quality: tuple[QualityStep, ...] = ()
    decontaminate: DecontaminateConfig = field(default_factory=DecontaminateConfig)
    dedup: DedupConfig = field(default_factory=DedupConfig)
    holdout: HoldoutConfig = field(default_factory=HoldoutConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    mix: MixConfig = field(default_factory=MixConfig)
    pack: PackConfig = field(default_factory=PackConfig)
    shards: ShardsConfig = field(default_factory=ShardsConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        problems = []
        if not self.output.strip("/. ") or not self.output.isprintable():
            problems.append("output: a folder to write to")
        if self.run.work is not None and not (self.run.work and self.run.work.isprintable()):
            problems.append("run.work: a folder to write to")
        if not 0 <= self.seed < 1 << 63:
            problems.append("seed: from 0 to 2^63 - 1")
        if not 1 <= len(self.sources) <= _MAX_SOURCES:
            problems.append(f"sources: from 1 to {_MAX_SOURCES} sources")
        for name in sorted(RESERVED_NAMES & set(self.sources)):
            problems.append(f"sources: name {name!r} is taken by a file of every Dataset")
        if len({name.casefold() for name in self.sources}) < len(self.sources):
            problems.append(
                "sources: two names differ by capital letters alone, which not every file system tells apart"
            )
        for name in self.sources:
            if not name or len(name) > 64 or not set(name) <= _NAME_LETTERS or not name[0].isalnum():
                problems.append(
                    f"sources: name {name!r} must start with a letter or digit; letters, digits, '_', '-', '.' only"
                )
        problems += [f"mix: {problem}" for problem in self._mix_problems()]
        problems += self._screen_problems()
        raise_problems(problems)

    def _screen_problems(self) -> list[str]:
        """Names in ``opt_out`` that nothing has, keep policies without their field, two filters of one name."""
        from .dedup import METHODS

        names = [step.name for step in self.quality]
        problems = [
            f"quality: {name!r} twice: one filter of a name"
            for name in sorted({n for n in names if names.count(n) > 1})
        ]
        known = {"dedup", *METHODS, "quality", *names, "decontaminate"}
        for source, config in self.sources.items():
            unknown = sorted(set(config.opt_out) - known)
            if unknown:
                listed = ", ".join(sorted(known))
                problems.append(f"sources: {source}: opt_out knows no {unknown[0]!r}; any of {listed}")
        fields = {
            "newest": [s.date for s in self.sources.values()],
            "quality": [s.quality for s in self.sources.values()],
        }
        if not any(fields.get(self.dedup.keep, ["none needed"])):
            name = "date" if self.dedup.keep == "newest" else "quality"
            problems.append(f"dedup: keep: {self.dedup.keep} needs a source that names its {name} field")
        return problems

    def _mix_problems(self) -> list[str]:
        """Sources named in ``mix`` that do not exist, and sources that a given ``ratios`` forgets."""
        problems = []
        stages = [(f"stages: {i}: ratios", stage.ratios) for i, stage in enumerate(self.mix.stages)]
        for key, names in (("ratios", self.mix.ratios or {}), ("max_epochs", self.mix.max_epochs), *stages):
            problems += [f"{key} names the unknown source {name!r}" for name in names if name not in self.sources]
        if self.mix.stages:
            named = {name for stage in self.mix.stages for name, ratio in stage.ratios.items() if ratio}
            problems += [f"no stage reads source {name!r}" for name in self.sources if name not in named]
        if self.mix.ratios is not None:
            problems += [
                f"ratios says nothing of source {name!r}" for name in self.sources if name not in self.mix.ratios
            ]
        return problems


def source_priority(config: BuildConfig) -> tuple[str, ...]:
    """Source names, the winner in deduplication first: by ``rank`` where given, else by place in the file."""
    names = list(config.sources)
    ranks = {name: (config.sources[name].rank, place) for place, name in enumerate(names)}
    return tuple(sorted(names, key=lambda n: (ranks[n][1] if ranks[n][0] is None else ranks[n][0], ranks[n][1])))


def semantic_of(config: BuildConfig) -> dict[str, Any]:
    """What shapes the Datasets, JSON-able: no ``run``, no ``output``, no roots and other places (the build digest
    knows what lay there), not whether an Index is left beside them; sources as a list, because their order is a
    priority.
    """
    from loader.settings import to_plain

    plain = to_plain(config)
    assert isinstance(plain, dict)
    for key in ("run", "output", "sources"):
        del plain[key]
    del plain["dedup"]["write_index"]
    plain["dedup"]["against"] = len(config.dedup.against)
    kind = plain["tokenizer"][config.tokenizer.kind]
    if kind is not None:
        kind["load"] = config.tokenizer.load is not None
    for benchmark in plain["decontaminate"]["benchmarks"].values():
        benchmark["path"] = benchmark["path"] is not None
    sources = []
    for name in config.sources:
        source = to_plain(config.sources[name])
        assert isinstance(source, dict)
        for key in ("root", "files", "file_list"):  # files.txt says which files there were
            del source[key]
        sources.append({"name": name, **source})
    return {**plain, "sources": sources}
