"""The tasks of a configuration: read and tokenised once, scored as often as asked.

Legend: Q questions, R requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from loader.errors import ConfigError
from loader.sources import Sources
from loader.text.tokenizers import load_tokenizer
from loader.yaml_tree import did_you_mean

from ..evaluate_config import EvaluateConfig
from ..model import Decoder
from .execute import need_limits, passes
from .generate import Stopping, generate
from .outcome import TaskScore, choice_values, number_values, task_score, word_values
from .questions import Question
from .requests import Request, encode_pairs, encode_prompts
from .score import Reader, score_requests
from .share import ALONE, Share
from .tasks import TASKS, Task, local_questions, read_examples, read_questions

if TYPE_CHECKING:
    from loader.text.tokenizer_base import Tokenizer

__all__ = ["PreparedTask", "open_tasks", "prepare_task", "score_task", "score_tasks", "tasks_of_whole_rows"]


@dataclass(frozen=True)
class PreparedTask:
    """A task whose questions are tokens.

    Attributes:
        shots: worked examples in front of each question. requests: of all options of all questions, in order; where
            the model writes, one prompt a question. stopping: when a written answer ends.
    """

    name: str
    task: Task
    questions: Sequence[Question]
    shots: int
    requests: Sequence[Request]
    stopping: Stopping


def _tokenizer(sources: Sources) -> Tokenizer:
    folder = sources.datasets[0].tokenizer_folder()
    if folder is None:
        raise ConfigError(
            "TR-EVALUATE-TOKENIZER", "the Dataset carries no tokenizer, so that no question can be asked",
            sources.place, "a Dataset that `build` made", "leave evaluate.tasks empty",
        )  # fmt: skip
    return load_tokenizer(folder)


def open_tasks(config: EvaluateConfig, sources: Sources, base: Path) -> list[PreparedTask]:
    """The tasks of a configuration, in its order. They stay in memory: MMLU's tokens are some 150 MB.

    Args:
        sources: whose tokenizer and sample length hold. base: where paths of ``files`` count from.

    Raises:
        ConfigError: no such task, no tokenizer, or items that are not there. RefusedError: programs that the model
            writes are to be run, and cannot be held on this machine.
    """
    if not config.tasks:
        return []
    if config.execute_code and any(_kind(name, config) == "code" for name in config.tasks):
        need_limits()
    tokenizer = _tokenizer(sources)
    return [prepare_task(name, config, tokenizer, sources.seq_len, base) for name in config.tasks]


def _kind(name: str, config: EvaluateConfig) -> str | None:
    return TASKS[name].kind if name in TASKS and name not in config.files else None


def tasks_of_whole_rows(config: EvaluateConfig) -> list[str]:
    """Those tasks of a configuration that look at a row's hidden vectors, see ``Share.need_whole_rows``: they ask what
    the model would write. Programs that are not run are not asked for.
    """
    kinds = ("word", "number", "code") if config.execute_code else ("word", "number")
    return [name for name in config.tasks if _kind(name, config) in kinds]


def prepare_task(name: str, config: EvaluateConfig, tokenizer: Tokenizer, seq_len: int, base: Path) -> PreparedTask:
    """Read and tokenise one task; see :func:`open_tasks`."""
    if name in config.files:
        path = Path(os.path.normpath(base / config.files[name]))  # the run's folder may not be there yet
        task, questions = local_questions(path, config.limit)
    elif name in TASKS:
        task = TASKS[name]
        questions = read_questions(task, config.limit)
    else:
        message = f"no task {name!r}{did_you_mean(name, (*TASKS, *config.files))}"
        raise ConfigError("TR-EVALUATE-TASK", message, "evaluate.tasks", ", ".join(sorted((*TASKS, *config.files))))
    shots, examples = read_examples(task, config.shots)
    fronts = [examples.get(question.group, examples.get("", "")) for question in questions]
    most_tokens = min(task.most_tokens, seq_len // 2)
    if task.most_tokens:
        prompts = [front + question.prompts[0] for front, question in zip(fronts, questions, strict=True)]
        requests = encode_prompts(tokenizer, prompts, seq_len - most_tokens)
    else:
        pairs = [
            (front + prompt, option)
            for front, question in zip(fronts, questions, strict=True)
            for prompt, option in zip(question.prompts, question.options, strict=True)
        ]
        requests = encode_pairs(tokenizer, pairs, seq_len)
    stopping = Stopping(task.stops, most_tokens, tokenizer.eos_id, tokenizer.decode_bytes)
    return PreparedTask(name, task, questions, shots, requests, stopping)


def score_task(
    model: Decoder, prepared: PreparedTask, reader: Reader, share: Share = ALONE, *, execute_code: bool = False
) -> TaskScore | None:
    """Ask a task's questions; the same result on all processes. None for programs that must not be run.

    It reads the model and touches nothing.

    Raises:
        RefusedError: a task that writes, with a model of which no process sees whole rows.
    """
    task, questions = prepared.task, prepared.questions
    if task.kind in ("choice", "word"):
        scores = score_requests(model, prepared.requests, reader, share, greedy=task.kind == "word")
        if scores.greedy_R is not None:
            values = word_values(scores.log_likelihood_R, scores.greedy_R)
        else:
            borders = accumulate((len(question.options) for question in questions), initial=0)
            parts = [scores.log_likelihood_R[start:stop] for start, stop in pairwise(borders)]
            values = choice_values(questions, parts)
    else:
        if task.kind == "code" and not execute_code:
            return None
        answers = generate(model, prepared.requests, prepared.stopping, reader, share)
        values = _judged(task, questions, answers, reader, share)
    facts = {
        "metric": task.metric,
        "items": len(questions),
        "shots": prepared.shots,
        "cut": _cut_questions(prepared),
        "version": task.version,
        "chance": task.chance,
    }
    return task_score(values, facts)


def _cut_questions(prepared: PreparedTask) -> int:
    """Questions of which a request was too long."""
    sizes = [max(1, len(question.options)) for question in prepared.questions]
    cut_R = np.array([request.num_cut > 0 for request in prepared.requests], np.int64)
    starts = list(accumulate(sizes, initial=0))[:-1]
    return int((np.add.reduceat(cut_R, starts) > 0).sum())


def _judged(
    task: Task, questions: Sequence[Question], answers: Mapping[int, str], reader: Reader, share: Share
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Values of all questions from this process's own answers; other processes of the data rank judge none."""
    judge: Callable[[Question, str], dict[str, float]] = _program_values if task.kind == "code" else number_values
    names = ("pass_at_1",) if task.kind == "code" else ("exact_match", "exact_match_flexible")
    value_MQ = torch.zeros(len(names), len(questions), dtype=torch.float64, device=reader.options.device)
    if share.counts:
        for number, answer in answers.items():
            found = judge(questions[number], answer)
            value_MQ[:, number] = torch.tensor([found[name] for name in names], dtype=torch.float64)
    return dict(zip(names, share.total(value_MQ).cpu().numpy(), strict=True))


def _program_values(question: Question, answer: str) -> dict[str, float]:
    program = f"{question.prompts[0]}{answer}\n{question.reference}\ncheck({question.entry})\n"
    return {"pass_at_1": float(passes(program))}


def score_tasks(
    model: Decoder,
    prepared: Sequence[PreparedTask],
    reader: Reader,
    share: Share = ALONE,
    *,
    execute_code: bool = False,
) -> dict[str, TaskScore]:
    """Scores of several tasks by name; a task that must not be run is left out."""
    found = {one.name: score_task(model, one, reader, share, execute_code=execute_code) for one in prepared}
    return {name: score for name, score in found.items() if score is not None}
