"""The table that is printed before a run, against formulas, drawn signatures, and swapped bands and rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.dedup_runs import Source, configuration, run_stages, write_sources

from dataprep.dedup.config import DedupConfig, MinHashConfig
from dataprep.dedup.expect import band_probability, removal_rows, removal_text
from dataprep.dedup.minhash import miss_probability
from dataprep.dedup.simhash import seen_probability

BOTH = DedupConfig(methods=("minhash", "simhash"))


@pytest.mark.parametrize("config", [MinHashConfig(), MinHashConfig(112, 14, 8), MinHashConfig(4096, 450, 9)])
def test_without_a_floor_it_is_the_formula_of_banding(config: MinHashConfig) -> None:
    for similarity in (0.0, 0.3, 0.5, 0.72, 0.8, 0.95, 1.0):
        assert band_probability(similarity, config) == pytest.approx(1 - miss_probability(similarity, config), abs=1e-9)


def test_with_a_floor_it_is_what_drawn_signatures_do() -> None:
    config = MinHashConfig(num_permutations=32, bands=5, rows=4)
    drawn = np.random.default_rng(1).random((40_000, 32))
    for similarity in (0.5, 0.7, 0.85):
        agree = drawn < similarity
        in_band = agree[:, :20].reshape(-1, 5, 4).all(axis=2).any(axis=1)
        for least in (0, 20, 26, 32):
            measured = float((in_band & (agree.sum(axis=1) >= least)).mean())
            assert band_probability(similarity, config, least) == pytest.approx(measured, abs=0.012)


def test_a_leader_removes_nothing_below_the_threshold_and_what_it_sees_above() -> None:
    rows = removal_rows(DedupConfig())
    assert [row["similarity"] for row in rows] == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    assert [row["removed"] for row in rows[:6]] == [0.0] * 6
    assert rows[6]["removed"] == pytest.approx(1 - 4.89e-5, abs=1e-5)
    assert all(row["removed"] == row["seen_together"] == row["seen"]["minhash"] for row in rows[6:])
    assert rows[-1]["removed"] == pytest.approx(1.0)


def test_union_find_follows_the_curve_and_estimate_the_binomial_tail() -> None:
    rows = removal_rows(DedupConfig(decision="union_find"))
    assert all(r["removed"] == pytest.approx(1 - miss_probability(r["similarity"], MinHashConfig())) for r in rows)
    rows = removal_rows(DedupConfig(decision="estimate"))
    drawn = np.random.default_rng(2).binomial(128, 0.8, 200_000)
    assert rows[6]["removed"] == pytest.approx(float((drawn >= 103).mean()), abs=0.005)
    assert rows[0]["removed"] < 1e-6
    assert rows[-1]["removed"] == pytest.approx(1.0)


def test_union_find_takes_what_simhash_sees_by_the_agreement_of_signatures() -> None:
    """Both as drawn: fingerprints by the model, independent of the rows."""
    generator = np.random.default_rng(5)
    for row in removal_rows(replace(BOTH, decision="union_find"))[6:]:
        similarity = row["similarity"]
        agree_NK = generator.random((20_000, 128)) < similarity
        in_band = agree_NK[:, :125].reshape(-1, 25, 5).all(axis=2).any(axis=1)
        seen = generator.random(20_000) < row["seen"]["simhash"]
        drawn = in_band | (seen & (agree_NK.sum(axis=1) >= 0.8 * 128))
        assert row["removed"] == pytest.approx(drawn.mean(), abs=0.005)


@pytest.mark.parametrize("decision", ["estimate", "union_find"])
def test_without_signatures_fingerprints_are_all_there_is(decision: Any, tmp_path: Path) -> None:
    simhash = DedupConfig(methods=("simhash",), decision=decision)
    for row in removal_rows(simhash):
        assert row["removed"] == row["seen"]["simhash"]  # three bits are 95 % of agreement
    for row in removal_rows(replace(simhash, threshold=0.98)):
        assert row["removed"] == seen_probability(row["similarity"], 1) <= row["seen"]["simhash"]
    assert f"{decision}: by agreement of fingerprints >= 0.8; nothing is verified" in removal_text(simhash)
    texts = [" ".join(f"{number}" for number in range(400)), " ".join(f"{number}" for number in [*range(400), 7])]
    run_stages(write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)}), configuration(simhash), tmp_path / "work")
    (row,) = pq.read_table(tmp_path / "work/decided/removed.parquet").to_pylist()
    assert 64 * (1 - row["similarity"]) in (0, 1, 2, 3)


def test_simhash_is_a_column_of_its_own_and_adds_to_the_whole() -> None:
    for row in removal_rows(BOTH):
        assert row["seen"]["simhash"] == seen_probability(row["similarity"], 3)
        unseen = (1 - row["seen"]["minhash"]) * (1 - row["seen"]["simhash"])
        assert row["seen_together"] == pytest.approx(1 - unseen)
    assert "not measured" in removal_text(BOTH)


def test_swapped_bands_and_rows_are_seen_in_the_table() -> None:
    swapped = removal_rows(replace(DedupConfig(), minhash=MinHashConfig(bands=5, rows=25)))
    assert swapped[6]["removed"] < 0.02
    assert removal_rows(DedupConfig())[6]["removed"] > 0.99
    text = removal_text(replace(DedupConfig(), minhash=MinHashConfig(bands=5, rows=25)))
    assert "5 bands x 25 rows; half of the pairs share a band at J = 0.92" in text
    assert len({len(line) for line in text.split("\n")[:12]}) == 1


def test_without_similarity_there_is_no_table() -> None:
    assert removal_rows(DedupConfig(methods=("exact",))) == []
    assert removal_text(DedupConfig(methods=("exact",))) == "No dedup method goes by similarity."
