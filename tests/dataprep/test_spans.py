"""Span cuts: borders in bytes, who takes part, whole removals and their witnesses, hostile text, damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dedup_runs import Source, write_sources
from support.span_runs import (
    Decided,
    Outcome,
    check_spans,
    left_of,
    located_tokens,
    read_spans,
    run_spans,
    span_bytes,
    span_config,
    span_folders,
    write_decision,
)

from dataprep.dedup.config import SignConfig
from dataprep.dedup.signatures import sign_file
from dataprep.documents import Status
from dataprep.kernels.documents import text_buffers
from dataprep.kernels.located import Tokens, split_located
from dataprep.kernels.spans import token_room
from dataprep.kernels.words import split_words
from dataprep.normalize import load_table
from dataprep.spans import canary, resolve
from dataprep.spans.canary import check_canary
from dataprep.spans.grams import list_file_grams
from dataprep.spans.steps import CutSpans, FindAnchors, FindRepeats, ListGrams
from loader.errors import DamageError, JobError, RefusedError
from loader.text.records import document_id

N = 8
PASSAGE = [f"p{index}" for index in range(N)]
OTHER = [f"q{index}" for index in range(3 * N)]


def job_of(root: Path, texts: Sequence[str], **changes: Any) -> Decided:
    """One file of texts in priority order."""
    inputs = write_sources(root, {"s": Source({"a.jsonl": texts}, 0, changes.pop("opt_out", ()))})
    keyed = {("s", "a.jsonl", record): text for record, text in enumerate(texts)}
    status = {("s", "a.jsonl", record): value for record, value in changes.pop("status", {}).items()}
    return Decided(inputs, keyed, list(keyed), status)


def cut(root: Path, texts: Sequence[str], n: int = N, **changes: Any) -> tuple[Outcome, list[str]]:
    """The outcome, checked against the table of all n-grams, and what is left of each text."""
    job = job_of(root, texts, **changes)
    outcome = read_spans(job, run_spans(job, span_config(n), root / "work"))
    check_spans(job, outcome, n)
    left = [
        "" if outcome.status[key] == Status.REMOVED_NGRAM else left_of(text, outcome.rows.get(key, []))
        for key, text in job.texts.items()
    ]
    return outcome, left


@settings(deadline=None)
@given(
    st.text(st.sampled_from("aZ_9 .\u0301\u00e9\u00ad\u200d\ufe0f中ก\u0e33ำ\u3099か\u05b4אÅ😀𝔘\0\u2028"), max_size=80)
)
def test_located_tokens_are_those_of_the_splitter(text: str) -> None:
    texts = text_buffers(pa.array([text], pa.large_string()))
    size = len(text.encode())
    hash_T = np.empty(size + 64, np.uint64)
    count = split_words(texts.data, (0, size), load_table(), hash_T)
    room = token_room(size)
    tokens = Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))
    assert split_located(texts.data, (0, size), load_table(), tokens) == count
    assert tokens.hash_T[:count].tolist() == hash_T[:count].tolist()
    places = list(zip(tokens.start_T[:count].tolist(), tokens.stop_T[:count].tolist(), strict=True))
    assert places == [(start, stop) for _, start, stop in located_tokens(text)]


@pytest.mark.parametrize(
    ("second", "left"),
    [
        ("word", "word"),
        (" ".join(PASSAGE[1:]), " ".join(PASSAGE[1:])),
        (" ".join(PASSAGE), ""),
        ("  " + " ".join(PASSAGE) + "\u3000\n", ""),
        (" ".join(PASSAGE) + ".", "."),
        ("x " + " ".join(PASSAGE[:7]) + " y " + " ".join(PASSAGE[1:]), None),
        ("x " + " ".join(PASSAGE) + " y", "x  y"),
        ("x, " + ",\n".join(PASSAGE).upper() + "! y", "x, ! y"),
        ("x\0" + "\u2028".join(PASSAGE) + "\0\\y\\", "x\0\0\\y\\"),
        ("𝔘😀 " + "\U0001f642".join(PASSAGE) + "😀𝔘", "𝔘😀 😀𝔘"),
        ("中" + " ".join(PASSAGE), "中"),
        ("...", "..."),
    ],
)
def test_borders(tmp_path: Path, second: str, left: str | None) -> None:
    first = "zero " + " ".join(PASSAGE) + " nine"
    assert cut(tmp_path, [first, second])[1] == [first, second if left is None else left]


def test_marks_go_with_their_words_and_other_forms_count_as_equal(tmp_path: Path) -> None:
    composed = [f"\u00e9{word}\u00e9" for word in PASSAGE]
    decomposed = [f"e\u0301{word}e\u0301" for word in PASSAGE]
    hyphen = [f"{word[:4]}\u00ad{word[4:]}\ufe0f" for word in decomposed]
    texts = [" ".join(composed), "a " + " ".join(decomposed) + " b", "c " + " ".join(hyphen) + " d"]
    assert cut(tmp_path, texts)[1] == [texts[0], "a  b", "c  d"]


@pytest.mark.parametrize("letters", ["一二三四五六七八九", "กขคงจฉชซฌ", "あいうえおかきくけ"])
def test_unspaced_scripts_are_cut_between_characters(tmp_path: Path, letters: str) -> None:
    assert cut(tmp_path, [letters[:N], "a" + letters + letters[3]])[1] == [letters[:N], "a" + letters[8:] + letters[3]]


def test_passages_do_not_reach_over_the_end_of_a_document(tmp_path: Path) -> None:
    whole = " ".join(PASSAGE)
    halves = [" ".join(PASSAGE[:4]), " ".join(PASSAGE[4:])]
    assert cut(tmp_path, [whole, *halves, *halves])[0].rows == {}


def test_repeats_inside_a_document_have_it_as_their_witness(tmp_path: Path) -> None:
    text = " ".join([*PASSAGE, "x", *PASSAGE, "y"])
    outcome, left = cut(tmp_path, [text])
    assert left == [" ".join([*PASSAGE, "x", " y"])]
    assert outcome.rows["s", "a.jsonl", 0][0][2] == document_id("s", "a.jsonl", 0, 9)


def test_what_lies_between_pieces_of_two_witnesses_goes_too(tmp_path: Path) -> None:
    texts = [" ".join(PASSAGE), " ".join(OTHER[:N]), "x " + " ".join(PASSAGE) + "; " + " ".join(OTHER[:N]) + " y"]
    outcome, left = cut(tmp_path, texts)
    assert left[2] == "x  y"
    assert len(outcome.rows["s", "a.jsonl", 2]) == 2


def test_only_who_takes_part_is_cut_or_a_witness(tmp_path: Path) -> None:
    text = "a " + " ".join(PASSAGE) + " b"
    status = {0: Status.REMOVED_QUALITY, 1: Status.HELD_OUT, 3: Status.HELD_OUT, 4: Status.REMOVED_MINHASH}
    texts = [text.replace("a", str(index)) for index in range(5)]
    outcome, _ = cut(tmp_path, texts, status=status)
    witness = document_id("s", "a.jsonl", 1, 9)
    assert {key[2]: [row[2] for row in rows] for key, rows in outcome.rows.items()} == {2: [witness], 3: [witness]}
    assert cut(tmp_path / "out", texts, opt_out=("ngram",))[0].rows == {}


def test_rejected_and_blank_records_keep_their_places(tmp_path: Path) -> None:
    texts = [" ".join(PASSAGE) + " x", "y " + " ".join(PASSAGE)]
    job = job_of(tmp_path, texts)
    lines = ["", "{", json.dumps({"text": texts[0]}), '{"text":""}', json.dumps({"text": texts[1]}), " "]
    (tmp_path / "s/a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    decided = np.array([255, 2, 0, 2, 0, 255], np.uint8)
    folders = span_folders(tmp_path / "work")
    sign_file(job.inputs[0], 0, SignConfig(), folders.signed)
    write_decision(job, folders.decided)
    np.save(folders.decided / "status.00000.npy", decided)
    for step in (FindAnchors, FindRepeats, ListGrams, CutSpans):
        list(step(job.inputs, span_config(N), folders).run())
    assert np.load(folders.spans / "status.00000.npy").tolist() == decided.tolist()
    assert list(read_spans(job, folders).rows) == [("s", "a.jsonl", 4)]


def test_a_witness_that_is_removed_hands_on_to_a_kept_one(tmp_path: Path) -> None:
    """Document 2 is made of passages of 0 and 1, but the n-grams across their border are its own: so 3 has it as a
    witness, and both go whole."""
    left, right = OTHER[: N + 2], OTHER[N - 2 : 2 * N]
    texts = [" ".join(left), " ".join(right), " ".join(OTHER[: 2 * N]), " ".join(OTHER[2 : 2 * N]), " ".join(OTHER)]
    outcome, rest = cut(tmp_path, texts)
    assert {key[2]: witness[2] for key, witness in outcome.witness.items()} == {2: 0, 3: 0}
    assert outcome.status["s", "a.jsonl", 4] == Status.KEPT
    assert rest[4] == " " + " ".join(OTHER[2 * N :])


def test_removals_and_account(tmp_path: Path) -> None:
    texts = [" ".join(PASSAGE), " ".join(PASSAGE), "x " + " ".join(PASSAGE)]
    job = job_of(tmp_path, texts)
    folders = run_spans(job, span_config(N), tmp_path / "work")
    size = len(texts[0])
    (row,) = pq.read_table(folders.spans / "removed.parquet").to_pylist()
    ids = [document_id("s", "a.jsonl", record, 9) for record in range(2)]
    assert list(row.values()) == [ids[1], "s", "a.jsonl", 1, "ngram", ids[0], "s", "a.jsonl", 0, None, None]
    assert list(row)[4:] == [
        "method",
        "witness_document",
        "witness_source",
        "witness_file",
        "witness_record",
        "similarity",
        "reason",
    ]
    account = {"documents_cut": 1, "bytes_cut": size, "documents_removed": 1, "bytes_removed": size}
    assert json.loads((folders.spans / "spans.json").read_bytes()) == {"sources": {"s": account}}
    assert sorted(span_bytes(folders)) == ["cuts.00000.npy", "removed.parquet", "spans.json", "status.00000.npy"]


def test_a_second_pass_finds_only_what_joins_made(tmp_path: Path) -> None:
    first = " ".join(["a", *PASSAGE, *OTHER[: 2 * N]])
    alone = " ".join(["b", *PASSAGE, "c"])
    around = " ".join([*OTHER[:4], *PASSAGE, *OTHER[4:8]])
    _, left = cut(tmp_path / "one", [first, alone, around])
    assert left == [first, "b  c", " ".join(OTHER[:4]) + "  " + " ".join(OTHER[4:8])]
    assert cut(tmp_path / "two", left)[1] == [first, "b  c", ""]


HOSTILE: dict[str, tuple[str, Callable[[str], bool]]] = {
    "one word": ("word " * 1_000_000, lambda left: left.split() == ["word"]),
    "one letter": ("x" * 5_000_000, lambda left: len(left) == 5_000_000),
    "letters": ("a b " * 500_000, lambda left: left.split() == ["a", "b"]),
    "period": (" ".join(f"w{index % 13}" for index in range(300_000)), lambda left: len(left.split()) == 13),
    "emoji": ("\U0001f600" * 200, lambda left: len(left) == 200),
    "many emoji": ("\U0001f600" * 1_250_000, lambda left: len(left) == 1_250_000),
    "ideograph": ("中" * 1_000_000, lambda left: left == "中"),
    "marks": ("a" + "\u0301" * 1_000_000, lambda left: len(left) == 1_000_001),
}


def test_monotonous_text_shrinks_to_one_period(tmp_path: Path) -> None:
    """The first n-gram of periodic text is itself covered, but for its first word, by the repeats that overlap it."""
    texts = [text for text, _ in HOSTILE.values()]
    job = job_of(tmp_path, texts)
    outcome = read_spans(job, run_spans(job, span_config(50), tmp_path / "work", memory_bytes=1 << 26))
    for (name, (text, holds)), key in zip(HOSTILE.items(), job.texts, strict=True):
        assert holds(left_of(text, outcome.rows.get(key, []))), name
        assert len(outcome.rows.get(key, [])) <= 1


def test_a_passage_in_every_document_is_kept_once(tmp_path: Path) -> None:
    texts = [f"start{index} " + " ".join(PASSAGE) + f" end{index}" for index in range(2000)]
    job = job_of(tmp_path, texts)
    outcome = read_spans(job, run_spans(job, span_config(N), tmp_path / "work", memory_bytes=1 << 14))
    witness = document_id("s", "a.jsonl", 0, 9)
    assert len(outcome.rows) == 1999
    assert {row[2] for rows in outcome.rows.values() for row in rows} == {witness}


def test_long_passages_take_a_row_for_many_ngrams(tmp_path: Path) -> None:
    passage = " ".join(f"long{index}" for index in range(3000))
    job = job_of(tmp_path, [passage + " x", "y " + passage, "z " + passage[:4000]])
    folders = run_spans(job, span_config(50), tmp_path / "work")
    check_spans(job, read_spans(job, folders), 50)
    rows = sum(json.loads((folders.grams / "grams.00000.json").read_bytes())["runs"])
    assert 0 < rows < 6400 / 5


def test_files_without_documents_and_jobs_without_repeats(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": [], "b.jsonl": ["one two", " ".join(OTHER)]}, 0)})
    texts = {("s", "b.jsonl", 0): "one two", ("s", "b.jsonl", 1): " ".join(OTHER)}
    job = Decided(inputs, texts, list(texts))
    outcome = read_spans(job, run_spans(job, span_config(N), tmp_path / "work", num_tasks=2))
    assert (outcome.rows, outcome.witness) == ({}, {})
    assert set(outcome.status.values()) == {Status.KEPT}


def test_runs_of_a_killed_attempt_are_not_read(tmp_path: Path) -> None:
    texts = [f"start{index} " + " ".join(PASSAGE) for index in range(300)]
    job = job_of(tmp_path, texts)
    folders = run_spans(job, span_config(N), tmp_path / "work", memory_bytes=1 << 10)
    reference = span_bytes(folders)
    assert (folders.grams / "grams.00000.00002.npy").exists()
    list_file_grams(job.inputs[0], 0, span_config(N), folders, 1 << 20)
    list(CutSpans(job.inputs, span_config(N), folders).run())
    assert span_bytes(folders) == reference


@pytest.mark.parametrize("kind", ["signed/documents", "decided/rank", "decided/status", "anchors/count"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damage_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    job = job_of(tmp_path, [" ".join(PASSAGE)] * 2)
    folders = run_spans(job, span_config(N), tmp_path / "work")
    path = tmp_path / "work" / f"{kind}.00000.npy"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamageError, match=path.name.replace(".", r"\.")):
        list(ListGrams(job.inputs, span_config(N), folders).run())


def test_scratch_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    job = job_of(tmp_path, [" ".join(PASSAGE)] * 2)
    folders = run_spans(job, span_config(N), tmp_path / "work")
    repeats = folders.repeats / "repeats.00000.00000.npy"
    whole = repeats.read_bytes()
    repeats.write_bytes(whole[:-8])
    with pytest.raises(DamageError, match=r"repeats\.00000"):
        list(ListGrams(job.inputs, span_config(N), folders).run())
    repeats.write_bytes(whole)
    np.save(folders.grams / "order.00000.00000.npy", np.zeros(1, np.uint32))
    with pytest.raises(DamageError, match=r"order\.00000"):
        list(CutSpans(job.inputs, span_config(N), folders).run())
    assert not [path for path in folders.spans.iterdir() if path.name.startswith(".tmp")]
    (folders.grams / "grams.00000.json").unlink()
    with pytest.raises(DamageError, match=r"grams\.00000\.json"):
        list(CutSpans(job.inputs, span_config(N), folders).run())


def test_priorities_must_be_distinct_and_complete(tmp_path: Path) -> None:
    job = job_of(tmp_path, [" ".join(PASSAGE)] * 2)
    folders = run_spans(job, span_config(N), tmp_path / "work")
    np.save(folders.decided / "rank.00000.npy", np.array([4, 4]))
    with pytest.raises(DamageError, match="TR-SPANS-RANK"):
        list(CutSpans(job.inputs, span_config(N), folders).run())
    np.save(folders.decided / "rank.00000.npy", np.array([4]))
    with pytest.raises(DamageError, match=r"rank\.00000\.npy"):
        list(CutSpans(job.inputs, span_config(N), folders).run())


def test_an_input_that_changed_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, [" ".join(PASSAGE)] * 2)
    folders = run_spans(job, span_config(N), tmp_path / "work")
    write_sources(tmp_path, {"s": Source({"a.jsonl": [" ".join(PASSAGE), " ".join(OTHER)]}, 0)})
    for step in (FindAnchors, ListGrams):
        with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
            list(step(job.inputs, span_config(N), folders).run())


@pytest.mark.parametrize("n", [8, 50, 51, 1000])
def test_the_canary_finds_all_it_planted(n: int) -> None:
    assert check_canary(n) == 14


def test_the_canary_fails_where_a_cut_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = resolve.file_pieces
    monkeypatch.setattr("dataprep.spans.steps.file_pieces", lambda *a: pieces(*a)[:, 1:])
    with pytest.raises(JobError, match="TR-SPANS-CANARY: 1 of 14"):
        canary.check_canary(N)
