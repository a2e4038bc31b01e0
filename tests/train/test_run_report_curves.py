"""Curves of a run report: block means against a plain loop, and what a chart shows of branches and windows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.ledger import ledger_dtype
from train.report.curves import (
    MEAN_STEPS,
    MOST_LINES,
    BranchCurve,
    Marks,
    block_means,
    loss_chart,
    norm_chart,
    share_chart,
    source_loss_chart,
)

VALUES = st.floats(-10, 10) | st.sampled_from([math.nan, math.inf])


@given(st.lists(st.tuples(VALUES, st.integers(0, 5)), max_size=60), st.integers(0, 40))
def test_block_means_equal_a_plain_loop(pairs: list[tuple[float, int]], first_step: int) -> None:
    step_N = np.arange(first_step, first_step + len(pairs))
    value_N = np.array([value for value, _ in pairs], np.float64)
    weight_N = np.array([weight for _, weight in pairs], np.float64)
    blocks: dict[int, list[tuple[int, float, int]]] = {}
    for step, (value, weight) in zip(step_N.tolist(), pairs, strict=True):
        if math.isfinite(value) and weight:
            blocks.setdefault(step // MEAN_STEPS, []).append((step, value, weight))
    middles, means = block_means(step_N, value_N, weight_N)
    assert len(middles) == len(means) == len(blocks)
    for middle, mean, block in zip(middles, means, blocks.values(), strict=True):
        total = sum(weight for _, _, weight in block)
        assert mean == pytest.approx(sum(value * weight for _, value, weight in block) / total, abs=1e-9)
        assert middle == pytest.approx(sum(step * weight for step, _, weight in block) / total)


def test_long_runs_are_thinned() -> None:
    steps = np.arange(200_000)
    middles, means = block_means(steps, steps.astype(np.float64), np.ones(len(steps)))
    assert 1000 < len(middles) <= 3000
    np.testing.assert_allclose(means, middles)


def records(first: int, stop: int, loss: float) -> np.ndarray:
    rows = np.zeros(stop - first, ledger_dtype(2))
    rows["step"] = np.arange(first, stop)
    rows["loss"] = loss
    rows["label_count"] = 100
    rows["grad_norm"] = 2.0
    rows["source_labels_S"] = [75, 25]
    rows["source_loss_S"] = [75 * 3.0, 25 * 4.0]
    return rows


def test_a_loss_chart_shows_the_run_what_was_left_and_the_windows() -> None:
    kept, left = records(0, 64, 3.0), records(32, 64, 9.0)
    left["loss"][5] = np.nan
    curves = [BranchCurve(1, kept, is_left=False), BranchCurve(0, left, is_left=True)]
    chart = loss_chart(curves, Marks(cut=[(40, 56)], spikes=[(8, 12)], alarms=[44], backs=[32]))
    names = [trace["name"] for trace in chart.traces]
    assert names == ["each step", "mean of 8 steps", "left by a rollback (branch 0)"]
    assert chart.traces[1]["y"] == [3.0] * 8
    assert chart.traces[2]["y"] == [9.0] * 4
    drawn = [(shape["name"], shape["x0"], shape["x1"]) for shape in chart.layout["shapes"]]
    assert drawn == [("cut", 40, 56), ("suspected, not cut", 8, 12), ("alarm", 44, 44), ("back to here", 32, 32)]
    assert chart.traces[2]["opacity"] < 1
    assert not norm_chart(curves, Marks(), "update_norm").traces  # never measured
    for shown in (chart, norm_chart(curves, Marks())):
        json.dumps([*shown.traces, shown.layout], allow_nan=False)


def test_sources_are_shown_by_the_sums_of_the_ledger() -> None:
    rows = records(0, 32, 3.25)
    rows["source_labels_S"][16:] = [0, 100]
    rows["source_loss_S"][16:] = [0, 400]
    losses = source_loss_chart(["web", "code"], rows, Marks())
    assert [trace["y"] for trace in losses.traces] == [[3.0, 3.0], [4.0] * 4]
    shares = share_chart(["web", "code"], rows, {"web": [(0, 0.8), (16, 0.1)], "code": [(0, 0.2), (99, 1.0)]})
    by_name = {trace["name"]: trace for trace in shares.traces}
    assert by_name["web"]["y"] == [0.75, 0.75, 0.0, 0.0]
    assert (by_name["web, planned"]["x"], by_name["web, planned"]["y"]) == ([0.0, 16.0, 31.0], [0.8, 0.1, 0.1])
    assert by_name["code, planned"]["y"] == [0.2, 0.2]


def test_a_run_that_learned_nothing_has_charts_too() -> None:
    rows = records(0, 8, math.nan)
    rows["label_count"] = 0
    rows["source_labels_S"] = 0
    chart = loss_chart([BranchCurve(0, rows, is_left=False)], Marks())
    assert [trace["y"] for trace in chart.traces] == [[], []]
    assert all(trace["y"] == [] for trace in share_chart(["web", "code"], rows, {}).traces)


def test_a_chart_stays_small_however_much_there_is() -> None:
    rows = np.zeros(20_000, ledger_dtype(300))
    rows["step"] = np.arange(len(rows))
    rows["loss"], rows["label_count"], rows["grad_norm"] = 3.0, 100, 2.0
    rows["source_labels_S"] = np.arange(300)
    rows["source_loss_S"] = 3.0 * np.arange(300)
    names = [f"source {number}" for number in range(300)]
    planned = {name: [(0, 1 / 300)] for name in names}
    losses, shares = source_loss_chart(names, rows, Marks()), share_chart(names, rows, planned)
    assert [trace["name"] for trace in losses.traces] == names[-MOST_LINES:]  # those with the most tokens
    left = [BranchCurve(number, rows[:2000], is_left=True) for number in range(500)]
    loss = loss_chart([BranchCurve(500, rows, is_left=False), *left], Marks(cut=[(0, 1)] * 5000))
    assert len(loss.traces) == MOST_LINES + 2
    for chart in (losses, shares, loss):
        assert len(json.dumps([*chart.traces, chart.layout])) < 2_000_000
