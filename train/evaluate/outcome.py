"""What a task's scores are, from log-likelihoods or written answers.

Legend: Q questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .questions import Question, answer_word

__all__ = ["TaskScore", "choice_values", "number_values", "task_score", "word_values"]

Values = dict[str, NDArray[np.float64]]
_STRICT = re.compile(r"answer is \$?(-?[0-9][0-9.,]*)")
_ANY = re.compile(r"(-?\$?[0-9][0-9.,]*)")


@dataclass(frozen=True)
class TaskScore:
    """The result of one task.

    Attributes:
        metric: the one that stands for it. items: questions asked. shots: worked examples in front of each.
        cut: questions that were too long and lost text on the left. version: of the prompt.
        scores: metric -> value. errors: metric -> standard error, for means over questions.
        chance: of ``metric``, without knowledge.
    """

    metric: str
    items: int
    shots: int
    cut: int
    version: int
    chance: float
    scores: Mapping[str, float]
    errors: Mapping[str, float]

    @property
    def value(self) -> float:
        """Of ``metric``."""
        return self.scores[self.metric]

    def to_json(self) -> dict[str, Any]:
        """For events and ``--json``."""
        return {"value": self.value, **vars(self), "scores": dict(self.scores), "errors": dict(self.errors)}


def choice_values(questions: Sequence[Question], log_likelihoods: Sequence[NDArray[np.float64]]) -> Values:
    """Of each question 1 or 0: is the right option the likeliest (``acc``), by its characters (``acc_norm``, as
    lm-eval), by its bytes (``acc_bytes``); and the right option's bits a byte. Of equals the first is taken.
    """
    values: Values = {name: np.zeros(len(questions)) for name in ("acc", "acc_norm", "acc_bytes", "bits_per_byte")}
    for index, (question, options) in enumerate(zip(questions, log_likelihoods, strict=True)):
        characters = np.array([max(1, len(text)) for text in question.texts], np.float64)
        sizes = np.array([max(1, len(text.encode())) for text in question.texts], np.float64)
        for name, measure in (("acc", options), ("acc_norm", options / characters), ("acc_bytes", options / sizes)):
            values[name][index] = float(int(np.argmax(measure)) == question.gold)
        num_bytes = max(1, len(question.options[question.gold].encode()))
        values["bits_per_byte"][index] = -options[question.gold] / (math.log(2) * num_bytes)
    return values


def word_values(log_likelihood_Q: NDArray[np.float64], greedy_Q: NDArray[np.bool_]) -> Values:
    """Whether the model would write exactly the word, and its loss in nats."""
    return {"acc": greedy_Q.astype(np.float64), "loss": -log_likelihood_Q}


def number_values(question: Question, answer: str) -> dict[str, float]:
    """Whether the number behind "the answer is", and the last number at all, are the right one."""
    strict, last = answer_word(answer, _STRICT), answer_word(answer, _ANY, last=True)
    right = answer_word(question.reference, _ANY)
    return {"exact_match": float(strict == right), "exact_match_flexible": float(last == right)}


def task_score(values: Values, facts: Mapping[str, Any]) -> TaskScore:
    """Means over questions and their standard errors (sample deviation / sqrt(Q), as lm-eval; none for one question).

    Args:
        values: metric -> (Q,). facts: the other fields of :class:`TaskScore`.
    """
    scores = {name: float(value_Q.mean()) for name, value_Q in values.items()}
    errors = {
        name: float(value_Q.std(ddof=1) / math.sqrt(len(value_Q)))
        for name, value_Q in values.items()
        if len(value_Q) > 1
    }
    return TaskScore(scores=scores, errors=errors, **facts)
