"""From a benchmark's row to the question that the model is asked: the prompts of every task, word for word.

A prompt is fixed: whoever changes one raises ``Task.version``, and the golden prompts of the tests with it. The forms
are those of OLMES (Gu et al., 2024) where the package holds its worked examples (ARC, BoolQ, CommonsenseQA, HellaSwag,
OpenBookQA, PIQA, SciQ, SocialIQA, WinoGrande), lm-eval's for MMLU and COPA, and GSM8K's by chain of thought.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Question",
    "answer_word",
    "boolq",
    "choose",
    "commonsense",
    "copa",
    "gsm8k",
    "hellaswag",
    "humaneval",
    "lambada",
    "mmlu",
    "piqa",
    "sciq",
    "social_i_qa",
    "winogrande",
]

Row = Mapping[str, Any]
_LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Question:
    """One item as the model sees it.

    Attributes:
        prompts: what stands in front of each option (all alike, but for WinoGrande); of a task that generates, one.
        options: the continuations to compare, as they follow the prompt; none where the model writes freely.
        gold: number of the right option. texts: the options without the space in front: their lengths normalise.
        group: the part of the benchmark (MMLU: the subject).
        reference: what a free answer is judged by (GSM8K: the number; HumanEval: the tests). entry: its function.
    """

    prompts: tuple[str, ...]
    options: tuple[str, ...] = ()
    gold: int = 0
    texts: tuple[str, ...] = ()
    group: str = ""
    reference: str = ""
    entry: str = ""

    @property
    def solved(self) -> str:
        """Prompt and right answer: the question as a worked example."""
        return self.prompts[self.gold % len(self.prompts)] + (self.options[self.gold] if self.options else "")


def _options(prompt: str, texts: list[str], gold: int, group: str = "") -> Question:
    return Question((prompt,) * len(texts), tuple(f" {text}" for text in texts), gold, tuple(texts), group)


def _asked(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def choose(row: Row, part: str) -> Question:
    """Rows that hold ``query``, ``choices`` and ``gold``: ARC and OpenBookQA of the package, and files of one's own."""
    del part
    return _options(row["query"], list(row["choices"]), row["gold"])


def boolq(row: Row, part: str) -> Question:
    """Passage and question, answered by yes or no."""
    del part
    return _options(f"{row['passage']}\n" + _asked(f"{row['question']}?"), ["yes", "no"], 0 if row["answer"] else 1)


def commonsense(row: Row, part: str) -> Question:
    """CommonsenseQA: the text of each choice, not its letter."""
    del part
    choices = row["choices"]
    return _options(_asked(row["question"]), list(choices["text"]), choices["label"].index(row["answerKey"]))


def copa(row: Row, part: str) -> Question:
    """Premise, then because or therefore."""
    del part
    word = {"cause": "because", "effect": "therefore"}[row["question"]]
    texts = [row[key][0].lower() + row[key][1:] for key in ("choice1", "choice2")]
    return _options(f"{row['premise'].strip()[:-1]} {word}", texts, row["label"])


def _plain(text: str) -> str:
    """WikiHow's marks taken out, as everybody does since the benchmark's first code."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ").replace(".. ", ". ")


def hellaswag(row: Row, part: str) -> Question:
    """Activity and context, continued."""
    del part
    query = _plain(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    return _options(query, [_plain(ending) for ending in row["endings"]], int(row["label"]))


def mmlu(row: Row, part: str) -> Question:
    """Four choices by letter; ``part`` is the subject."""
    texts = [f"{letter}. {text}" for letter, text in zip(_LETTERS, row["choices"], strict=False)]
    prompt = "\n".join([row["question"].strip(), *texts, "Answer:"])
    return _options(prompt, list(_LETTERS[: len(texts)]), row["answer"], part)


def piqa(row: Row, part: str) -> Question:
    """Goal and solution."""
    del part
    return _options(f"Goal: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], row["label"])


def sciq(row: Row, part: str) -> Question:
    """Without the supporting passage."""
    del part
    texts = [row[key] for key in ("distractor1", "distractor2", "distractor3", "correct_answer")]
    return _options(_asked(row["question"]), texts, 3)


def social_i_qa(row: Row, part: str) -> Question:
    """Context and question in a line."""
    del part
    prompt = _asked(f"{row['context']} {row['question']}")
    return _options(prompt, [row[key] for key in ("answerA", "answerB", "answerC")], int(row["label"]) - 1)


def winogrande(row: Row, part: str) -> Question:
    """Partial evaluation: the rest of the sentence behind either name."""
    del part
    before, _, after = row["sentence"].partition("_")
    prompts = (before + row["option1"], before + row["option2"])
    rest = after.strip()
    return Question(prompts, (f" {rest}",) * 2, int(row["answer"]) - 1, (rest, rest))


def lambada(row: Row, part: str) -> Question:
    """The last word of a passage: right if the model would write exactly it."""
    del part
    word = row["answers_text"][0]
    return Question((row["query"],), (f" {word}",), 0, (word,))


def gsm8k(row: Row, part: str) -> Question:
    """The question alone; the reference is the number."""
    del part
    return Question((_asked(row["question"]),), reference=str(row["short_answer"]))


def humaneval(row: Row, part: str) -> Question:
    """The function's head; the reference is the tests."""
    del part
    return Question((row["prompt"],), reference=row["test"], entry=row["entry_point"])


def answer_word(text: str, pattern: re.Pattern[str], *, last: bool = False) -> str:
    """The number that ``pattern`` finds in a written answer, without what numbers are dressed in; "" without any.

    Args:
        pattern: with one group. last: take the last match, not the first.
    """
    found = pattern.findall(text)
    word = found[-1 if last else 0] if found else ""
    return re.sub(r"[,$]", "", word).rstrip(".")
