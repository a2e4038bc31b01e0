"""Evaluations as the report shows them: scores and losses that are no numbers are said, not drawn."""

from __future__ import annotations

import json

import pytest

from loader.page import Chart, Table
from loader.runs import Branch
from train.report.scores import evaluations_in_force, held_out_blocks, score_blocks


@pytest.mark.parametrize("word", ["nan", "inf", float("nan")])
def test_a_loss_that_is_no_number_is_said_and_not_drawn(word: object) -> None:
    """Events hold it as a word; an evaluation of broken parameters gives one."""
    events = [
        {"kind": "evaluation", "step": 4, "loss": 2.5, "source_loss": {"web": 2.0, "code": 3.0}},
        {"kind": "evaluation", "step": 8, "loss": word, "source_loss": {"web": word, "code": 3.0}},
    ]
    chart, _, table = held_out_blocks(events)
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert [trace["y"] for trace in chart.traces] == [[2.5, None], [2.0, None], [3.0, 3.0]]
    json.dumps(chart.traces, allow_nan=False)
    assert list(table.rows)[-1][2] == f"web {word}, code 3.0000"


def test_a_score_that_is_no_number_is_said_and_not_drawn() -> None:
    score = {
        "metric": "bits", "value": "nan", "errors": {"bits": "nan"}, "scores": {"bits": "nan", "accuracy": 0.5},
        "chance": None, "items": 3, "shots": 0, "cut": 0,
    }  # fmt: skip
    chart, table = score_blocks([{"kind": "evaluation", "step": 4, "tasks": {"piqa": score}}])
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert chart.traces[0]["y"] == [None]
    json.dumps(chart.traces, allow_nan=False)
    assert next(iter(table.rows)) == ("piqa", "bits", "nan", "nan", "-", 3, 0, 0, "bits nan, accuracy 0.5")


def test_an_evaluation_behind_a_rollback_replaces_those_from_its_step_on() -> None:
    events = [
        {"kind": "evaluation", "step": step, "loss": loss, "source_loss": {"web": loss}}
        for step, loss in ((4, 4.0), (8, 3.0), (12, 2.0), (8, 3.5), (10, 3.25))
    ]
    chart, *_ = held_out_blocks(events)
    assert isinstance(chart, Chart)
    assert [(trace["x"], trace["y"]) for trace in chart.traces] == [([4, 8, 10], [4.0, 3.5, 3.25])] * 2


def test_evaluations_of_weights_that_a_rollback_left_are_not_shown() -> None:
    """Also where no later one replaces them."""
    branches = [Branch(number, parent, step, 0, 1, "") for number, parent, step in ((0, None, 0), (1, 0, 8), (2, 0, 5))]
    events = [
        {"kind": "evaluation", "branch": branch, "step": step}
        for branch, step in ((0, 4), (0, 5), (0, 6), (0, 8), (1, 9), (1, 4), (2, 6))
    ]
    kept = evaluations_in_force([{"kind": "start", "branch": 0, "step": 0}, *events], branches)
    assert [(event["branch"], event["step"]) for event in kept] == [(0, 4), (0, 5), (2, 6)]
    kept = evaluations_in_force(events, branches[:2])
    assert [(event["branch"], event["step"]) for event in kept] == [(0, 4), (0, 5), (0, 6), (0, 8), (1, 9), (1, 4)]
