"""Builds end to end: every segment is the text it says, nothing is lost, nothing depends on how it was run."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.builds import Built, borrow_work, run, segments_of
from support.corpora import Corpus, write_config

from dataprep import account, buckets, publish, tokenize, tokenizer_stage
from dataprep.formats import read_options
from dataprep.holdout import holdout_remarks
from dataprep.job import Job
from dataprep.pipeline import Pipeline
from dataprep.run import prepare
from dataprep.token_facts import stored_dtype
from loader.cli import main
from loader.errors import DamageError, RefusedError
from loader.shards.dataset import open_dataset
from loader.shards.verify import verify_dataset
from loader.text.records import document_id
from loader.text.tokenizers import load_tokenizer

SEED = 17


def test_every_segment_is_the_text_it_says(built: Built) -> None:
    seen: dict[int, list[tuple[int, int, int]]] = {}
    id_of = {
        document_id(source, path, record, SEED): (source, path, record) for source, path, record in built.corpus.texts
    }
    assert len(id_of) == len(built.corpus.texts)
    for dataset in built.datasets:
        tokenizer = load_tokenizer(dataset.path / "tokenizer")
        assert tokenizer.lossless
        for source, table, row, tokens_T in segments_of(dataset):
            start, count = int(table.token_start_S[row]), int(table.num_tokens_S[row])
            tokens = tokens_T[start : start + count]
            if table.padding_S[row]:
                assert (tokens == tokenizer.pad_id).all()
                continue
            document = int(table.document_id_S[row])
            place = (source, dataset.file_path(int(table.file_S[row])), int(table.record_S[row]))
            assert id_of[document] == place
            text = built.corpus.texts[place].encode()
            first, size = int(table.byte_start_S[row]), int(table.byte_count_S[row])
            assert tokenizer.decode_bytes(tokens) == text[first : first + size]
            assert (tokens[0] == tokenizer.bos_id) == (int(table.document_token_start_S[row]) == 0)
            assert (tokens[-1] == tokenizer.eos_id) == (first + size == len(text) and tokens[-1] == tokenizer.eos_id)
            seen.setdefault(document, []).append((int(table.document_token_start_S[row]), first, size))
            assert not (set(tokens[1:-1].tolist()) & {tokenizer.bos_id, tokenizer.eos_id})
    for document, pieces in seen.items():
        pieces.sort()
        text = built.corpus.texts[id_of[document]].encode()
        assert [first for _, first, _ in pieces] == [0, *np.cumsum([size for *_, size in pieces])[:-1].tolist()]
        assert sum(size for *_, size in pieces) == len(text)
    rows = built.result["accounting"]["sources"]
    assert len(seen) == sum(row["trained"] + row["held_out"] for row in rows.values())


def test_whole_documents_are_never_cut_and_split_ones_only_at_seq_len(built: Built) -> None:
    for dataset in built.datasets:
        pieces: dict[int, list[tuple[int, int]]] = {}
        for _, table, row, _ in segments_of(dataset):
            if not table.padding_S[row]:
                piece = (int(table.document_token_start_S[row]), int(table.num_tokens_S[row]))
                pieces.setdefault(int(table.document_id_S[row]), []).append(piece)
        for parts in pieces.values():
            parts.sort()
            assert [start for start, _ in parts] == [64 * i for i in range(len(parts))]
            assert all(count == 64 for _, count in parts[:-1])


def test_every_record_is_accounted_for(built: Built) -> None:
    rows = built.result["accounting"]["sources"]
    removed = pq.read_table(built.datasets[0].path / "removed.parquet").to_pylist()
    rejected = pq.read_table(built.datasets[0].path / "rejected.parquet").to_pylist()
    for source, row in rows.items():
        texts = [text for (owner, *_), text in built.corpus.texts.items() if owner == source]
        assert row["documents"] == len(texts)
        assert row["bytes"] == sum(len(text.encode()) for text in texts)
        assert row["rejected"] == sum(item["source"] == source for item in rejected)
        assert sum(row["removed"].values()) == sum(item["source"] == source for item in removed)
        assert row["records"] == row["trained"] + row["held_out"] + row["rejected"] + sum(row["removed"].values())
    assert rows["web"]["rejected"] == 2
    assert sum(row["removed"]["exact"] for row in rows.values()) == 3
    assert rows["web"]["held_out"] > 0
    for item in removed:
        assert (item["source"], item["file"], item["record"]) in built.corpus.texts


def test_held_out_documents_are_in_the_validation_dataset_alone(built: Built) -> None:
    train, validation = (
        {int(t.document_id_S[r]) for _, t, r, _ in segments_of(d) if not t.padding_S[r]} for d in built.datasets
    )
    assert validation
    assert not train & validation


def test_a_source_of_which_nothing_is_held_out_is_named(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert built.result["remarks"] == [], "of both sources something is held out"
    (tmp_path / "few").mkdir()
    words = [" ".join(f"word{number}{place}" for place in range(20)) for number in range(2)]
    lines = [json.dumps({"text": text}) for text in words]
    (tmp_path / "few" / "a.jsonl").write_text("\n".join(lines) + "\n")
    root = built.corpus.root
    sources = {name: {"root": str(root / name)} for name in ("web", "code")} | {"few": {"root": str(tmp_path / "few")}}
    config = write_config(tmp_path / "build.yaml", built.corpus, sources=sources, holdout={"fraction": 0.06})
    capsys.readouterr()
    assert main(["build", str(config), "--quiet"]) == 0
    remarks = [line for line in capsys.readouterr().out.splitlines() if line.startswith("remark ")]
    rows = open_dataset(tmp_path / "out").manifest.accounting["sources"]
    assert {name: row["held_out"] > 0 for name, row in rows.items()} == {"web": True, "code": True, "few": False}
    assert len(remarks) == 1
    assert f"few: none of {rows['few']['trained']} documents was held out" in remarks[0]
    assert "; it needs more documents" in remarks[0]
    again = run(capsys, "build", config)
    assert len(again["remarks"]) == 1, "a finished build says it again"
    assert holdout_remarks(rows, 0.0) == [], "none was wanted"


def test_both_datasets_verify(built: Built) -> None:
    for dataset in built.datasets:
        assert verify_dataset(dataset.path) == []


def test_second_run_does_nothing(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    again = run(capsys, "build", built.config)
    assert again["digest"] == built.result["digest"]
    assert again["stages_s"] == {}
    plan = run(capsys, "build", built.config, "--plan")
    assert plan["finished"]
    assert [stage["to_run"] for stage in plan["stages"]] == [0] * len(plan["stages"])


def test_workers_do_not_change_the_digest(built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "build.yaml", built.corpus, run={"workers": 1, "work": "elsewhere"})
    result = run(capsys, "build", config)
    assert (result["digest"], result["validation_digest"]) == (
        built.result["digest"],
        built.result["validation_digest"],
    )


def test_another_configuration_in_the_same_output_is_refused(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    error = run(capsys, "build", built.config, "--set", "pack.seq_len=128", code=4)["error"]
    assert error["code"] == "TR-DATASET-OTHER"
    assert run(capsys, "build", built.config)["digest"] == built.result["digest"]


def test_plan_writes_nothing(built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "build.yaml", built.corpus)
    plan = run(capsys, "build", config, "--plan")
    assert plan["digest"] == built.result["build"]
    assert not plan["finished"]
    assert [path.name for path in tmp_path.iterdir()] == ["build.yaml"]


def test_mix_by_ratio_lists_what_it_leaves_out(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix = {"ratios": {"web": 3, "code": 1}, "total_tokens": 4000}
    borrow_work(built, tmp_path)
    config = write_config(tmp_path / "build.yaml", built.corpus, mix=mix)
    rows = {row["source"]: row for row in run(capsys, "mix", config)["mix"]}
    assert rows["web"]["planned_tokens"] == 3000
    assert 3000 <= rows["web"]["kept_tokens"] < 3300
    result = run(capsys, "build", config)
    for source, row in result["accounting"]["sources"].items():
        assert row["trained_tokens"] == rows[source]["kept_tokens"]
        assert row["removed"]["mix"] > 0
    removed = pq.read_table(Path(result["output"]) / "removed.parquet").to_pylist()
    left_out = [item for item in removed if item["method"] == "mix"]
    assert len(left_out) == sum(row["removed"]["mix"] for row in result["accounting"]["sources"].values())
    assert all(item["witness_document"] is None for item in left_out)


def test_repeated_source_weighs_what_the_mix_planned(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan wants ``code`` more often than it is there: once on disk, its planned share in the default mixture."""
    from loader.run_config import default_weights
    from loader.sources import open_sources

    borrow_work(built, tmp_path)
    mix = {"ratios": {"web": 1, "code": 4}, "total_tokens": 40_000}
    config = write_config(tmp_path / "build.yaml", built.corpus, mix=mix)
    result = run(capsys, "build", config)
    rows = {row["source"]: row for row in result["accounting"]["mix"]}
    assert rows["code"]["epochs"] > 1
    assert 0.9 < rows["web"]["epochs"] <= 1
    dataset = open_dataset(result["output"])
    assert [info.num_tokens for info in dataset.manifest.sources] == [rows[s]["kept_tokens"] for s in ("web", "code")]
    weights = default_weights(open_sources([dataset]))
    assert weights["code"] / sum(weights.values()) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("moves_done", [0, 1])
def test_stopped_while_publishing(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moves_done: int
) -> None:
    config = borrow_work(built, tmp_path)
    move, moves = publish._move, []

    def stop(staging: Path, place: Path) -> None:
        if len(moves) == moves_done:
            (staging / ".tmp-999999999-torn").write_bytes(b"half a file")
            raise KeyboardInterrupt
        moves.append(place)
        move(staging, place)

    monkeypatch.setattr(publish, "_move", stop)
    assert main(["build", str(config), "--quiet"]) == 130
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(publish, "_move", move)
    result = run(capsys, "build", config)
    assert (result["digest"], result["validation_digest"]) == (
        built.result["digest"],
        built.result["validation_digest"],
    )
    assert not list((tmp_path / "out.work").glob("write-*"))
    assert verify_dataset(tmp_path / "out") == []


def test_work_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be renamed is copied under a temporary name first; the torn copy of an earlier try goes away."""
    staging, place = tmp_path / "work" / "train", tmp_path / "data" / "out"
    (staging / "web").mkdir(parents=True)
    (staging / "web" / "shard").write_bytes(b"tokens")
    (tmp_path / "data" / ".tmp-4194999-out").mkdir(parents=True)
    rename = os.rename

    def other_device(source: Path, target: Path) -> None:
        if source == staging:
            raise OSError(errno.EXDEV, "cross-device")
        rename(source, target)

    monkeypatch.setattr(publish.os, "rename", other_device)
    publish._move(staging, place)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["out"]
    assert (place / "web" / "shard").read_bytes() == b"tokens"


def test_deleted_dataset_is_built_again_from_finished_stages(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = borrow_work(built, tmp_path)
    run(capsys, "build", config)
    (tmp_path / "out").rename(tmp_path / "moved away")
    result = run(capsys, "build", config)
    assert result["digest"] == built.result["digest"]


def test_loaded_lossy_tokenizer_still_names_all_bytes(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sentencepiece

    with open(tmp_path / "lossy.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.replace("\0", " ") for text in built.corpus.texts.values()),
            model_writer=file,
            vocab_size=400,
            minloglevel=2,
            hard_vocab_limit=False,
        )
    tokenizer = {"sentencepiece": {"load": "lossy.model"}, "add_bos": False}
    borrow_work(built, tmp_path)
    config = write_config(tmp_path / "build.yaml", built.corpus, tokenizer=tokenizer)
    result = run(capsys, "build", config)
    dataset = open_dataset(result["output"])
    assert dataset.manifest.tokenizer["lossless"] is False
    assert dataset.manifest.tokenizer["bos_id"] is None
    covered: dict[int, int] = {}
    for _, table, row, _ in segments_of(dataset):
        if not table.padding_S[row]:
            document = int(table.document_id_S[row])
            covered[document] = covered.get(document, 0) + int(table.byte_count_S[row])
    assert sum(covered.values()) == sum(row["trained_bytes"] for row in result["accounting"]["sources"].values())


def test_one_document_with_a_datasets_own_tokenizer(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b'{"text": "' + b"the only document there is " * 40 + b'"}')
    config = write_config(
        tmp_path / "build.yaml",
        Corpus(tmp_path, {}),
        sources={"web": {"root": "in"}},
        tokenizer={"sentencepiece": {"load": str(built.datasets[0].path / "tokenizer")}},
        holdout={"fraction": 0},
    )
    dataset = open_dataset(run(capsys, "build", config)["output"])
    assert dataset.manifest.tokenizer["digest"] == built.datasets[0].manifest.tokenizer["digest"]
    assert dataset.manifest.sources[0].num_documents == 1
    assert verify_dataset(dataset.path) == []


def test_a_document_lost_on_the_way_is_never_published(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = borrow_work(built, tmp_path)
    honest = account.read_written

    def one_less(stages: Pipeline) -> account.Written:
        written = honest(stages)
        counts = {name: dict(row) for name, row in written.counts[0].items()}
        counts["web"]["documents"] -= 1
        return account.Written(written.records, (counts, written.counts[1]))

    monkeypatch.setattr(account, "read_written", one_less)
    error = run(capsys, "build", config, code=3)["error"]
    assert error["code"] == "TR-ACCOUNT-WRONG"
    assert "'web'" in error["message"]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(account, "read_written", honest)
    assert run(capsys, "build", config)["digest"] == built.result["digest"]


def test_every_count_of_what_was_written_is_checked(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = borrow_work(built, tmp_path)
    honest = account.account

    def tampered(stages: Pipeline, written: account.Written) -> dict[str, Any]:
        for split in (0, 1):
            for name in ("documents", "bytes", "cut_bytes", "tokens"):
                counts = [{source: dict(row) for source, row in one.items()} for one in written.counts]
                counts[split]["web"][name] += 1
                with pytest.raises(DamageError, match="TR-ACCOUNT-WRONG"):
                    honest(stages, account.Written(written.records, (counts[0], counts[1])))
        return honest(stages, written)

    monkeypatch.setattr(account, "account", tampered)
    assert run(capsys, "build", config)["digest"] == built.result["digest"]


def test_report_verb_renders_the_same_page(built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "report", built.datasets[0].path, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (built.datasets[0].path / "report.html").read_bytes()


def test_many_buckets_hold_the_same_documents(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets are ranges of keys: more of them make other windows and shards of the very same documents."""
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 16_384)
    config = borrow_work(built, tmp_path)
    plan = run(capsys, "build", config, "--plan")
    tasks = {stage["stage"]: stage["tasks"] for stage in plan["stages"]}
    assert tasks["write"] == tasks["pack"] > 6
    assert [stage["stage"] for stage in plan["stages"] if stage["to_run"]] == ["pack", "write"]
    result = run(capsys, "build", config)
    dataset = open_dataset(result["output"])
    assert verify_dataset(dataset.path) == []
    assert len(dataset.shard_samples("web")) > len(built.datasets[0].shard_samples("web"))
    few, many = (
        sorted(
            (int(t.document_id_S[r]), int(t.byte_start_S[r]), int(t.byte_count_S[r])) for _, t, r, _ in segments_of(d)
        )
        for d in (built.datasets[0], dataset)
    )
    assert [row for row in few if row[2]] == [row for row in many if row[2]]


def test_token_runs_do_not_show_in_the_documents(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a file's tokens are cut into sorted runs, each document's place holds its own tokens."""
    prepared = prepare(built.config, (), read_only=True)
    stages = prepared.pipeline
    tokenizer = load_tokenizer(stages.folder("tokenizer") / "tokenizer")
    for run_tokens in (1, 500, 1 << 25):
        monkeypatch.setattr(tokenize, "_RUN_TOKENS", run_tokens)
        monkeypatch.setattr(tokenize, "read_options", lambda ingest: read_options(ingest, batch_bytes=2000))
        out = tmp_path / str(run_tokens)
        sign, maker = (stages.folder(name) for name in ("sign", "tokenizer"))
        step = tokenize.TokenizeDocuments(stages.job, stages.fates(), (sign, maker, out))
        list(step.run(None, 0, 4))
        table_D = np.load(out / "documents.00000.npy")
        tokens_T = np.fromfile(out / "tokens.00000.bin", stored_dtype(tokenizer.vocab_size, not tokenizer.lossless))
        assert int(table_D["num_tokens"].sum()) == len(tokens_T)
        order = list(zip(table_D["split"].tolist(), table_D["key"].tolist(), strict=True))
        assert order == sorted(order)
        inputs = stages.job.inputs[0]
        for row in table_D:
            text = built.corpus.texts[inputs.source, inputs.path, int(row["record"])].encode()
            place = int(row["place"])
            assert tokenizer.decode_bytes(tokens_T[place : place + int(row["num_tokens"])]) == text


def test_input_changed_behind_an_unchanged_size_and_time_is_refused(built: Built, tmp_path: Path) -> None:
    """Every later read sees the very bytes that were signed, whatever the file's attributes say."""
    stages = prepare(built.config, (), read_only=True).pipeline
    place = tmp_path / "a.jsonl"
    place.write_bytes(stages.job.inputs[0].location.read_bytes())
    status = place.stat()
    inputs = (replace(stages.job.inputs[0], root=str(tmp_path)), *stages.job.inputs[1:])
    raw = replace(stages.job.raw[0], path=str(place), mtime_ns=status.st_mtime_ns)
    job = Job(stages.job.config, inputs, (raw, *stages.job.raw[1:]))
    sign, choose, tokenizer = (stages.folder(name) for name in ("sign", "choose", "tokenizer"))
    steps = (
        tokenizer_stage.SampleTexts(job, stages.fates(), (sign, choose, tmp_path / "sample")),
        tokenize.TokenizeDocuments(job, stages.fates(), (sign, tokenizer, tmp_path / "tokenize")),
    )
    for step in steps:
        list(step.run(None, 0, 4))
    data = place.read_bytes()
    place.write_bytes(data.replace(b'"id": 40', b'"id": 41'))
    assert place.stat().st_size == status.st_size
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    for step in steps:
        with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
            list(step.run(None, 0, 4))


def test_example_configuration_builds(built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``configs/build.yaml`` as it stands, on a corpus where it expects one; only sizes are made small."""
    shutil.copy(Path(__file__).parents[2] / "configs" / "build.yaml", tmp_path / "build.yaml")
    shutil.copytree(built.corpus.root, tmp_path / "corpus")
    changes = ("tokenizer.sentencepiece.train.vocab_size=400", "ingest.max_reject_fraction=0.1", "holdout.fraction=0")
    sets = [word for change in changes for word in ("--set", change)]
    result = run(capsys, "build", tmp_path / "build.yaml", *sets)
    assert Path(result["output"]) == tmp_path / "data" / "example"
    assert result["validation"] is None
    assert not (tmp_path / "data" / "example-validation").exists()


def test_report_page_names_every_source(built: Built) -> None:
    page = (built.datasets[0].path / "report.html").read_text()
    assert "web" in page
    assert "code" in page
    assert "minhash" in page


class TestMistakes:
    def check(self, capsys: pytest.CaptureFixture[str], config: Path, code: int, word: str) -> dict[str, Any]:
        error: dict[str, Any] = run(capsys, "build", config, code=code)["error"]
        assert error["code"] == word
        return error

    def test_missing_root(self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = write_config(tmp_path / "c.yaml", built.corpus, sources={"web": {"root": "nowhere"}})
        error = self.check(capsys, config, 2, "TR-SOURCE-ROOT")
        assert "'web'" in error["message"]

    def test_no_file_matches(self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        sources = {"web": {"root": str(built.corpus.root), "paths": ["*.parquet"]}}
        config = write_config(tmp_path / "c.yaml", built.corpus, sources=sources)
        assert "*.parquet" in self.check(capsys, config, 2, "TR-SOURCE-EMPTY")["message"]

    def test_unknown_key_and_engine(self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = write_config(tmp_path / "c.yaml", built.corpus, paks={})
        assert "did you mean 'pack'" in self.check(capsys, config, 2, "TR-CONFIG-INVALID")["message"]
        config = write_config(tmp_path / "c.yaml", built.corpus, run={"engine": "abacus"})
        self.check(capsys, config, 2, "TR-ENGINE-UNKNOWN")

    def test_mix_of_unknown_source(self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = write_config(tmp_path / "c.yaml", built.corpus, mix={"ratios": {"web": 1, "wb": 1}})
        assert "'wb'" in self.check(capsys, config, 2, "TR-CONFIG-INVALID")["message"]

    @pytest.mark.parametrize("change", ["sources.web.format=docx", "pack.strategy=worst_fit"])
    def test_names_that_no_table_knows(
        self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
    ) -> None:
        config = write_config(tmp_path / "c.yaml", built.corpus)
        error = run(capsys, "build", config, "--set", change, code=2)["error"]
        assert (error["code"], error["place"]) == ("TR-CONFIG-NAME", change.partition("=")[0])

    def test_all_records_rejected(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jsonl").write_bytes(b'{"body": "x"}\n' * 5)
        corpus = Corpus(tmp_path, {})
        config = write_config(tmp_path / "c.yaml", corpus, sources={"web": {"root": "in"}})
        error: dict[str, Any] = run(capsys, "build", config, code=1)["error"]
        assert "web" in error["message"]
        assert "stage decide" in error["message"]

    def test_empty_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jsonl").write_bytes(b"")
        config = write_config(tmp_path / "c.yaml", Corpus(tmp_path, {}), sources={"web": {"root": "in"}})
        assert "web" in run(capsys, "build", config, code=1)["error"]["message"]

    def test_output_taken_by_something_else(
        self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("years of work")
        config = write_config(tmp_path / "c.yaml", built.corpus)
        self.check(capsys, config, 4, "TR-OUTPUT-TAKEN")
        assert (tmp_path / "out" / "thesis.tex").exists()

    def test_vocabulary_larger_than_the_sample_gives(
        self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tokenizer = {"sentencepiece": {"train": {"vocab_size": 60000, "sample_bytes": 30000}}}
        borrow_work(built, tmp_path)
        config = write_config(tmp_path / "c.yaml", built.corpus, tokenizer=tokenizer)
        error = self.check(capsys, config, 2, "TR-TOKENIZER-VOCAB")
        assert "stage tokenizer, rank 0" in error["message"]
        assert "Vocabulary size too high" in error["expected"]

    def test_model_that_is_missing_or_none(
        self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        borrow_work(built, tmp_path)
        tokenizer = {"sentencepiece": {"load": "some.model"}}
        config = write_config(tmp_path / "c.yaml", built.corpus, tokenizer=tokenizer)
        model = tmp_path / "some.model"
        assert self.check(capsys, config, 2, "TR-TOKENIZER-LOAD")["place"] == str(model)
        for content in (b"", b"no model" * 99):
            model.write_bytes(content)
            assert self.check(capsys, config, 3, "TR-TOKENIZER-MODEL")["place"] == str(model)

    def test_work_folder_that_cannot_be_made(
        self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "out.work").write_text("a file")
        config = write_config(tmp_path / "c.yaml", built.corpus)
        assert self.check(capsys, config, 1, "TR-FILE-SYSTEM")["place"] == str(tmp_path / "out.work")

    def test_work_folder_in_use(self, built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from dataprep.pipeline import locked

        config = write_config(tmp_path / "c.yaml", built.corpus)
        with locked(tmp_path / "out.work"):
            self.check(capsys, config, 1, "TR-WORK-BUSY")
