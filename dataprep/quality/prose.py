"""``gopher_quality``: the document rules of Rae et al. 2021 ("Scaling language models", appendix A) on our own words.

Arguments, defaults and reasons are those of datatrove's ``GopherQualityFilter``; what differs is what a word is: ours
have no punctuation among them, fold case (``The`` is a stop word), and ideographs are tokens of their own, which the
rules on the length of words pass over. A run of other
characters with white space beside it is a mark, which counts for the shares of symbols and of words with letters. Lines
end at ``\\n``. Shapes: N documents, S slots, C counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .judges import Judge, check_rules

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QualityOptions", "make_quality", "stop_table"]


_Rule = tuple[float | None, Callable[[float], NDArray[np.bool_]]]


@dataclass(frozen=True)
class QualityOptions:
    """Limits of a document; None or 0 switches a rule off.

    Attributes:
        min_doc_words, max_doc_words: words (ideographs count).
        min_avg_word_length, max_avg_word_length: mean characters of its words, ideographs aside.
        max_symbol_word_ratio: ``#`` per word or mark, and ellipses.
        max_bullet_lines_ratio, max_ellipsis_lines_ratio: share of lines that begin so (end so).
        max_non_alpha_words_ratio: least share of words with a letter among words and marks, under datatrove's
            name for it.
        min_stop_words: how many different ones of ``stop_words`` it holds at least.
    """

    min_doc_words: int | None = 50
    max_doc_words: int | None = 100_000
    min_avg_word_length: float | None = 3
    max_avg_word_length: float | None = 10
    max_symbol_word_ratio: float | None = 0.1
    max_bullet_lines_ratio: float | None = 0.9
    max_ellipsis_lines_ratio: float | None = 0.3
    max_non_alpha_words_ratio: float | None = 0.8
    min_stop_words: int | None = 2
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def __post_init__(self) -> None:
        limits = (
            self.min_doc_words,
            self.max_doc_words,
            self.min_avg_word_length,
            self.max_avg_word_length,
            self.max_symbol_word_ratio,
            self.max_bullet_lines_ratio,
            self.max_ellipsis_lines_ratio,
            self.max_non_alpha_words_ratio,
            self.min_stop_words,
        )
        check_rules(
            ("limits: at least 0", all(limit is None or limit >= 0 for limit in limits)),
            ("stop_words: at most 1000", len(self.stop_words) <= 1000),
        )


def stop_table(words: Sequence[str], table: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Slots (uint64, S) of ``count_prose`` with the hashes of ``words``.

    Raises:
        ValueError: one of them is not one word.
    """
    from ..kernels.words import split_words

    hash_S = np.zeros(max(64, 1 << (8 * len(words)).bit_length()), np.uint64)
    for word in words:
        encoded = word.encode()
        token_T = np.zeros(len(encoded) + 64, np.uint64)
        data = np.frombuffer(encoded + bytes(64), np.uint8)
        if split_words(data, (0, len(encoded)), table, token_T) != 1:
            raise ValueError(f"stop_words: {word!r} is not one word")
        slot = (int(token_T[0]) >> 32) % len(hash_S)
        while hash_S[slot] not in (0, token_T[0]):
            slot = (slot + 1) % len(hash_S)
        hash_S[slot] = token_T[0]
    return hash_S


def make_quality(options: QualityOptions) -> Judge:
    """The filter.

    Raises:
        ValueError: a stop word that is not one word.
    """
    from ..kernels.documents import text_buffers
    from ..kernels.prose import COUNTS, count_prose
    from ..normalize import load_table

    table = load_table()
    hash_S = stop_table(options.stop_words, table)
    column = {name: place for place, name in enumerate(COUNTS)}

    def judge(text: pa.LargeStringArray) -> NDArray[np.uint8]:
        count_NC = np.zeros((len(text), len(COUNTS)), np.int64)
        count_prose(text_buffers(text), table, hash_S, count_NC)
        count = {name: count_NC[:, place] for name, place in column.items()}
        per_word_N = np.maximum(count["tokens"] + count["marks"], 1)
        lines_N = np.maximum(count["lines"], 1)
        length_N = count["word_characters"] / np.maximum(count["words"], 1)
        has_words_N = count["words"] > 0
        rules: tuple[_Rule, ...] = (
            (options.min_doc_words, lambda limit: count["tokens"] < limit),
            (options.max_doc_words, lambda limit: count["tokens"] > limit),
            (options.min_avg_word_length, lambda limit: has_words_N & (length_N < limit)),
            (options.max_avg_word_length, lambda limit: has_words_N & (length_N > limit)),
            (options.max_symbol_word_ratio, lambda limit: count["hashes"] / per_word_N > limit),
            (options.max_symbol_word_ratio, lambda limit: count["ellipses"] / per_word_N > limit),
            (options.max_bullet_lines_ratio, lambda limit: count["bullet_lines"] / lines_N > limit),
            (options.max_ellipsis_lines_ratio, lambda limit: count["ellipsis_lines"] / lines_N > limit),
            (options.max_non_alpha_words_ratio, lambda limit: count["letter_tokens"] / per_word_N < limit),
            (options.min_stop_words, lambda limit: count["stop_words"] < limit),
        )
        verdict_N = np.zeros(len(text), np.uint8)
        for reason, (limit, is_outside) in enumerate(rules, 1):
            if limit:
                verdict_N[(verdict_N == 0) & is_outside(limit)] = reason
        return verdict_N

    return Judge(_REASONS, judge)


_REASONS = (
    "gopher_short_doc",
    "gopher_long_doc",
    "gopher_below_avg_threshold",
    "gopher_above_avg_threshold",
    "gopher_too_many_hashes",
    "gopher_too_many_ellipsis",
    "gopher_too_many_bullets",
    "gopher_too_many_end_ellipsis",
    "gopher_below_alpha_threshold",
    "gopher_enough_stop_words",
)
