"""The speed section of a run's report: what it takes from metrics.jsonl, and what it passes over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from loader.ledger import ledger_dtype
from loader.page import Chart, Prose, Table
from train.report.run_report import render_run_report
from train.report.speed import read_speed, speed_blocks


def test_lines_of_the_lineage_count_and_nothing_else(tmp_path: Path) -> None:
    records_N = np.zeros(6, ledger_dtype(0))
    records_N["step"], records_N["branch"] = np.arange(6), [0, 0, 0, 1, 1, 1]
    lines = [{"branch": 0, "step": step, "tokens_per_s": 100.0 + step, "mfu": None} for step in range(6)]
    lines += [{"branch": 1, "step": step, "tokens_per_s": 200.0 + step} for step in range(3, 5)]
    lines += [{"branch": 1, "step": 4, "held_out_loss": 3.0}, {"step": 1}]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes("\n".join([*map(json.dumps, lines), "[1]", "null", '{"branch": 1, "st']).encode() + b"\xff\n")
    found = read_speed(path, records_N)
    np.testing.assert_array_equal(found["tokens_per_s"], [100, 101, 102, 203, 204, np.nan])
    assert np.isnan(found["mfu"]).all()
    events = [{"kind": "warning", "branch": 1, "step": 4, "what": "mfu", "share": 0.2, "limit": 0.3}, {"kind": "start"}]
    chart, table = speed_blocks(path, records_N, events)
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert table.rows == [(1, 4, "mfu", 0.2, 0.3)]
    (nothing,) = speed_blocks(tmp_path / "missing", records_N, [])
    assert isinstance(nothing, Prose)


def test_a_report_shows_how_fast_the_run_was(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32, documents={"web": 30, "code": 20}))
    train(write_job(tmp_path, made.path, run={"peak_tflops": 0.1}, steps=3))
    text = render_run_report(tmp_path / "run")
    assert "Speed" in text
    assert "Model FLOPs utilisation" in text
    assert "waiting for data" in text
