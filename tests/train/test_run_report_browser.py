"""The page of a run in a real browser: what it draws, how its tables filter, and that text of documents is only text.

One run with documents that attack the page, made without a trainer, and (slow) one that really trained, spiked, tried,
rolled back and cut. Each page is loaded once; the tests ask the tab.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chromium import Chromium, Page
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, roll_back
from support.runs import train as count_steps
from support.training import train, write_job

from loader.order import SkipEntry
from loader.runs import RunPaths, append_event, lock_run, read_events, read_skips
from train.report.run_report import write_run_report
from train.spikes.rollback import RollbackRecord

ATTACKS = (
    "</script><script>window.planted=1;alert('planted')</script>",
    "<img src=x onerror=\"window.planted=2\"><svg onload='window.planted=3'>",
    "line\u2028separator\u2029paragraph \u202ertl \x00 nul \x1b[31m",
    "</div></td></table></section></main><base href='http://127.0.0.1:9/'><iframe src='javascript:window.planted=4'>",
    "<a href='javascript:window.planted=5'>x</a><style>*{display:none}</style><link rel=stylesheet href=//127.0.0.1:9>",
    "<!-- --><![CDATA[<b>]]>&lt;script&gt;window.planted=6&lt;/script&gt; ${window.planted=7} {{7*7}}",
)
LONG = "<img src=x onerror=window.planted=8>" * 30_000  # more than a megabyte
WINDOW = {"start": 24, "alarm": 26, "stop": 32}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser")) as one:
        yield one


def cut_run(folder: Path, made: MadeDataset) -> RunPaths:
    """A run of 40 steps whose steps 24..31 were cut by a rollback to step 16: all documents of the planted source."""
    paths = make_run(folder, [made])
    count_steps(paths, 32)
    cut = tuple(document.id for document in made.documents.values() if document.source == "planted")
    flagged = [
        {"document": f"{one:016x}", "tokens": 9, "score": 3.2, "source": "planted", "evidence": {"order": 4.0}}
        for one in cut
    ]
    verdict = {"window": WINDOW, "action": "mask", "why": ATTACKS[0], "rollback": 0, "documents": flagged}
    stamp = count_steps(paths, 0).plan.next_position(15)
    record = RollbackRecord(0, 24, 26, 32, 16, stamp, "mask", 4.8, 4.4)
    entry = SkipEntry("documents", "mask", stamp, None, (), cut, "spike at step 26", record.evidence())
    with lock_run(paths):
        append_event(paths, "verdict", 0, 32, **verdict, checkpoint_step=16, flagged_tokens=9, window_tokens=90)
        append_event(paths, ATTACKS[1], 0, 32, note=ATTACKS[3])
    roll_back(paths, 16, entry, SkipEntry("documents", "drop", stamp, documents=tuple(made.documents)[:1]))
    count_steps(paths, 24)
    return paths


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose cut documents attack it."""
    folder = tmp_path_factory.mktemp("attacked")
    clean = [f"web {n} " + "word " * 30 for n in range(60)]
    texts = {"web": [*ATTACKS, *clean], "planted": [*ATTACKS, LONG[:200_000], *ATTACKS]}
    made = make_dataset(folder, DatasetSpec(texts=texts, seq_len=512))
    return write_run_report(cut_run(folder, made).root)


@pytest.fixture(scope="module")
def page(browser: Chromium, attacked: Path) -> Page:
    return browser.open(attacked)


def test_documents_that_attack_the_page_are_text(page: Page, attacked: Path) -> None:
    assert (page.errors, page.requests, page.dialogs) == ([], [], [])
    assert page.evaluate("window.planted") is None
    assert page.evaluate("document.querySelectorAll('main img, main iframe, main a, main base, main link').length") == 0
    kinds = page.evaluate("[...document.scripts].map(one => one.type)")
    assert kinds.count("") == 2
    assert set(kinds) == {"", "application/json"}
    shown = page.evaluate("[...document.querySelectorAll('td.t')].map(one => one.textContent)")
    for attack in ATTACKS:
        visible = re.sub("[\x00\x1b\u202e]", lambda found: f"\\u{{{ord(found[0]):x}}}", attack)
        assert any(visible in text for text in shown), attack
    assert any(text.startswith(LONG[:300]) for text in shown)
    assert max(map(len, shown)) < 4000
    assert attacked.stat().st_size < 6_000_000


def shapes_of(page: Page, chart: int = 0) -> list[dict[str, Any]]:
    """The shapes of a chart as they were drawn: name, steps, and the width of the drawn path in pixels."""
    found = page.evaluate(
        f"""(() => {{ const box = document.querySelectorAll('.chart')[{chart}];
        const drawn = [...box.querySelectorAll('.shapelayer path')].map(path => path.getBoundingClientRect().width);
        return box._fullLayout.shapes.map((one, at) =>
          ({{name: one.name, x0: one.x0, x1: one.x1, drawn: drawn.length, fill: one.fillcolor}})); }})()"""
    )
    return list(found)


def test_the_cut_range_is_shaded_and_the_left_branch_is_faint(page: Page) -> None:
    shapes = shapes_of(page)
    assert [(one["name"], one["x0"], one["x1"]) for one in shapes] == [
        ("cut", 24, 32),
        ("alarm", 26, 26),
        ("back to here", 16, 16),
    ]
    assert shapes[0]["drawn"] == 3
    widths = page.evaluate(
        "(() => { const box = document.querySelector('.chart'); const per = box._fullLayout.xaxis._length /"
        " (box._fullLayout.xaxis.range[1] - box._fullLayout.xaxis.range[0]);"
        " return [...box.querySelectorAll('.shapelayer path')].map(p => p.getBBox().width / per); })()"
    )
    assert widths[0] == pytest.approx(8, abs=0.2)  # steps
    lines = page.evaluate(
        "(() => { const box = document.querySelector('.chart');"
        " return [...box.querySelectorAll('.scatterlayer .trace')].map((one, at) =>"
        " [box._fullData[at].name, box._fullData[at].opacity, one.querySelector('.lines path').getBBox().width]); })()"
    )
    assert [name for name, _, _ in lines] == ["each step", "mean of 8 steps", "left by a rollback (branch 0)"]
    assert lines[2][1] < 1
    assert lines[2][2] > 10
    legend = page.evaluate(
        "[...document.querySelectorAll('.chart')[0].querySelectorAll('.legendtext')].map(t => t.textContent)"
    )
    assert {"cut", "alarm", "back to here", "left by a rollback (branch 0)"} <= set(legend)


SEGMENTS = "[...document.querySelectorAll('[data-filter]')].find(box => box.querySelector('td.t'))"


def visible_rows(page: Page) -> list[list[str]]:
    """Cells of the rows of the table of cut segments that are shown."""
    rows = page.evaluate(
        f"[...{SEGMENTS}.querySelectorAll('tbody tr')].filter(row => row.offsetHeight > 0)"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return list(rows)


def test_the_segments_filter_by_words_and_by_source_with_the_keyboard(page: Page) -> None:
    everything = visible_rows(page)
    sources = {row[1] for row in everything}
    assert sources == {"planted", "web"}
    page.evaluate(f"{SEGMENTS}.previousElementSibling.querySelector('input').focus()")
    page.write("ONERROR planted")
    found = visible_rows(page)
    assert 0 < len(found) < len(everything)
    assert all("onerror" in " ".join(row).lower() and row[1] == "planted" for row in found)
    told = page.evaluate(f"{SEGMENTS}.previousElementSibling.querySelector('output').textContent")
    assert told == f"{len(found)} of {len(everything)} rows"
    page.evaluate(f"{SEGMENTS}.previousElementSibling.querySelector('input').select()")
    page.press("Backspace")
    assert len(visible_rows(page)) == len(everything)
    page.press("Tab")  # the list of entries
    page.press("Tab")  # that of sources
    page.write("web")
    assert {row[1] for row in visible_rows(page)} == {"web"}
    page.press("Home")
    assert visible_rows(page) == everything


def contrast(page: Page, element: str) -> float:
    """Contrast of an element's text with the page, as WCAG 2 defines it."""
    ratio = page.evaluate(
        f"""(() => {{ const one = document.querySelector('{element}'), style = getComputedStyle(one);
        const number = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
        const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
        const text = light(number(one.ownerSVGElement ? style.fill : style.color));
        const back = light(number(getComputedStyle(document.body).backgroundColor));
        return (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05); }})()"""
    )
    return float(ratio)


TEXTS = ("td", "th", ".dim", ".xtick text", ".legendtext", ".shapelabel, .shape-label text, .legendtext")


def test_it_can_be_read_in_the_light_and_in_the_dark(browser: Chromium, page: Page, attacked: Path) -> None:
    dark = browser.open(attacked, dark=True, width=700)
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
    for one in (page, dark):
        for element in TEXTS:
            assert contrast(one, element) >= 4.5, element
        colours = one.evaluate("[...document.querySelector('.chart')._fullData].map(line => line.line.color)")
        assert len(set(colours)) == 2  # the run, and what was left
    assert dark.evaluate(
        "document.documentElement.scrollWidth <= window.innerWidth"
    )  # tables scroll, the page does not


def test_it_can_be_read_without_scripts(browser: Chromium, attacked: Path) -> None:
    text = browser.open(attacked, scripts=False).visible_text()
    assert "its word order says nothing" in text
    assert "&lt;img src=x onerror" in text
    assert "which is switched off" in text
    assert "<select" not in text


def planted_texts() -> dict[str, list[str]]:
    """Two sources of sentences, and one of noise."""
    rng = random.Random(3)
    words = ("the", "reel", "winds", "on", "under", "and", "while", "tokens", "stream", "past", "ends", "again")
    clean = {
        name: [" ".join(rng.choice(words) for _ in range(rng.randrange(4, 14))) for _ in range(500)]
        for name in ("web", "code")
    }
    noise = ["".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(25, 60))) for _ in range(150)]
    return {**clean, "planted": noise}


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained, met noise at step 64, confirmed by trials that it was the data, and cut it."""
    folder = tmp_path_factory.mktemp("spiked")
    made = make_dataset(folder, DatasetSpec(seq_len=64, texts=planted_texts()))
    stages: list[dict[str, Any]] = [
        {"start": 0, "weights": {"web": 0.5, "code": 0.5}},
        {"start": 512, "weights": {"web": 0.35, "code": 0.35, "planted": 0.3}},
    ]
    job = write_job(
        folder, made.path, steps=84,
        data={"datasets": ["data"], "batch": [{"start": 0, "global_batch": 8}], "mixture": stages},
        model={"dim": 32, "layers": 2, "heads": 2, "ffn": 64}, optimizer={"lr": 1e-2},
        checkpoint={"every_steps": 10, "keep_last": 9},
        spikes={
            "enabled": True, "patience": 6, "lead_steps": 4, "max_cut_fraction": 0.5, "confirm": "full",
            "detectors": {"warmup_steps": 30, "window_steps": 24},
            "attribution": {"baseline_segments": 300, "baseline_source_segments": 60},
        },
    )  # fmt: skip
    assert train(job).branch == 1
    return folder / "run"


@pytest.mark.slow
def test_a_stranger_can_say_what_was_cut_and_why(browser: Chromium, spiked: Path) -> None:
    """Every document that the run cut is named with its text, its place and a reason; the outcome stands in words."""
    page = browser.open(write_run_report(spiked))
    assert (page.errors, page.requests, page.dialogs) == ([], [], [])
    paths = RunPaths(spiked)
    (verdict,) = (event for event in read_events(paths) if event["kind"] == "verdict")
    named = {one["document"]: one for one in verdict["documents"]}
    rows = visible_rows(page)
    whole = [entry.source for entry in read_skips(paths) if entry.kind == "source"]
    assert {row[7] for row in rows} == set(named)
    texts = planted_texts()
    for row in rows:
        one = named[row[7]]
        assert (row[1], row[2], row[3]) == (one["source"], one["file"], str(one["record"]))
        assert ("its source was new to the run and was cut as a whole" in row[5]) == (row[1] in whole)
        odd = [name for name, value in one["evidence"].items() if value >= 1]
        assert not odd or any(f"({name} " in row[5] for name in odd)
        assert any(row[6].rstrip(" …") in text for text in texts[row[1]])
    text = page.evaluate("document.body.textContent")
    assert "confirmed: the spike came back without the cut" in text
    assert "Verdict of the trials: upheld." in text
    shapes = [one for one in shapes_of(page) if one["name"] == "cut"]
    assert [(one["x0"], one["x1"]) for one in shapes] == [(verdict["window"]["start"], verdict["window"]["stop"])]
    headings = page.evaluate("[...document.querySelectorAll('h2')].map(one => one.textContent)")
    assert headings[:5] == ["Summary", "Loss", "Spikes", "What is cut", "Spike 1"]
