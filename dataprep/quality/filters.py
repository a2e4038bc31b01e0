"""Our own quality filters: whole batches of Arrow texts through compiled kernels, by the text rules of ``normalize``.

A filter is one entry of ``FILTERS``: its options and what makes a ``Judge`` of them. Shares and lengths are of UTF-8
bytes, n-grams of the tokens of ``normalize`` (case, accents and punctuation do not count).

Shapes: N documents of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .judges import FilterKind, Judge, check_rules
from .prose import QualityOptions, make_quality

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FILTERS",
    "FILTERS_VERSION",
    "LengthOptions",
    "PeriodicOptions",
    "RepetitionOptions",
]

FILTERS_VERSION = 1
"""Raised whenever a filter would judge some text otherwise than before."""
_LARGEST_GRAM = 32


@dataclass(frozen=True)
class RepetitionOptions:
    """Arguments and defaults of datatrove's ``GopherRepetitionFilter`` (Rae et al. 2021, table A1); None switches a
    rule off. A document falls where a share is above its limit.

    Attributes:
        dup_line_frac, dup_para_frac: share of lines (paragraphs) that equal an earlier one.
        dup_line_char_frac, dup_para_char_frac: their share of the bytes.
        top_n_grams: (n, limit): share of bytes in the most frequent n-gram, one separator between words.
        dup_n_grams: (n, limit): share of bytes in words of n-grams that occurred before.
    """

    dup_line_frac: float | None = 0.3
    dup_para_frac: float | None = 0.3
    dup_line_char_frac: float | None = 0.2
    dup_para_char_frac: float | None = 0.2
    top_n_grams: tuple[tuple[int, float], ...] = ((2, 0.2), (3, 0.18), (4, 0.16))
    dup_n_grams: tuple[tuple[int, float], ...] = (
        (5, 0.15),
        (6, 0.14),
        (7, 0.13),
        (8, 0.12),
        (9, 0.11),
        (10, 0.10),
    )

    def __post_init__(self) -> None:
        limits = (self.dup_line_frac, self.dup_para_frac, self.dup_line_char_frac, self.dup_para_char_frac)
        sizes = [n for n, _ in (*self.top_n_grams, *self.dup_n_grams)]
        check_rules(
            ("dup_..._frac: at least 0", all(limit is None or limit >= 0 for limit in limits)),
            (f"top_n_grams, dup_n_grams: n from 2 to {_LARGEST_GRAM}", all(2 <= n <= _LARGEST_GRAM for n in sizes)),
        )


@dataclass(frozen=True)
class PeriodicOptions:
    """Text that repeats with a short period, which training losses answer with spikes.

    Attributes:
        period: largest period, in words and in bytes.
        repeats: how often in a row, at least.
        share: a document falls where periodic words are more than this share of its bytes (0: wherever there are any).
        byte_share: the same for periodic bytes, such as runs of one letter or of backslashes.
        byte_run: it also falls where one such run has at least this many bytes; rulers of dashes are shorter.
    """

    period: int = 13
    repeats: int = 32
    share: float = 0.0
    byte_share: float = 0.3
    byte_run: int = 1024

    def __post_init__(self) -> None:
        check_rules(
            ("period: from 1 to 64", 1 <= self.period <= 64),
            ("repeats: at least 2", self.repeats >= 2),
            ("share, byte_share: at least 0", self.share >= 0 and self.byte_share >= 0),
            ("byte_run: at least 1", self.byte_run >= 1),
        )


@dataclass(frozen=True)
class LengthOptions:
    """Least and most words (tokens of ``normalize``) and bytes of a document; None: any."""

    min_words: int | None = None
    max_words: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = (self.min_words, self.max_words, self.min_bytes, self.max_bytes)
        check_rules(
            ("at least one of min_words, max_words, min_bytes, max_bytes", any(limit is not None for limit in limits)),
            ("limits: at least 0", all(limit is None or limit >= 0 for limit in limits)),
            ("min_words: at most max_words", _in_order(self.min_words, self.max_words)),
            ("min_bytes: at most max_bytes", _in_order(self.min_bytes, self.max_bytes)),
        )


def _in_order(least: int | None, most: int | None) -> bool:
    return least is None or most is None or least <= most


def _repetition(options: RepetitionOptions) -> Judge:
    from ..kernels.documents import text_buffers
    from ..kernels.repetition import FIRST_GRAM_SHARE, repetition_shares
    from ..normalize import load_table

    largest = max((n for n, _ in (*options.top_n_grams, *options.dup_n_grams)), default=1)
    limit_F = np.full(FIRST_GRAM_SHARE + 2 * (largest + 1), math.inf)
    reasons = ["dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac"]
    for column, name in enumerate(reasons):
        limit_F[column] = getattr(options, name) or math.inf  # 0 means off too, as in datatrove
    for n in range(largest + 1):
        reasons += [f"top_{n}_gram", f"duplicated_{n}_n_grams"]
    for offset, rules in ((0, options.top_n_grams), (1, options.dup_n_grams)):
        for n, limit in rules:
            column = FIRST_GRAM_SHARE + 2 * n + offset
            limit_F[column] = min(limit_F[column], limit)
    table = load_table()

    def judge(text: pa.LargeStringArray) -> NDArray[np.uint8]:
        column_N = np.empty(len(text), np.int64)
        share_NF = np.empty((len(text), len(limit_F)))
        repetition_shares(text_buffers(text), table, limit_F, share_NF, column_N)
        return (column_N + 1).astype(np.uint8)

    return Judge(tuple(reasons), judge)


def _periodic(options: PeriodicOptions) -> Judge:
    from ..kernels.documents import text_buffers
    from ..kernels.repetition import periodic_runs
    from ..normalize import load_table

    table = load_table()

    def judge(text: pa.LargeStringArray) -> NDArray[np.uint8]:
        texts = text_buffers(text)
        run_N4 = np.zeros((len(text), 4), np.int64)
        periodic_runs(texts, table, (options.period, options.repeats), run_N4)
        size_N = np.diff(texts.offset_N)
        in_words = run_N4[:, 0] > options.share * size_N
        in_bytes = (run_N4[:, 2] > options.byte_share * size_N) | (run_N4[:, 3] >= options.byte_run)
        return np.where(in_words, 1, np.where(in_bytes, 2, 0)).astype(np.uint8)

    return Judge(("periodic_words", "periodic_bytes"), judge)


def _length(options: LengthOptions) -> Judge:
    from ..kernels.documents import text_buffers
    from ..kernels.repetition import count_words
    from ..normalize import load_table

    reasons = ("min_bytes", "max_bytes", "min_words", "max_words")
    counts_words = options.min_words is not None or options.max_words is not None
    table = load_table()

    def judge(text: pa.LargeStringArray) -> NDArray[np.uint8]:
        texts = text_buffers(text)
        verdict_N = np.zeros(len(text), np.uint8)
        count_N = np.zeros(len(text), np.int64)
        if counts_words:
            count_words(texts, table, count_N)
        for index, name in enumerate(reasons):
            limit = getattr(options, name)
            if limit is not None:
                size_N = count_N if name.endswith("words") else np.diff(texts.offset_N)
                outside_N = size_N < limit if name.startswith("min") else size_N > limit
                verdict_N[(verdict_N == 0) & outside_N] = index + 1
        return verdict_N

    return Judge(reasons, judge)


FILTERS: Mapping[str, FilterKind] = {
    "gopher_repetition": FilterKind(RepetitionOptions, _repetition),
    "gopher_quality": FilterKind(QualityOptions, make_quality),
    "periodic": FilterKind(PeriodicOptions, _periodic),
    "length": FilterKind(LengthOptions, _length),
}
"""Name in a configuration -> filter."""
