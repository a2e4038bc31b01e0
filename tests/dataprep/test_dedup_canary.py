"""Planted copies: they are found, they change nothing, and a dedup that does not work fails by them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dedup_runs import Source, configuration, near_copies, run_stages, write_sources

from dataprep.dedup import METHODS
from dataprep.dedup.config import DedupConfig, MinHashConfig
from dataprep.documents import InputFile
from loader.errors import JobError

SEVERAL = ("exact", "minhash", "simhash")


def make_inputs(tmp_path: Path) -> list[InputFile]:
    texts = near_copies(random.Random(4), 60, vocabulary=200, longest=90)
    sources = {
        "a": Source({"a.jsonl": texts[:25]}, 0, ("simhash",)),
        "b": Source({"a.jsonl": texts[25:45], "b.jsonl": texts[45:]}, 1),
        "c": Source({"a.jsonl": texts[:20]}, 1, SEVERAL),
    }
    return write_sources(tmp_path, sources)


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize(
    ("methods", "decision"),
    [(("exact",), "leader"), (("minhash",), "leader"), (SEVERAL, "leader"), (SEVERAL, "estimate")],
)
def test_copies_are_found_and_change_nothing(tmp_path: Path, methods: Any, decision: Any, across: bool) -> None:
    inputs = make_inputs(tmp_path)
    dedup = DedupConfig(methods, decision, across=across, write_index=True, max_removed_fraction=1.0)
    config = configuration(dedup, 0.3)
    plain = run_stages(inputs, config, tmp_path / "plain")
    with_copies = run_stages(inputs, replace(config, dedup=replace(dedup, canary=True)), tmp_path / "planted")
    assert with_copies.counts["dedup"]["canaries"] > 10
    for outcome in (plain, with_copies):
        for figure in ("canaries", "candidate_documents", "signatures_compared", "similarities"):
            outcome.counts["dedup"].pop(figure, None)  # what the search for the copies cost
    assert with_copies == plain
    for path in sorted((tmp_path / "plain/decided").glob("*")):
        if path.name != "counts.json":
            assert path.read_bytes() == (tmp_path / "planted/decided" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("minhash", [MinHashConfig(1024, 51, 20), MinHashConfig(4096, 200, 20), MinHashConfig()])
def test_estimated_copies_agree_in_some_band(tmp_path: Path, minhash: MinHashConfig) -> None:
    """Rows that are changed at even distances would be in every band."""
    dedup = DedupConfig(("minhash",), "estimate", minhash=minhash, canary=True, max_removed_fraction=1.0)
    assert run_stages(make_inputs(tmp_path), configuration(dedup), tmp_path / "work").counts["dedup"]["canaries"] > 10


@pytest.mark.parametrize(("method", "decision"), [("exact", "leader"), ("minhash", "leader"), ("minhash", "estimate")])
def test_a_dedup_that_does_not_work_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, decision: Any
) -> None:
    inputs = make_inputs(tmp_path)
    dedup = DedupConfig((method,), decision, canary=True, max_removed_fraction=1.0)
    if method == "exact":
        monkeypatch.setattr(
            "dataprep.dedup.table._first_equal",
            lambda content, rights: [np.arange(len(content[0]), dtype=np.int32)] * 2,
        )
    else:
        monkeypatch.setitem(METHODS, method, replace(METHODS[method], num_bands=lambda config: 0))
    with pytest.raises(JobError, match="TR-DEDUP-CANARY"):
        run_stages(inputs, configuration(dedup), tmp_path / "work")


def test_no_alarm_where_a_bucket_of_too_many_hides_a_copy(tmp_path: Path) -> None:
    """Documents that are nearly duplicates stay together in buckets, however often these are split."""
    frame = [f"frame{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)]
    texts = [" ".join([*frame[:100], f"own{chr(97 + n // 26)}{chr(97 + n % 26)}", *frame[100:]]) for n in range(40)]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    dedup = DedupConfig(("minhash",), threshold=0.97, max_bucket=2, canary=True, minhash=MinHashConfig(64, 32, 2))
    figures = run_stages(inputs, configuration(dedup), tmp_path / "work").counts["dedup"]
    assert figures["unverified_pairs"] > 0
    assert figures["canaries"] < len(texts)
