"""What every dedup method must hold: an entry of the table without its row here does not exist."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.dedup_runs import Source, configuration, near_copies, run_stages, write_sources
from support.text_oracle import jaccard, shingles_of

from dataprep.dedup import METHODS
from dataprep.dedup.buckets import plan_bands, propose
from dataprep.dedup.candidates import SignedReader
from dataprep.dedup.config import DedupConfig
from dataprep.dedup.signatures import load_signed
from dataprep.dedup.spill import Workspace
from dataprep.dedup.table import DocumentTable, SignedFile, make_table
from dataprep.documents import InputFile, Status
from dataprep.kernels.documents import DocumentHasher


def fingerprint(text: str) -> int:
    prints = DocumentHasher().prints(pa.array([text], pa.large_string()), None, simhash=True)
    return int(prints.simhash_N[0])


IS_DUPLICATE: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda first, second: first == second,
    "minhash": lambda first, second: jaccard(shingles_of(first), shingles_of(second)) >= 0.9,
    "simhash": lambda first, second: (
        (fingerprint(first) ^ fingerprint(second)).bit_count() <= 3 and bool(shingles_of(first) and shingles_of(second))
    ),
    "ngram": lambda first, second: False,
}
"""Pairs that a method must propose."""
PAIR_METHODS = sorted(name for name, method in METHODS.items() if method.kind == "pairs")


def test_every_method_has_its_row_and_its_status() -> None:
    assert IS_DUPLICATE.keys() == METHODS.keys()
    statuses = [method.status for method in METHODS.values()]
    assert len(set(statuses)) == len(statuses)
    assert all(status.method == name for name, status in zip(METHODS, statuses, strict=True))
    assert Status.KEPT not in statuses
    for method in METHODS.values():
        assert (method.num_bands(DedupConfig()) == 0) == (method.kind == "spans")


@pytest.fixture(params=PAIR_METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Built = tuple[DocumentTable, list[str], DedupConfig, Callable[[int], SignedFile]]


def build(tmp_path: Path, method: str, opt_out: tuple[str, ...] = ()) -> Built:
    texts = near_copies(random.Random(3), 80)
    texts += [*(f"{text}!" for text in texts[:5]), "...", "?!"]
    sources = {"s": Source({"a.jsonl": texts}, 0), "t": Source({"b.jsonl": texts[:30]}, 1, opt_out)}
    config = DedupConfig(methods=(method,), max_removed_fraction=1.0)
    inputs = write_sources(tmp_path, sources)
    run_stages(inputs, configuration(config), tmp_path / "work")

    def load(file: int) -> SignedFile:
        return load_signed(tmp_path / "work/signed", file)

    table = make_table(inputs, load, config, [method])
    return table, [texts[record] for record in table.record_N.tolist()], config, load


def proposed_pairs(built: Built, method: str, workspace: Workspace) -> tuple[set[tuple[int, int]], set[int]]:
    """(better, worse) documents of all pairs that share a bucket, and the roots of the components."""
    table, _, config, load = built
    heads = table.heads
    place_N = np.full(len(table.head_N), -1, np.int32)
    place_N[heads] = np.arange(len(heads))
    shared = np.ones(len(heads), np.bool_)
    bands = plan_bands(METHODS, [method], config)
    proposals = propose(SignedReader(table, load)(place_N[table.number_P]), bands, shared, config, workspace)
    pairs = set()
    counted = np.zeros(len(heads), np.int64)
    for partition in range(proposals.members.num_partitions):
        if not proposals.members.num_rows[partition]:
            continue
        (member_M,) = proposals.members.read(partition)
        sizes, _ = proposals.buckets.read(partition)
        assert sizes.min() >= 2
        for bucket in np.split(member_M.astype(np.int64), np.cumsum(sizes)[:-1]):
            assert (np.diff(bucket) > 0).all(), "within a bucket the better document comes first"
            assert len(set(proposals.root_H[bucket].tolist())) == 1, "bucket mates are one component"
            counted[bucket] += 1
            pairs |= {(int(heads[a]), int(heads[b])) for a, b in itertools.combinations(bucket.tolist(), 2)}
    assert np.array_equal(counted, proposals.count_H)
    return pairs, set(proposals.root_H.tolist())


@pytest.mark.parametrize("opt_out", [False, True])
def test_proposals_are_buckets_of_heads_and_miss_no_duplicate(tmp_path: Path, method: str, opt_out: bool) -> None:
    built = build(tmp_path, method, (method,) if opt_out else ())
    table, texts, _, _ = built
    pairs, _ = proposed_pairs(built, method, Workspace(tmp_path))
    heads = table.heads.tolist()
    duplicates = {(a, b) for a, b in itertools.combinations(heads, 2) if IS_DUPLICATE[method](texts[a], texts[b])}
    assert duplicates <= pairs
    if not METHODS[method].verifies:
        assert duplicates == pairs
    assert bool(duplicates) or (method == "exact" and not opt_out)  # one head stands for all equal texts


def test_proposals_depend_on_neither_memory_nor_partitions(tmp_path: Path, method: str) -> None:
    built = build(tmp_path, method)
    found = []
    for number, (memory_bytes, partitions) in enumerate([(1 << 30, 1), (1 << 30, 3), (1 << 12, 1)]):
        folder = tmp_path / f"scratch{number}"
        folder.mkdir()
        found.append(proposed_pairs(built, method, Workspace(folder, memory_bytes, partitions)))
    assert found[0] == found[1] == found[2]


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


LONG = " ".join(f"word{chr(97 + place // 26)}{chr(97 + place % 26)}" for place in range(80))
RANKED = [
    {"text": f"{LONG} end", "when": "2020-01-01", "score": 0.5},
    {"text": f"{LONG} end of it", "when": "2019-01-01", "score": 0.25},
    {"text": LONG, "when": "2024-05-06", "score": 0.5},
    {"text": f"{LONG} and", "when": "2024-05-06", "score": -1.0},
    {"text": f"{LONG} fin", "score": 0.75},
]
WINNERS = {"longest": 1, "first": 0, "newest": 3, "quality": 4}
"""Which of five near copies stays; ties of date or score go to the longer one."""


def test_every_keep_policy_has_its_winner() -> None:
    (hint,) = (field.type for field in fields(DedupConfig) if field.name == "keep")
    assert set(re.findall(r"['\"](\w+)['\"]", str(hint))) == WINNERS.keys()


@pytest.mark.parametrize("keep", sorted(WINNERS))
def test_keep_policies_keep_what_they_say(tmp_path: Path, keep: Any) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RANKED))
    fields_ = {"date_field": "when", "quality_field": "score"}
    inputs = [InputFile("s", 0, str(tmp_path), "a.jsonl", **fields_)]
    config = configuration(DedupConfig(keep=keep, max_removed_fraction=1.0))
    outcome = run_stages(inputs, config, tmp_path / "work")
    (winner,) = (key[2] for key, status in outcome.status.items() if status == Status.KEPT)
    assert winner == WINNERS[keep]
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": f"{LONG} nothing known"}) + "\n")
    better = InputFile("t", -1, str(tmp_path), "b.jsonl", **fields_)
    outcome = run_stages([*inputs, better], config, tmp_path / "ranked")
    assert [key for key, status in outcome.status.items() if status == Status.KEPT] == [("t", "b.jsonl", 0)]
