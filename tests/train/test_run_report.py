"""The page of a run: what stood, what was left, what was cut and from which documents, with their text as text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.runs import make_run, roll_back, train

from loader import cli
from loader.order import SkipEntry
from loader.runs import RunPaths, append_event, lock_run
from train.report.run_report import render_run_report

HOSTILE = "</script><script>alert('planted')</script> & so on " * 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunPaths, int]:
    """A run of 40 steps whose steps 24..31 were cut by a rollback to step 16; and the document that was cut."""
    folder = tmp_path_factory.mktemp("report")
    texts = {"web": [f"web {n} " + "word " * 30 for n in range(60)], "planted": [HOSTILE] * 8}
    made = make_dataset(folder, DatasetSpec(texts=texts))
    cut = next(document.id for document in made.documents.values() if document.source == "planted")
    paths = make_run(folder, [made])
    train(paths, 32)
    verdict = {
        "window": {"start": 24, "alarm": 26, "stop": 32},
        "action": "mask",
        "why": "9% of the window's tokens are flagged",
        "rollback": 0,
        "checkpoint_step": 16,
        "flagged_tokens": 123,
        "window_tokens": 4567,
        "sources": {"planted": {"window_tokens": 500, "flagged_tokens": 123, "whole": True}},
        "documents": [{"document": f"{cut:016x}", "tokens": 123, "score": 4.5}],
    }
    with lock_run(paths):
        append_event(paths, "verdict", 0, 32, **verdict)
    stamp = train(paths, 0).plan.next_position(15)
    roll_back(paths, 16, SkipEntry("documents", "mask", stamp, documents=(cut, 1), reason="spike at step 26"))
    train(paths, 24)
    return paths, cut


def figures_of(page: str) -> list[dict]:
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


def test_the_page_tells_the_story(run: tuple[RunPaths, int]) -> None:
    paths, cut = run
    page = render_run_report(paths.root)
    loss = figures_of(page)[0]
    assert [trace["name"] for trace in loss["data"]] == [
        "each step",
        "mean of 8 steps",
        "left by a rollback (branch 0)",
    ]
    assert loss["data"][0]["x"] == list(range(40))
    assert [(shape["x0"], shape["x1"]) for shape in loss["layout"]["shapes"]] == [(24, 32)]
    assert min(loss["data"][2]["x"]) >= 16
    for text in (f"{cut:016x}", "spike at step 26", "9% of the window", "in no Dataset", "planted/", "4,567"):
        assert text in page
    assert "alert(" in page
    assert "<script>alert" not in page


def test_the_verb_writes_it(run: tuple[RunPaths, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths, _ = run
    assert cli.main(["report", str(paths.root), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "run"
    assert Path(said["report"]) == paths.root / "report.html"
    assert cli.main(["report", str(paths.root), "--out", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").read_bytes() == (paths.root / "report.html").read_bytes()
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "TR-PATH-KIND" in capsys.readouterr().err


def test_a_run_without_steps_has_a_page(tmp_path: Path) -> None:
    paths = make_run(tmp_path, [make_dataset(tmp_path)])
    assert "No step has been done yet." in render_run_report(paths.root)


def test_a_missing_input_file_is_said_and_not_fatal(tmp_path: Path) -> None:
    made = make_dataset(tmp_path)
    paths = make_run(tmp_path, [made])
    document = next(iter(made.documents))
    roll_back(paths, 0, SkipEntry("documents", "mask", 0, documents=(document,), reason="test"))
    for file in made.corpus.rglob("*.jsonl"):
        file.unlink()
    assert re.search(r"\(TR-[A-Z-]+: ", render_run_report(paths.root))
