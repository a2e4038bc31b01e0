"""The page of a run: what stood, what was left, what was cut and from which documents, with their text as text."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from plotly.offline import get_plotlyjs
from support.datasets import DatasetSpec, make_dataset
from support.runs import make_run, roll_back, train

from loader import cli, runs
from loader.order import SkipEntry
from loader.run_view import open_run
from loader.runs import RunPaths, append_event, lock_run, read_events
from loader.stream.batch import read_positions
from loader.text.records import RecordPlace
from loader.text.roots import TextSource
from train.report import run_report
from train.report.documents import MOST_SEGMENTS
from train.report.run_report import cut_windows, render_run_report
from train.report.segments import CutSegment, cut_segments
from train.spikes.rollback import RollbackRecord

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
        "documents": [
            {
                "document": f"{cut:016x}",
                "tokens": 123,
                "score": 4.5,
                "source": "planted",
                "evidence": {"surprise": 0.4, "pull": 1.2, "excess": 0.1, "order": 4.75, "squeeze": 3.5},
            }
        ],
        "finite": True,
        "raised": {"loss": 4.8, "expected_loss": 4.4, "z": 30.0, "raised": True},
    }
    reading = {"detector": "loss_step", "value": 4.8, "expected": 4.4, "z": 12.5}
    trial = {"loss": 4.75, "recovered_share": 0.1, "removed": False}
    with lock_run(paths):
        append_event(paths, "alarm", 0, 26, window=verdict["window"], readings=[reading])
        append_event(paths, "verdict", 0, 32, **verdict)
        for name in ("unmasked", "placebo"):
            append_event(paths, "trial", 0, 32, trial=name, **trial)
        append_event(paths, "confirm", 0, 32, decision="upheld", why="")
    stamp = train(paths, 0).plan.next_position(15)
    record = RollbackRecord(0, 24, 26, 32, 16, stamp, "mask", 4.8, 4.4)
    entry = SkipEntry("documents", "mask", stamp, documents=(cut, 1), reason="spike at step 26")
    roll_back(paths, 16, dataclasses.replace(entry, evidence=record.evidence()))
    train(paths, 24)
    with lock_run(paths):
        append_event(paths, "outcome", 1, 31, rollback=0, outcome="confirmed", loss=4.41, recovered_share=0.975)
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
    drawn = [(shape["name"], shape["x0"], shape["x1"]) for shape in loss["layout"]["shapes"]]
    assert drawn == [("cut", 24, 32), ("alarm", 26, 26), ("back to here", 16, 16)]
    assert cut_windows(read_events(paths)) == [(24, 32)]
    assert min(loss["data"][2]["x"]) >= 16
    told = (
        f"{cut:016x}", "spike at step 26", "9% of the window", "in no Dataset", "part0.jsonl", "4,567",
        "confirmed: the spike came back without the cut", "the loss of one step was too high (12.5 deviations)",
        "Verdict of the trials: upheld", "the same steps again, as many random innocents cut", "still there",
        "its word order says nothing: shuffled, it is hardly harder to predict (order 4.8)",
        "it compresses unlike its source: too repetitive, or too random (squeeze 3.5)",
        "it pulls on the model&#x27;s output weights unlike its source does (pull 1.2)", "98%",
    )  # fmt: skip
    for text in told:
        assert text in page, text
    assert "the model&#x27;s loss on it is far from that of its source (surprise" not in page
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


def test_cut_segments_are_those_that_the_left_branch_read(run: tuple[RunPaths, int]) -> None:
    """Against a walk over all that branch 0 read from the stamp on."""
    paths, cut = run
    view, left = open_run(paths.root), open_run(paths.root, 0)
    found, is_more = cut_segments(view, [[cut]], MOST_SEGMENTS)
    expected = []
    for step in range(16, 32):
        segments = read_positions(left.plan, left.sources, left.plan.step_positions(step)).segments
        for row in range(len(segments)):
            if int(segments.document_id_S[row]) == cut:
                start = int(segments.byte_start_S[row])
                expected.append((step, start, start + int(segments.byte_count_S[row]), int(segments.num_tokens_S[row])))
    assert expected
    assert [(one.step, one.byte_start, one.byte_stop, one.tokens) for one in found[:-1]] == expected[:20]
    assert is_more == (len(expected) > 20)
    assert {(one.document, one.source, one.path, one.record) for one in found[:-1]} == {
        (cut, "planted", found[0].path, found[0].record)
    }
    assert found[-1] == CutSegment(1, 1)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (SkipEntry("positions", "drop", 128, ranges=((200, 216), (90, 140))), "positions"),
        (SkipEntry("samples", "drop", 128, source="planted", ranges=((3, 5),)), "samples"),
        (SkipEntry("segments", "mask", 128, source="web", ranges=((4, 9),)), "segments"),
        (SkipEntry("source", "mask", 128, source="planted"), "source"),
    ],
)
def test_cuts_by_hand_are_told_too(tmp_path: Path, entry: SkipEntry, kind: str) -> None:
    texts = {"web": [f"web {n} " + "word " * 20 for n in range(40)], "planted": [f"planted {n}" for n in range(40)]}
    made = make_dataset(tmp_path, DatasetSpec(texts=texts))
    paths = make_run(tmp_path, [made])
    train(paths, 32)
    roll_back(paths, 16, dataclasses.replace(entry, reason="as we like"))
    view, left = open_run(paths.root), open_run(paths.root, 0)
    named = [next(d.id for d in made.documents.values() if d.source == "planted")]
    found, _ = cut_segments(view, [named], MOST_SEGMENTS)
    page = render_run_report(paths.root)
    assert "by hand: as we like" in page or kind == "positions"
    if kind == "positions":  # positions before the stamp stay what they are
        batch = read_positions(left.plan, left.sources, np.array([*range(128, 140), *range(200, 216)]))
        ids = batch.segments.document_id_S[~batch.segments.padding_S]
        assert [one.document for one in found] == ids.tolist()
        assert [one.step for one in found if one.step is not None] == [one.step for one in found]
        shapes = figures_of(page)[0]["layout"]["shapes"]
        assert [(one["x0"], one["x1"]) for one in shapes if one["name"] == "cut"] == [(16, 18), (25, 27)]
    elif kind == "source":
        assert {one.document for one in found} == set(named)
        read, _ = cut_segments(view, [[]], MOST_SEGMENTS)
        assert named[0] not in {one.document for one in read} or len(read) > len(found)
        assert {one.source for one in read} == {"planted"}
        assert all(one.step is not None and one.step >= 16 for one in read)
    else:
        dataset, source = made.open(), entry.source or ""
        table = dataset.segments_of(source, np.arange(len(made.samples[source])))
        rows = np.isin(table.sample_index_S, (3, 4)) if kind == "samples" else np.isin(table.segment_S, range(4, 9))
        assert [one.document for one in found] == table.document_id_S[rows & ~table.padding_S].tolist()


def test_each_lineage_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run with three branches and an entry by hand, whose marks ask for the ledgers as the curves do."""
    paths = make_run(tmp_path, [make_dataset(tmp_path, DatasetSpec())])
    train(paths, 12)
    roll_back(paths, 8, SkipEntry("positions", "drop", 64, ranges=((70, 80),)))
    train(paths, 12)
    roll_back(paths, 4)
    train(paths, 12)
    asked: list[int | None] = []

    def ledger_of(paths: RunPaths, branch: int | None = None, names: Sequence[str] | None = None) -> np.ndarray:
        asked.append(branch)
        return runs.ledger_of(paths, branch, names)

    monkeypatch.setattr(run_report, "ledger_of", ledger_of)
    shown = figures_of(render_run_report(paths.root))[0]["data"]
    assert asked == [0, 1]  # opening the run read that of the current branch
    lengths = {trace["name"]: len(trace["x"]) for trace in shown}
    assert lengths["each step"] == 4 + 12
    assert {name for name in lengths if "left by" in name} == {f"left by a rollback (branch {n})" for n in (0, 1)}


def test_texts_are_the_segments_own(run: tuple[RunPaths, int]) -> None:
    paths, _ = run
    view = open_run(paths.root)
    page = render_run_report(paths.root)
    found, _ = cut_segments(view, [[]], MOST_SEGMENTS)
    reader = TextSource(view.sources.datasets[0], {})
    for one in found[:5]:
        place = RecordPlace(one.record_start, one.record)
        text = reader.texts(one.file, [place])[place].encode()[one.byte_start : one.byte_stop].decode()
        assert f'<td class="t"><div>{html.escape(text)}</div></td>' in page


def test_a_long_story_stays_a_small_page(tmp_path: Path) -> None:
    """A page is the plotting library and what is bounded; here many cuts, events and alarms."""
    made = make_dataset(tmp_path, DatasetSpec(texts={"web": ["\x01<" * 400] * 60}))
    paths = make_run(tmp_path, [made])
    train(paths, 4)
    documents = tuple(made.documents)
    entries = [SkipEntry("documents", "mask", 0, documents=documents, reason=f"cut {n}") for n in range(320)]
    roll_back(paths, 0, *entries)
    window = {"start": 0, "alarm": 2, "stop": 4}
    with lock_run(paths):
        for number in range(300):
            append_event(paths, "verdict", 0, 4, window=window, action="report", why="\x02" * 300, rollback=number)
    page = render_run_report(paths.root)
    assert len(page.encode()) - len(get_plotlyjs().encode()) < 4_000_000
    assert page.count('<td class="t">') == MOST_SEGMENTS
