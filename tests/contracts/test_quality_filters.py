"""What every quality filter of ours must hold: an entry of the table without its row here does not exist."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dataprep.quality import FILTERS, check_steps
from dataprep.quality.check import make_steps
from dataprep.quality.judges import Judge
from dataprep.screen_config import QualityStep

PROSE = (
    "The ferry was late again, and nobody on the pier seemed to mind it. She had written to the museum with three\n"
    "questions about the map and the ink. It is said that the bridge was paid for with salt, which is why it rusts.\n"
    "In the north they bake it with rye; where the ground is too wet for that, barley will do.\n\n"
    "Über die Brücke fuhr ein Zug, and a child counted its wagons with care, because a bet depended on them.\n"
)


@dataclass(frozen=True)
class Row:
    """A filter's example: texts that stay, and one text for each reason."""

    options: Mapping[str, Any]
    stays: tuple[str, ...]
    falls: Mapping[str, str]
    more_reasons: bool = False


WORDS = tuple(
    "".join(letters)
    for letters in zip("abcdefghijklmnopqrst", "nopqrstuvwxyzabcdefg", "eiouaeiouaeiouaeioua", strict=True)
)
PASSAGE = " ".join(WORDS[:12])
CLAUSES = PROSE.replace("\n", " ").replace(";", ",").split(",")


ROWS: Mapping[str, Row] = {
    "gopher_repetition": Row(
        {"dup_n_grams": [[5, 0.05], [10, 0.2]]},
        (PROSE, "\n".join(f"{word} {number}" for number, word in enumerate(PROSE.split()))),
        {
            "dup_para_frac": "one\n\none\n\none\n\n" + PROSE.replace("\n", " "),
            "dup_para_char_frac": f"{PROSE}\n\n{PROSE}\n\n" + "\n\n".join(WORDS),
            "dup_line_frac": "one\none\none\none\none\n" + PROSE,
            "dup_line_char_frac": PROSE + PROSE.replace("The", "A") + "\n".join(WORDS),
            "top_2_gram": "of the " * 30 + PROSE.replace("\n", " "),
            "top_3_gram": "it is remembered everywhere".join(CLAUSES),
            "duplicated_5_n_grams": f"{PASSAGE} {PROSE} {PASSAGE}",
        },
        more_reasons=True,
    ),
    "periodic": Row(
        {},
        (PROSE, "a" * 31 + PROSE, "-" * 200 + "\n" + PROSE * 2, "ha " * 31 + PROSE, "\n".join(WORDS)),
        {"periodic_words": PROSE + "ha ha he " * 32, "periodic_bytes": PROSE * 9 + "\\" * 1024},
    ),
    "gopher_quality": Row(
        {"min_doc_words": 20, "max_doc_words": 300},
        (PROSE, PROSE.replace("\n", "\n- "), PROSE.replace("the", "THE")),
        {
            "gopher_short_doc": "of the few and the many",
            "gopher_long_doc": PROSE * 6,
            "gopher_below_avg_threshold": PROSE + "a " * 60,
            "gopher_above_avg_threshold": PROSE.replace("and", "incomprehensibilities" * 12),
            "gopher_too_many_hashes": PROSE + "#" * 20,
            "gopher_too_many_ellipsis": PROSE + ". ...\u2026" * 8,
            "gopher_too_many_bullets": "- " + "\n \u2022 ".join(PROSE.split()),
            "gopher_too_many_end_ellipsis": PROSE.replace("\n", "...\n"),
            "gopher_below_alpha_threshold": PROSE + "1874 " * 40,
            "gopher_enough_stop_words": "quite another language without any little words " * 4,
        },
    ),
    "length": Row(
        {"min_words": 3, "max_words": 8, "min_bytes": 6, "max_bytes": 60},
        ("three words stay", "中文字", "a b c d e f g h"),
        {"min_words": "two words", "max_words": "a b c d e f g h i", "min_bytes": "a b c", "max_bytes": "abc " * 16},
    ),
}


def test_every_filter_has_its_row() -> None:
    assert ROWS.keys() == FILTERS.keys()


@pytest.fixture(params=sorted(FILTERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def judge_of(name: str) -> Judge:
    made = make_steps([QualityStep(filter=name, options=ROWS[name].options)])[0][1]
    assert isinstance(made, Judge)
    return made


def verdicts(judge: Judge, texts: list[str]) -> list[str]:
    found: NDArray[np.uint8] = judge.judge(pa.array(texts, pa.large_string()))
    assert found.dtype == np.uint8
    assert len(found) == len(texts)
    return ["" if verdict == 0 else judge.reasons[verdict - 1] for verdict in found.tolist()]


def test_each_reason_has_a_text_that_falls_for_it(name: str) -> None:
    row, judge = ROWS[name], judge_of(name)
    assert verdicts(judge, list(row.stays)) == [""] * len(row.stays)
    assert dict(zip(row.falls, verdicts(judge, list(row.falls.values())), strict=True)) == {
        why: why for why in row.falls
    }
    assert row.more_reasons or set(row.falls) == set(judge.reasons)
    assert all(reason.isascii() and len(reason) < 60 for reason in judge.reasons)
    assert len(judge.reasons) < 255


def test_a_verdict_depends_on_the_text_alone(name: str) -> None:
    row, judge = ROWS[name], judge_of(name)
    randomness = random.Random(7)
    texts = [*row.stays, *row.falls.values(), "x", "\n", "é" * 70]
    alone = {text: verdicts(judge, [text])[0] for text in texts}
    for _ in range(5):
        mixed = randomness.choices(texts, k=40)
        assert verdicts(judge, mixed) == [alone[text] for text in mixed]
    array = pa.array(["before it", *texts, "after it"], pa.large_string()).slice(1, len(texts))
    assert judge.judge(array).tolist() == judge.judge(pa.array(texts, pa.large_string())).tolist()
    assert judge.judge(pa.array([], pa.large_string())).tolist() == []


def test_hostile_texts_cost_no_more_than_others(name: str) -> None:
    judge = judge_of(name)
    texts = ["a" * 3_000_000, "😀" * 200, "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=\n" * 50_000, "\n" * 1_000_000 + "x"]
    texts += ["a b " * 500_000, "中" * 500_000, "\u0301" * 500_000, "a\n" * 500_000, "ab\n\n" * 300_000]
    assert len(verdicts(judge, texts)) == len(texts)


def test_defaults_are_options_that_can_be_written(name: str) -> None:
    made = ROWS[name].options if name == "length" else {}
    defaults = dataclasses.asdict(FILTERS[name].options(**made))
    written = json.loads(json.dumps(defaults))
    check_steps([QualityStep(filter=name, options=written)])
    assert dataclasses.fields(FILTERS[name].options)
    assert all(one.default is not dataclasses.MISSING for one in dataclasses.fields(FILTERS[name].options))
