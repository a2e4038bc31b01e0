"""A run that went over to other data: what was learned from which source, by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from loader.ledger import ledger_dtype
from loader.remap import remap_run
from loader.run_folder import RunPaths
from loader.run_view import open_run
from loader.runs import ledger_of
from loader.source_columns import by_source, columns_of, columns_of_attempts
from train.report.run_report import render_run_report


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps over (a, b), two over (zeta, b)."""
    folder = tmp_path_factory.mktemp("gone")
    first = make_dataset(folder, DatasetSpec(documents={"a": 20, "b": 9}, seq_len=32))
    other = make_dataset(folder, DatasetSpec(documents={"zeta": 25, "b": 9}, seq_len=32, seed=1), name="other")
    job = write_job(folder, first.path, checkpoint={"every_steps": 2, "keep_last": 9})
    train(job, "steps=6")
    remap_run(folder / "run", [str(other.path)])
    value = yaml.safe_load(job.read_text())
    value["data"]["datasets"] = [os.path.relpath(other.path, folder)]
    job.write_text(yaml.safe_dump(value))
    train(job, "steps=8")
    return folder / "run"


def test_columns_are_those_of_the_names(root: Path) -> None:
    raw_N, view = ledger_of(RunPaths(root)), open_run(root)
    assert view.sources.names == ("zeta", "b"), "the columns of a and of zeta have the same number"
    assert raw_N["source_labels_S"].shape == (8, 2)
    assert view.ledger_N["source_labels_S"][:6].tolist() == [[0, labels] for labels in raw_N["source_labels_S"][:6, 1]]
    assert view.ledger_N["source_labels_S"][6:].tolist() == raw_N["source_labels_S"][6:].tolist()
    assert view.ledger_N["loss"].tolist() == raw_N["loss"].tolist()
    assert raw_N["source_labels_S"][:6, 0].sum() > 0


def test_the_report_credits_nobody_else(root: Path) -> None:
    raw_N, page = ledger_of(RunPaths(root)), render_run_report(root)
    gone = int(raw_N["source_labels_S"][:6, 0].sum())
    zeta = int(raw_N["source_labels_S"][6:, 0].sum())
    table = page.partition("<h2>Sources</h2>")[2].partition("</table>")[0]
    cells = [row.partition("</tr>")[0] for row in table.split("<tr")]
    (earlier,) = [row for row in cells if "of earlier Datasets" in row]
    (own,) = [row for row in cells if ">zeta<" in row]
    assert f">{gone:,}<" in earlier
    assert f">{zeta:,}<" in own
    facts = page.partition("<h2>Summary</h2>")[2].partition("<h2>")[0]
    assert "went over to other data" in facts
    assert "back to here" not in page, "nothing was rolled back"


def test_attempts_that_say_nothing_go_by_number() -> None:
    records_N = np.zeros(2, ledger_dtype(2))
    records_N["source_labels_S"] = [[1, 2], [3, 4]]
    assert columns_of_attempts([{"kind": "start", "branch": 0, "attempt": 0}]) == {}
    assert by_source(records_N, None, ["x", "y", "z"])["source_labels_S"].tolist() == [[1, 2, 0], [3, 4, 0]]
    assert by_source(records_N, ("y", "w"), ["x", "y"])["source_labels_S"].tolist() == [[0, 1], [0, 3]]
    assert by_source(records_N, ("x", "y"), ["x", "y"]) is records_N


def test_an_attempt_without_an_event_has_the_columns_of_its_branch() -> None:
    columns = {(0, 0): ("a", "b"), (1, 0): ("x", "b"), (1, 2): ("x", "b", "c")}
    assert columns_of(columns, 0, 0) == columns_of(columns, 0, 7) == ("a", "b")
    assert columns_of(columns, 1, 0) == ("x", "b")
    assert columns_of(columns, 1, 1) == ("x", "b", "c")
    assert columns_of(columns, 2, 0) is None
