"""Dedup against what earlier runs kept equals one batch in which their documents come first."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.dedup_runs import Key, Outcome, Source, configuration, near_copies, run_stages, write_sources

from dataprep.dedup.config import DecideConfig, DedupConfig
from dataprep.dedup.index import WriteIndex
from dataprep.documents import REMOVED, InputFile, Status
from loader.errors import ConfigError, RefusedError
from loader.text.records import document_id

METHODS = ("exact", "minhash", "simhash")


def write_index(inputs: list[InputFile], config: DecideConfig, work: Path, **options: Any) -> tuple[Outcome, Path]:
    """Decide and leave an Index."""
    outcome = run_stages(inputs, config, work, **options)
    list(WriteIndex(inputs, config, work / "signed", work / "decided", work).run())
    return outcome, work / "index"


def removed_rows(work: Path, names: set[str]) -> list[dict[str, Any]]:
    """Rows of removed.parquet of some sources, by what does not depend on where the witness came from."""
    rows = pq.read_table(work / "decided/removed.parquet").to_pylist()
    columns = ("document", "source", "file", "record", "method", "witness_document", "witness_source", "similarity")
    return [{name: row[name] for name in columns} for row in rows if row["source"] in names]


def make_parts(seed: int) -> tuple[dict[str, Source], dict[str, Source], dict[str, Source]]:
    """Sources of three runs that share texts."""
    randomness = random.Random(seed)
    texts = [*near_copies(randomness, 60), "", "."]
    texts += [f"{text}?" for text in texts[:10]]
    parts = []
    for run in range(3):
        sources = {}
        for name in ("a", "b"):
            opt_out = randomness.choice([(), (), ("exact",), ("minhash", "simhash"), METHODS])
            files = {"x.jsonl": [randomness.choice(texts) for _ in range(16)]}
            sources[f"{name}{run}"] = Source(files, 10 * run + randomness.randrange(2), opt_out)
        parts.append(sources)
    return parts[0], parts[1], parts[2]


@pytest.mark.parametrize("decision", ["leader", "estimate"])
@pytest.mark.parametrize("seed", range(3))
def test_against_indexes_equals_one_batch(tmp_path: Path, seed: int, decision: Any) -> None:
    parts = make_parts(seed)
    dedup = DedupConfig(methods=METHODS, decision=decision, write_index=True, max_removed_fraction=1.0)
    config = configuration(dedup, fraction=0.3)
    indexes: list[Path] = []
    outcomes: list[Outcome] = []
    for run, sources in enumerate(parts):
        work = tmp_path / f"run{run}"
        inputs = write_sources(tmp_path / f"in{run}", sources)
        outcome, index = write_index(inputs, config, work, indexes=indexes)
        outcomes.append(outcome)
        indexes.append(index)
    everything = {name: source for sources in parts for name, source in sources.items()}
    whole = run_stages(write_sources(tmp_path / "all", everything), config, tmp_path / "batch")
    new = set(parts[2])
    assert removed_rows(tmp_path / "run2", new) == removed_rows(tmp_path / "batch", new)
    assert len(removed_rows(tmp_path / "run2", new)) > 5
    for key, status in outcomes[2].status.items():
        assert whole.status[key] == status
    inputs = write_sources(tmp_path / "in2", parts[2])
    for number, options in enumerate(({"partitions": 5}, {"memory_bytes": 1 << 16})):
        work = tmp_path / f"again{number}"
        run_stages(inputs, config, work, indexes=indexes[:2], **options)
        for name in ("removed.parquet", "superseded.parquet", "counts.json"):
            assert (work / "decided" / name).read_bytes() == (tmp_path / "run2/decided" / name).read_bytes()


def words(count: int, extra: str = "") -> str:
    return " ".join([*(f"word{chr(97 + place // 26)}{chr(97 + place % 26)}" for place in range(count)), extra]).strip()


def superseded(work: Path) -> list[Key]:
    rows = pq.read_table(work / "decided/superseded.parquet").to_pylist()
    assert all(row["witness_file"] is None and row["witness_source"] == "old" for row in rows)
    return [(row["source"], row["file"], row["record"]) for row in rows]


def test_a_better_late_copy_is_listed_and_never_swapped(tmp_path: Path) -> None:
    config = configuration(DedupConfig(write_index=True, max_removed_fraction=1.0))
    old = write_sources(tmp_path / "old", {"old": Source({"a.jsonl": [words(80), "quite another text"]}, 1)})
    _, index = write_index(old, config, tmp_path / "first")
    texts = [words(80, "end"), words(79), words(80)]
    new = write_sources(
        tmp_path / "new", {"same": Source({"s.jsonl": texts}, 1), "better": Source({"b.jsonl": [words(79)]}, 0)}
    )
    outcome = run_stages(new, config, tmp_path / "second", indexes=[index])
    assert all(status in REMOVED for status in outcome.status.values())
    assert superseded(tmp_path / "second") == [("better", "b.jsonl", 0), ("same", "s.jsonl", 0)]
    rows = pq.read_table(tmp_path / "second/decided/removed.parquet").to_pylist()
    assert {row["witness_document"] for row in rows} == {document_id("old", "a.jsonl", 0, 9)}
    assert outcome.counts["dedup"]["documents"] == 4
    first = configuration(replace(config.dedup, keep="first"))
    run_stages(new, first, tmp_path / "third", indexes=[index])
    assert superseded(tmp_path / "third") == [("better", "b.jsonl", 0)]


def test_nothing_is_superseded_without_an_index(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": [words(30)] * 3}, 0)})
    run_stages(inputs, configuration(DedupConfig()), tmp_path / "work")
    assert pq.read_table(tmp_path / "work/decided/superseded.parquet").num_rows == 0
    removed, none = (pq.read_schema(tmp_path / f"work/decided/{name}.parquet") for name in ("removed", "superseded"))
    assert removed == none


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": [words(30)]}, 0)})
    config = configuration(DedupConfig(write_index=True))
    _, index = write_index(inputs, config, tmp_path / "first")
    new = write_sources(tmp_path / "new", {"t": Source({"a.jsonl": [words(31)]}, 0)})
    clusters = configuration(DedupConfig(decision="union_find"))
    with pytest.raises(ConfigError, match="TR-DEDUP-AGAINST"):
        run_stages(new, clusters, tmp_path / "clusters", indexes=[index])
    with pytest.raises(RefusedError, match="TR-INDEX-OTHER"):
        run_stages(new, configuration(DedupConfig(methods=("minhash",))), tmp_path / "other", indexes=[index])


def test_documents_of_an_index_are_kept_whatever_they_are_like(tmp_path: Path) -> None:
    """Copies in sources that opted out are all in the Index; a new copy names the best of them."""
    sources = {
        "one": Source({"a.jsonl": [words(40)] * 2}, 0, ("exact", "minhash")),
        "two": Source({"a.jsonl": [words(40)]}, 1),
    }
    config = configuration(DedupConfig(write_index=True, max_removed_fraction=1.0))
    outcome, index = write_index(write_sources(tmp_path / "old", sources), config, tmp_path / "first")
    assert set(outcome.status.values()) == {Status.KEPT}
    new = write_sources(tmp_path / "new", {"late": Source({"a.jsonl": [words(40)]}, 0)})
    run_stages(new, config, tmp_path / "second", indexes=[index])
    (row,) = pq.read_table(tmp_path / "second/decided/removed.parquet").to_pylist()
    assert row["witness_document"] == document_id("two", "a.jsonl", 0, 9)


def test_the_best_of_equal_texts_of_two_indexes_is_the_witness(tmp_path: Path) -> None:
    """Whatever else it takes part in: it need not have the rights of the new document."""
    config = configuration(DedupConfig(write_index=True, max_removed_fraction=1.0))
    indexes = []
    for name, opt_out in (("one", ()), ("two", ("exact",))):
        inputs = write_sources(tmp_path / name, {name: Source({"a.jsonl": [words(40)]}, 0, opt_out)})
        indexes.append(write_index(inputs, config, tmp_path / f"{name}-work")[1])
    new = write_sources(tmp_path / "new", {"late": Source({"a.jsonl": [words(40)] * 3}, 0, ("exact",))})
    for order, best in ((indexes, "one"), (indexes[::-1], "two")):
        work = tmp_path / f"{best}-first"
        run_stages(new, config, work, indexes=order)
        rows = pq.read_table(work / "decided/removed.parquet").to_pylist()
        assert [(row["witness_source"], row["method"]) for row in rows] == [(best, "minhash")] * 3
