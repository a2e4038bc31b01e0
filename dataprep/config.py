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

from .dedup.config import DedupConfig, HoldoutConfig, IngestConfig
from .screen_config import DecontaminateConfig, QualityStep

__all__ = [
    "BuildConfig",
    "DecontaminateConfig",
    "DedupConfig",
    "HoldoutConfig",
    "IngestConfig",
    "MixConfig",
    "PackConfig",
    "QualityStep",
    "RunConfig",
    "SentencepieceConfig",
    "SentencepieceTrainConfig",
    "ShardsConfig",
    "SourceConfig",
    "TokenizerConfig",
    "semantic_of",
    "source_priority",
]

_MAX_SOURCES = 256
_MEMORY_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MAX_MEMORY_DIGITS = 12
_MAX_SHARD_BYTES = (1 << 31) - (1 << 20)
_MAX_RATIO = 1e9
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def _raise(problems: list[str]) -> None:
    """Raise what ``loader.settings`` turns into placed messages: one ``key: message`` a line."""
    if problems:
        raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class SourceConfig:
    """A named set of input files.

    Attributes:
        root: folder of the files, relative to the folder of the configuration file.
        paths: glob patterns relative to ``root``; ``**`` crosses folders, but no links to folders: name those. A
            source that matches nothing is an error.
        format: a key of ``dataprep.formats.FORMATS``.
        text: the field that holds the document's text.
        rank: priority among sources in deduplication, lower wins; ``null`` = place in the file.
        date: field that ``dedup.keep: newest`` ranks by: ISO 8601 text, or seconds since 1970.
        quality: field that ``dedup.keep: quality`` ranks by: a number, larger is better.
        opt_out: what leaves this source alone: dedup methods, or ``dedup`` for all of them; ``quality``, or one of its
            filters; ``decontaminate``. Stated in the report.
    """

    root: str
    paths: tuple[str, ...] = ("**/*.jsonl", "**/*.jsonl.zst", "**/*.jsonl.gz")
    format: str = "jsonl"
    text: str = "text"
    rank: int | None = None
    date: str | None = None
    quality: str | None = None
    opt_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if not self.paths:
            problems.append("paths: at least one pattern")
        for pattern in self.paths:
            if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
                problems.append(f"paths: {pattern!r} must stay below root")
            if any("**" in part and part != "**" for part in pattern.split("/")):
                problems.append(f"paths: {pattern!r}: ** stands between slashes alone")
        _raise(problems)


@dataclass(frozen=True)
class SentencepieceTrainConfig:
    """Train a lossless sentencepiece model on a keyed sample of ``sample_bytes`` of the kept documents, shared by the
    mix ratios.
    """

    vocab_size: int = 32768
    model_type: Literal["bpe", "unigram"] = "bpe"
    sample_bytes: int = 64_000_000

    def __post_init__(self) -> None:
        problems = []
        if not 300 <= self.vocab_size <= 1 << 20:
            problems.append("vocab_size: from 300 (256 byte tokens and 4 control tokens are always there) to 2^20")
        if not 1 <= self.sample_bytes <= 4 << 30:
            problems.append("sample_bytes: from 1 to 2^32")
        _raise(problems)


@dataclass(frozen=True)
class SentencepieceConfig:
    """Either ``train`` a model here, or ``load`` a ``.model`` file (or a Dataset's tokenizer folder), relative to the
    config file.
    """

    train: SentencepieceTrainConfig | None = None
    load: str | None = None

    def __post_init__(self) -> None:
        if (self.train is None) == (self.load is None):
            _raise(["exactly one of train, load"])


@dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer and the policy at document borders: ``add_bos`` / ``add_eos`` per document, never per piece."""

    sentencepiece: SentencepieceConfig = field(
        default_factory=lambda: SentencepieceConfig(train=SentencepieceTrainConfig())
    )
    add_bos: bool = True
    add_eos: bool = True


@dataclass(frozen=True)
class MixConfig:
    """Shares by tokens.

    Attributes:
        ratios: source -> share of the plan, any scale from 1e-9 to 1e9; ``null`` keeps every source whole.
        total_tokens: length of the plan; ``null`` with ratios = the longest plan within everybody's ``max_epochs`` (1
            if not given).
        max_epochs: source -> how often its documents may be seen.
        exhaustion: what happens to a source that runs out: ``repeat`` it, ``stop`` the plan there, or ``renormalise``
            the others.
    """

    ratios: Mapping[str, float] | None = None
    total_tokens: int | None = None
    max_epochs: Mapping[str, float] = field(default_factory=dict)
    exhaustion: Literal["repeat", "stop", "renormalise"] = "repeat"

    def __post_init__(self) -> None:
        problems = []
        if self.total_tokens is not None and self.total_tokens <= 0:
            problems.append("total_tokens: positive")
        for name, ratio in (self.ratios or {}).items():
            if not 1 / _MAX_RATIO <= ratio <= _MAX_RATIO:
                problems.append(f"ratios: {name} must be positive, from 1e-9 to 1e9")
        for name, epochs in self.max_epochs.items():
            if not 0 < epochs < float("inf"):
                problems.append(f"max_epochs: {name} must be positive and finite")
        _raise(problems)


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
        _raise(problems)


@dataclass(frozen=True)
class ShardsConfig:
    """``size_bytes``: the size a shard file aims at."""

    size_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.size_bytes <= _MAX_SHARD_BYTES:
            _raise([f"size_bytes: from 1 to {_MAX_SHARD_BYTES} (a shard stays below 2 GiB)"])


@dataclass(frozen=True)
class RunConfig:
    """How to run, never what comes out: not part of any digest. ``workers``: processes; ``work``: folder of
    intermediate results; ``memory``: what the deciding stages may hold, such as ``4GB``: the rest waits on disk.
    """

    workers: int = 2
    engine: str = "local"
    work: str | None = None
    retries: int = 3
    memory: str = "4GB"

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
        _raise(problems)

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
        _raise(problems)

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
        for key, names in (("ratios", self.mix.ratios or {}), ("max_epochs", self.mix.max_epochs)):
            problems += [f"{key} names the unknown source {name!r}" for name in names if name not in self.sources]
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
    plain["tokenizer"]["sentencepiece"]["load"] = config.tokenizer.sentencepiece.load is not None
    for benchmark in plain["decontaminate"]["benchmarks"].values():
        benchmark["path"] = benchmark["path"] is not None
    sources = []
    for name in config.sources:
        source = to_plain(config.sources[name])
        assert isinstance(source, dict)
        sources.append({"name": name, **{key: value for key, value in source.items() if key != "root"}})
    return {**plain, "sources": sources}
