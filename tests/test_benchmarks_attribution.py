"""The recorded windows of the attribution benchmark: what the rule finds in them, and that they can be made again."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from benchmarks import spike_trials
from benchmarks.spike_attribution import judged_rows
from benchmarks.spike_judge import is_kind, ours, pooled, two_scores
from benchmarks.spike_text import load_text
from benchmarks.spike_trials import BASE_STEPS, CONFIRMATION, RECORDED, SHARES, load_tables, plans, save_tables
from benchmarks.spike_world import Bench, Run
from train.spikes.attribute import SegmentColumns, concatenate
from train.spikes.score import score_batch

COLUMNS = tuple(field.name for field in fields(SegmentColumns))
TEXT_COLUMNS = ("document_S", "num_labels_S", "source_S", "entropy_S", "squeeze_S", "repeated_S")


def test_the_rule_keeps_its_promises_on_bases_it_was_not_tuned_on() -> None:
    windows = load_tables()
    assert len({one.seed for one in windows}) == 2
    assert len(windows) >= 20
    assert RECORDED.stat().st_size < 300_000
    judged = [r for r in judged_rows(windows) if r["target"]]
    assert len(judged) >= 7
    assert [r["name"] for r in judged if not r["holds"]] == []


def test_both_shares_are_judged_and_the_peer_cuts_far_more_clean_text() -> None:
    windows = load_tables()
    for group in SHARES:
        mine = [one for one in windows if one.group == group]
        found, peer = pooled(mine, ours)[0], pooled(mine, two_scores)[0]
        assert found.poison > 20_000
        assert found.false_cuts < 0.5 * peer.false_cuts
        assert found.recall > peer.recall


def test_tables_come_back_as_they_were_saved(tmp_path: Path) -> None:
    windows = [one for one in load_tables() if one.name in ("byte", "salad")]
    save_tables(tmp_path / "t.npz", windows)
    again = load_tables(tmp_path / "t.npz")
    assert [(a.seed, a.group, a.name) for a in again] == [(b.seed, b.group, b.name) for b in windows]
    for a, b in zip(again, windows, strict=True):
        np.testing.assert_array_equal(a.columns.loss_S, b.columns.loss_S)
        np.testing.assert_array_equal(a.columns.document_S, b.columns.document_S)
    assert any(is_kind(one.columns, "salad").any() for one in windows)


def test_one_command_records_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``data/spike_scores.npz`` was, but for the size: trained, scored, and written as rows that rules can judge."""
    out = tmp_path / "scores.npz"
    words = ["--quick", "--bases", "1", "--work", str(tmp_path / "work"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["spike_trials.py", *words])
    spike_trials.main()
    found, stored = load_tables(out), load_tables()
    assert [(one.seed, one.group, one.name) for one in found] == [(CONFIRMATION[0], g, "byte") for g in SHARES]
    for one in found:
        c = one.columns
        assert np.count_nonzero(c.baseline_S) > 10
        assert np.count_nonzero(is_kind(c, "byte")) > 3
        assert all(
            np.isfinite(getattr(c, name)).all() for name in ("loss_S", "head_grad_S", "shuffled_S", "repeated_S")
        )
        assert np.median(c.loss_S) < 9  # nats; of a model that knows nothing 8
    with np.load(out) as mine, np.load(RECORDED) as theirs:
        assert mine.files == theirs.files
        assert {c: mine[c].dtype for c in COLUMNS} == {c: theirs[c].dtype for c in COLUMNS}
        assert not (mine["loss_S"].view(np.uint32) & 0x1FFF).any()  # the mantissa is cut as it is there
    assert {one.group for one in stored} == {one.group for one in found}


@pytest.mark.slow
def test_windows_are_a_function_of_text_and_seed(tmp_path: Path) -> None:
    """On a machine with the recorded text the recorded window comes out again; elsewhere the same one does twice."""
    text = load_text(tmp_path)
    one = load_tables()[0]
    plan = next(p[2] for p in plans(one.seed) if p[:2] == (one.group, one.name))
    frozen, token_bytes = Run(one.seed, text.tokenizer.vocab_size).frozen(), text.token_bytes()

    def scored() -> dict[str, np.ndarray]:
        batches = Bench(text, one.seed).window(BASE_STEPS, plan)
        table = concatenate([score_batch(frozen, batch, token_bytes, False) for batch in batches])
        return {column: getattr(table, column) for column in TEXT_COLUMNS}

    with np.load(RECORDED) as file:
        same_text = str(file["digest"]) == text.digest
    wanted = {c: getattr(one.columns, c)[~one.columns.baseline_S] for c in TEXT_COLUMNS} if same_text else scored()
    for column, values in scored().items():
        np.testing.assert_allclose(values.astype(np.float64), wanted[column].astype(np.float64), rtol=2e-3, atol=1e-6)
