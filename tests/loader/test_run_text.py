"""The timeline of a run in words: short, on one line an event, and harmless for a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from loader.run_text import history_text


def line_of(**fields: Any) -> str:
    event = {"kind": "verdict", "branch": 0, "step": 7, "time_s": 0.0, **fields}
    text = history_text({"run_id": "r", "current_branch": 0, "branches": [], "skips": [], "events": [event]})
    return text.splitlines()[-1].split("verdict", 1)[1].strip()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5.013743588096874, "5.014"),
        ({"alarm": 128, "stop": 136}, "alarm:128,stop:136"),
        ([{"detector": "loss_step", "z": 7.123456}, {"detector": "grad_norm", "z": 9.0}], "loss_step,grad_norm"),
        ([{"document": f"{n:016x}", "evidence": {}} for n in range(19)], "(19 entries)"),
        ({name: {"flagged": 1} for name in "abc"}, "(3 entries)"),
        (["web", "code"], "web,code"),
        (True, "True"),
        ("bad\x1b[2J name", "bad [2J name"),
        ({"\x1b[2J": "\x07"}, " [2J: "),
    ],
)
def test_a_value_is_short(value: Any, shown: str) -> None:
    assert line_of(given=value) == f"given={shown}".strip()


def test_what_is_not_known_is_left_out() -> None:
    assert line_of(checkpoint=None, attempt=0) == "attempt=0"
