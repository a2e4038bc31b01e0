"""What every dedup method must hold: an entry of the table without its row here does not exist."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.dedup_runs import Source, configuration, near_copies, run_stages, write_sources
from support.text_oracle import jaccard, shingles_of

from dataprep.dedup import METHODS
from dataprep.dedup.config import DedupConfig
from dataprep.dedup.signatures import load_signed
from dataprep.dedup.table import DocumentTable, Proposal, make_table
from dataprep.documents import Status

IS_DUPLICATE: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda first, second: first == second,
    "minhash": lambda first, second: jaccard(shingles_of(first), shingles_of(second)) >= 0.9,
}


def test_every_method_has_its_row_and_its_status() -> None:
    assert IS_DUPLICATE.keys() == METHODS.keys()
    statuses = [method.status for method in METHODS.values()]
    assert len(set(statuses)) == len(statuses)
    assert all(status.name == f"REMOVED_{name.upper()}" for name, status in zip(METHODS, statuses, strict=True))
    assert Status.KEPT not in statuses


@pytest.fixture(params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(tmp_path: Path, method: str, opt_out: tuple[str, ...] = ()) -> tuple[DocumentTable, list[str], DedupConfig]:
    texts = near_copies(random.Random(3), 80)
    sources = {"s": Source({"a.jsonl": texts}, 0), "t": Source({"b.jsonl": texts[:30]}, 1, opt_out)}
    config = DedupConfig(methods=(method,), max_removed_fraction=1.0)
    inputs = write_sources(tmp_path, sources)
    run_stages(inputs, configuration(config), tmp_path / "work")
    table = make_table(tuple(inputs), [load_signed(tmp_path / "work/signed", file) for file in (0, 1)], config)
    all_texts = [(texts, texts)[file][record] for file, record in zip(table.file_N, table.record_N, strict=True)]
    return table, all_texts, config


def pairs_of(proposal: Proposal, heads: list[int]) -> set[tuple[int, int]]:
    """(better, worse) documents of all pairs that share a bucket."""
    pairs = set()
    for member_H, start_H in zip(proposal.member_BH, proposal.start_BH, strict=True):
        assert sorted(member_H.tolist()) == list(range(len(heads)))
        for place, member in enumerate(member_H.tolist()):
            front = member_H[start_H[member] : place].tolist()
            assert front == sorted(front), "within a bucket the better document comes first"
            assert all(start_H[other] == start_H[member] for other in front), "a bucket has one start"
            pairs |= {(heads[other], heads[member]) for other in front}
    return pairs


@pytest.mark.parametrize("opt_out", [False, True])
def test_proposals_are_buckets_of_heads_and_miss_no_duplicate(tmp_path: Path, method: str, opt_out: bool) -> None:
    table, texts, config = build(tmp_path, method, (method,) if opt_out else ())
    heads = table.heads.tolist()
    pairs = pairs_of(METHODS[method].propose(table, config), heads)
    assert all(better < worse for better, worse in pairs)
    duplicates = {(a, b) for a, b in itertools.combinations(heads, 2) if IS_DUPLICATE[method](texts[a], texts[b])}
    assert duplicates <= pairs
    if not METHODS[method].verifies:
        assert duplicates == pairs
    assert bool(duplicates) or (method == "exact" and not opt_out)  # one head stands for all equal texts


def test_proposals_do_not_depend_on_an_earlier_call(tmp_path: Path, method: str) -> None:
    table, _, config = build(tmp_path, method)
    first, second = (METHODS[method].propose(table, config) for _ in range(2))
    assert np.array_equal(first.member_BH, second.member_BH)
    assert np.array_equal(first.start_BH, second.start_BH)


def test_nothing_to_propose_among_few_documents(tmp_path: Path, method: str) -> None:
    config = DedupConfig(methods=(method,))
    for texts in (["one document alone"], ["one document of these", "and quite another thing here"]):
        work = tmp_path / str(len(texts))
        outcome = run_stages(
            write_sources(work, {"s": Source({"a.jsonl": texts}, 0)}), configuration(config), work / "work"
        )
        assert outcome.witness == {}


def test_opting_out_protects_both_ways(tmp_path: Path, method: str) -> None:
    texts = [f"the same words of text number {chr(97 + index)} here" for index in range(10)]
    sources = {"a": Source({"a.jsonl": texts}, 0, (method,)), "b": Source({"b.jsonl": texts}, 1)}
    config = configuration(DedupConfig(methods=(method,)))
    assert run_stages(write_sources(tmp_path / "x", sources), config, tmp_path / "x/work").witness == {}
    sources = {"a": Source({"a.jsonl": texts}, 0), "b": Source({"b.jsonl": texts}, 1)}
    outcome = run_stages(
        write_sources(tmp_path / "y", sources),
        configuration(DedupConfig(methods=(method,), max_removed_fraction=1.0)),
        tmp_path / "y/work",
    )
    assert {key[0] for key in outcome.witness} == {"b"}
    assert len(outcome.witness) == 10
    assert set(outcome.method.values()) == {method}
