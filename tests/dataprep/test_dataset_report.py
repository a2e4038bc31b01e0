"""The page of a Dataset: its facts against a plain count over the tables of the build, and the page in a browser."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builds import Built
from support.chromium import Chromium, Page
from support.datasets import DatasetSpec, make_dataset

from dataprep.report import dataset_page
from dataprep.report_facts import MOST_CLUSTERS, cluster_facts, reject_facts
from dataprep.tables import REMOVED_SCHEMA
from loader.cli import main


def bin_of(size: int) -> str:
    """The bin of a cluster of ``size`` documents."""
    first = 2
    while size > first:
        first *= 2
    return "2" if first == 2 else f"{first // 2 + 1}-{first}"


def removals(path: Path, sizes: list[int]) -> Path:
    """A removed.parquet in which document ``10**17 * (i + 1)`` caused ``sizes[i]`` removals, mixed; two by a filter."""
    rows: list[dict[str, Any]] = [{"document": number, "method": "quality", "reason": "short"} for number in (1, 2)]
    for round_number in range(max(sizes)):
        for index, size in enumerate(sizes):
            if round_number < size:
                witness = {"witness_document": 10**17 * (index + 1), "witness_source": "web", "witness_record": index}
                rows.append({"document": len(rows), "method": "minhash", "witness_file": "a.jsonl", **witness})
    pq.write_table(pa.Table.from_pylist(rows, REMOVED_SCHEMA), path)
    return path


@pytest.mark.parametrize("at_once", [1 << 24, 7, 1])
def test_clusters_are_counted_whole_in_one_pass_or_many(tmp_path: Path, at_once: int) -> None:
    sizes = [1, 1, 2, 3, 4, 7, 8, 1]
    found = cluster_facts(removals(tmp_path / "removed.parquet", sizes), at_once)
    assert dict(found["sizes"]) == Counter(bin_of(size + 1) for size in sizes)
    assert [one["removed"] for one in found["largest"]] == sorted(sizes, reverse=True)
    largest = found["largest"][0]
    assert (largest["document"], largest["source"], largest["file"], largest["record"]) == (
        f"{7 * 10**17:016x}",
        "web",
        "a.jsonl",
        6,
    )
    assert json.loads(json.dumps(found)) == found


def test_the_list_of_clusters_is_bounded_and_may_be_empty(tmp_path: Path) -> None:
    many = cluster_facts(removals(tmp_path / "many.parquet", [1] * (2 * MOST_CLUSTERS)), 4)
    assert len(many["largest"]) == MOST_CLUSTERS
    assert many["sizes"] == [["2", 2 * MOST_CLUSTERS]]
    empty = tmp_path / "none.parquet"
    pq.write_table(pa.Table.from_pylist([], REMOVED_SCHEMA), empty)
    assert cluster_facts(empty) == {"sizes": [], "largest": []}


def test_facts_are_those_of_the_tables(built: Built) -> None:
    dataset = built.datasets[0]
    accounting = dataset.manifest.accounting
    removed = pq.read_table(dataset.path / "removed.parquet").to_pylist()
    duplicates = Counter(row["witness_document"] for row in removed if row["witness_document"] is not None)
    assert duplicates
    clusters = accounting["dedup"]["clusters"]
    assert dict(clusters["sizes"]) == Counter(bin_of(n + 1) for n in duplicates.values())
    assert {int(one["document"], 16): one["removed"] for one in clusters["largest"]}.items() <= duplicates.items()
    rejected = Counter(
        (row["source"], row["reason"]) for row in pq.read_table(dataset.path / "rejected.parquet").to_pylist()
    )
    assert rejected
    told = {
        (source, reason): one["records"]
        for source, part in accounting["rejects"].items()
        for reason, one in part.items()
    }
    assert told == rejected
    for source, lengths in accounting["lengths"].items():
        texts = [len(text.encode()) for place, text in built.corpus.texts.items() if place[0] == source]
        row = accounting["sources"][source]
        read, kept = lengths["read"], lengths["kept"]
        assert (read["documents"], read["bytes"], read["longest"]) == (len(texts), sum(texts), max(texts))
        assert (kept["documents"], kept["bytes"]) == (row["kept"], row["kept_bytes"])
        by_bits = Counter(size.bit_length() for size in texts)
        assert read["by_bits"] == [by_bits[bits] for bits in range(max(by_bits) + 1)]


def test_rejects_name_the_first_of_each_reason(built: Built) -> None:
    path = built.datasets[0].path / "rejected.parquet"
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in pq.read_table(path).to_pylist():
        first.setdefault((row["source"], row["reason"]), row)
    for source, reasons in reject_facts(path).items():
        for reason, one in reasons.items():
            row = first[source, reason]
            assert (one["file"], one["record"], one["record_start"]) == (
                row["file"],
                row["record"],
                row["record_start"],
            )


def test_a_dataset_of_an_earlier_version_has_a_page_too(built: Built) -> None:
    manifest = built.datasets[0].manifest
    accounting = json.loads(json.dumps(manifest.accounting))
    del accounting["lengths"], accounting["rejects"], accounting["dedup"]["clusters"], accounting["dedup"]["expected"]
    page = dataset_page(manifest.config, accounting, manifest.tokenizer)
    assert "Where every document went" in page
    assert "Lengths" not in page


@pytest.fixture(scope="module")
def page(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser.open(built.datasets[0].path / "report.html")


def test_a_browser_shows_it_without_a_word_and_without_a_network(page: Page, built: Built) -> None:
    assert (page.errors, page.requests, page.dialogs) == ([], [], [])
    captions = page.evaluate("[...document.querySelectorAll('figcaption')].map(one => one.textContent)")
    wanted = ("left after each step", "what became of them", "P(removed | J)", "Clusters", "by length", "Shares of the")
    for words in wanted:
        assert any(words in caption for caption in captions), words
    drawn = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(one => one.querySelectorAll('.main-svg').length)"
    )
    assert len(drawn) == len(captions)
    assert all(drawn)
    funnel = page.evaluate("document.querySelector('.chart')._fullData[0].x")
    totals = built.datasets[0].manifest.accounting["sources"].values()
    assert funnel[0] == sum(row["records"] for row in totals)
    assert funnel[-1] == sum(row["trained"] for row in totals)
    assert (built.datasets[0].path / "report.html").stat().st_size < 6_000_000


def test_its_tables_filter(page: Page, built: Built) -> None:
    rows = "[...document.querySelectorAll('[data-filter]')].find(box => box.textContent.includes('first in file'))"
    is_shown = "row => row.offsetHeight > 0"
    shown = f"[...{rows}.querySelectorAll('tbody tr')].filter({is_shown}).map(row => row.cells[1].textContent)"
    everything = page.evaluate(shown)
    reasons = {reason for part in built.datasets[0].manifest.accounting["rejects"].values() for reason in part}
    assert set(everything) == reasons
    page.evaluate(f"{rows}.previousElementSibling.querySelector('input').focus()")
    page.write(sorted(reasons)[0])
    assert set(page.evaluate(shown)) == {reason for reason in reasons if sorted(reasons)[0] in reason}


def test_a_dataset_that_nobody_kept_an_account_of_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written through the library, not by a job: `report` says so, and what does look into it."""
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 5}, seq_len=16))
    assert main(["report", str(made.path), "--out", str(tmp_path / "page.html")]) == 4
    assert "TR-REPORT-ACCOUNT: this Dataset has no account" in (error := capsys.readouterr().err)
    assert f"tokenreel inspect {made.path}" in error
    assert main(["inspect", str(made.path)]) == 0
    assert not (tmp_path / "page.html").exists()


def test_p_removed_is_the_rule_of_the_configuration(built: Built) -> None:
    page = (built.datasets[0].path / "report.html").read_text()
    figures = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    (curve,) = (trace for figure in figures for trace in figure["data"] if trace.get("name") == "P(removed | J)")
    threshold = built.datasets[0].manifest.config["dedup"]["threshold"]
    chances = dict(zip(curve["x"], curve["y"], strict=True))
    assert all(chance == 0 for similarity, chance in chances.items() if similarity < threshold)
    minhash = built.datasets[0].manifest.config["dedup"]["minhash"]
    share_a_band = 1 - (1 - threshold ** minhash["rows"]) ** minhash["bands"]
    assert chances[threshold] == pytest.approx(share_a_band, abs=1e-3)
    assert chances[1.0] == 1.0
