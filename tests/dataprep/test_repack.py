"""Repacking: the shards of a fresh build at the new sequence length, byte for byte; every text given back; killed,
refused and contradictory Datasets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import Built, borrow_work, run, segments_of

from dataprep import token_dataset
from dataprep.run import prepare, run_build
from loader.cli_options import Output
from loader.errors import DamageError, RefusedError
from loader.shards.commit import DatasetInfo, write_dataset_manifest
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.layout import PADDING_ROW
from loader.shards.manifest import InputFile
from loader.shards.segments import make_segments
from loader.shards.verify import verify_dataset
from loader.shards.writer import ShardSpec, ShardWriter
from loader.text.records import RecordPlace
from loader.text.roots import TextSource
from loader.text.tokenizers import load_tokenizer


def repack(dataset: Path | str, out: Path, seq_len: int, **options: Any) -> dict[str, Any]:
    from dataprep.repack import RepackOptions
    from dataprep.repack import repack as work

    workers = options.pop("workers", 1)
    return work(Path(dataset), out, RepackOptions(seq_len, **options), workers, Output(quiet=True))


def shard_bytes(path: Path) -> dict[str, bytes]:
    """Every shard file and index by its name."""
    files = [*path.rglob("shard.*"), *path.rglob("index.json"), path / "documents.npy", path / "files.txt"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def streams(dataset: Dataset) -> dict[int, tuple[list[int], list[tuple[int, int]]]]:
    """Document -> its tokens, and its byte ranges with what touches joined."""
    pieces: dict[int, list[tuple[int, list[int], int, int]]] = {}
    for _, table, row, tokens_T in segments_of(dataset):
        if not table.padding_S[row]:
            start, count = int(table.token_start_S[row]), int(table.num_tokens_S[row])
            first, size = int(table.byte_start_S[row]), int(table.byte_count_S[row])
            piece = (int(table.document_token_start_S[row]), tokens_T[start : start + count].tolist(), first, size)
            pieces.setdefault(int(table.document_id_S[row]), []).append(piece)
    found = {}
    for document, parts in pieces.items():
        parts.sort()
        ranges: list[tuple[int, int]] = []
        for _, _, first, size in parts:
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], first + size)
            elif size:
                ranges.append((first, first + size))
        found[document] = ([token for _, tokens, _, _ in parts for token in tokens], ranges)
    return found


def check_texts(dataset: Dataset) -> int:
    """Every segment against the raw file; the number of them."""
    tokenizer = load_tokenizer(dataset.path / "tokenizer")
    texts, count = TextSource(dataset, {}), 0
    for _, table, row, tokens_T in segments_of(dataset):
        if table.padding_S[row]:
            continue
        place = RecordPlace(int(table.record_start_S[row]), int(table.record_S[row]))
        text = texts.texts(int(table.file_S[row]), [place])[place].encode()
        start, first = int(table.token_start_S[row]), int(table.byte_start_S[row])
        own_T = tokens_T[start : start + int(table.num_tokens_S[row])]
        assert tokenizer.decode_bytes(own_T) == text[first : first + int(table.byte_count_S[row])]
        count += 1
    return count


@pytest.mark.parametrize(("seq_len", "strategy"), [(24, "best_fit"), (192, "concat"), (100, "first_fit")])
def test_shards_are_those_of_a_fresh_build(built: Built, tmp_path: Path, seq_len: int, strategy: str) -> None:
    config = borrow_work(built, tmp_path)
    overrides = (f"pack.seq_len={seq_len}", f"pack.strategy={strategy}")
    fresh = run_build(prepare(config, overrides, read_only=False), Output(quiet=True))
    for name in ("output", "validation"):
        out = tmp_path / f"repacked {name}"
        result = repack(built.result[name], out, seq_len, strategy=strategy, workers=2)
        assert shard_bytes(out) == shard_bytes(Path(fresh[name]))
        dataset, expected = open_dataset(out), open_dataset(fresh[name])
        assert verify_dataset(out) == []
        assert dataset.manifest.config == expected.manifest.config
        assert dataset.manifest.tokenizer == expected.manifest.tokenizer
        assert dataset.manifest.parents == {
            "dataset": open_dataset(built.result[name]).digest,
            "repack": result["repack"],
        }
        assert check_texts(dataset) > 50
        assert not (tmp_path / f"repacked {name}.work").exists()
        for source, row in result["sources"].items():
            segments = sum(
                int(shard["num_segments"])
                for shard in expected.shards_R
                if expected.source_names[int(shard["source"])] == source
            )
            assert row["packing"]["segments"] == segments
    assert result["validation"] is None
    for name in ("removed.parquet", "cuts.parquet", "rejected.parquet"):
        assert (tmp_path / "repacked output" / name).read_bytes() == (Path(built.result["output"]) / name).read_bytes()


def test_there_and_back_again(built: Built, tmp_path: Path) -> None:
    repack(built.result["output"], tmp_path / "b", 9)
    repack(tmp_path / "b", tmp_path / "a", 64)
    assert shard_bytes(tmp_path / "a") == shard_bytes(Path(built.result["output"]))
    assert streams(open_dataset(tmp_path / "b")) == streams(built.datasets[0])


def test_the_verb(built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("repack", built.result["output"], "--seq-len", "32", "--output", tmp_path / "out")
    result = run(capsys, *arguments, "--workers", "1")
    assert result["validation"] == built.result["validation"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = run(capsys, *arguments, "--workers", "2")
    assert again == result
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    taken = run(capsys, "repack", built.result["output"], "--seq-len", "33", "--output", tmp_path / "out", code=4)
    assert taken["error"]["code"] == "TR-OUTPUT-TAKEN"
    wrong = run(
        capsys,
        "repack",
        built.result["output"],
        "--seq-len",
        "33",
        "--output",
        tmp_path / "x",
        "--strategy",
        "best",
        code=2,
    )
    assert "best_fit" in wrong["error"]["expected"]


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param("repack-*/documents.00001.npy", marks=pytest.mark.slow),
        pytest.param("pack-*/samples.00001.json", marks=pytest.mark.slow),
        "write-*/*/web/shard.00001.mds",
    ],
)
def test_killed_and_run_again(built: Built, tmp_path: Path, wait: str) -> None:
    repack(built.result["output"], tmp_path / "whole", 16)
    code = (
        "import sys; from pathlib import Path; from dataprep.repack import *; from loader.cli_options import Output;"
        "repack(Path(sys.argv[1]), Path(sys.argv[2]), RepackOptions(16), 2, Output(quiet=True))"
    )
    command = [sys.executable, "-c", code, built.result["output"], str(tmp_path / "out")]
    process = subprocess.Popen(command, start_new_session=True)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until and not list((tmp_path / "out.work").glob(wait)):
        time.sleep(0.002)
    assert process.poll() is None, "it was over before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    repack(built.result["output"], tmp_path / "out", 16)
    assert shard_bytes(tmp_path / "out") == shard_bytes(tmp_path / "whole")
    assert open_dataset(tmp_path / "out").digest == open_dataset(tmp_path / "whole").digest


def test_a_damaged_dataset_is_named(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.result["output"], tmp_path / "data")
    shard = tmp_path / "data/web/shard.00001.mds"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamageError, match="differs from what was written"):
        repack(tmp_path / "data", tmp_path / "out", 32)
    assert not (tmp_path / "out").exists()


Piece = tuple[int, int, list[int], int, int]
"""Document, its tokens before, tokens, first byte, bytes."""


def make_set(folder: Path, shards: list[list[list[Piece]]], tokenizer: dict[str, Any], seq_len: int = 4) -> Path:
    """A Dataset of hand-made pieces."""
    records = []
    for number, samples in enumerate(shards):
        writer = ShardWriter(folder, ShardSpec("web", number, seq_len, 40))
        rows: dict[int, int] = {}
        for pieces in samples:
            tokens, segments = [], []
            for document, before, ids, first, size in pieces:
                if document not in rows:
                    rows[document] = writer.add_document(document, 0, document, 7 * document)
                segments.append((len(tokens), rows[document], before, first, size))
                tokens += ids
            if len(tokens) < seq_len:
                segments.append((len(tokens), PADDING_ROW, 0, 0, 0))
            writer.add_sample(np.array(tokens + [0] * (seq_len - len(tokens))), make_segments(*np.array(segments).T))
        records.append(writer.close())
    files = (InputFile("web", "a.jsonl"),)
    write_dataset_manifest(folder, DatasetInfo(("web",), seq_len, 40, tuple(records), files, tokenizer, 3, "0"))
    return folder


LOSSY = {"lossless": False, "bos_id": 1, "eos_id": 2, "pad_id": 0}
SETS: list[list[list[Piece]]] = [
    [[(5, 0, [1, 11, 12, 13], 0, 9)], [(5, 4, [14, 2], 9, 2), (6, 0, [1, 2], 0, 0)]],
    [[(7, 0, [1, 21, 22], 3, 5)], [(7, 3, [23, 24, 2], 10, 4)]],
]


def test_lossy_documents_keep_what_is_known(tmp_path: Path) -> None:
    dataset = open_dataset(make_set(tmp_path / "data", SETS, LOSSY))
    repack(dataset.path, tmp_path / "eight", 8)
    found = streams(open_dataset(tmp_path / "eight"))
    assert found == streams(dataset)
    assert found[7] == ([1, 21, 22, 23, 24, 2], [(3, 8), (10, 14)])
    for seq_len, strategy in ((2, None), (8, "concat")):
        with pytest.raises(RefusedError) as caught:
            repack(dataset.path, tmp_path / "other", seq_len if seq_len > 4 else 3 + 5, strategy=strategy or "concat")
        assert caught.value.code == "TR-REPACK-LOSSY"


def test_a_border_inside_a_lossy_segment_is_refused_by_name(tmp_path: Path) -> None:
    pieces: list[list[list[Piece]]] = [[[(5, 0, [1, *range(10, 25)], 0, 40)], [(5, 16, [30, 2], 40, 2)]]]
    data = make_set(tmp_path / "data", pieces, LOSSY, 16)
    with pytest.raises(RefusedError, match="split inside an old segment") as caught:
        repack(data, tmp_path / "out", 10)
    assert caught.value.code == "TR-REPACK-LOSSY"
    assert "a.jsonl record 5" in str(caught.value.place)
    repack(data, tmp_path / "same", 16)
    assert streams(open_dataset(tmp_path / "same")) == streams(open_dataset(data))


def test_documents_across_shards_are_joined(tmp_path: Path) -> None:
    shards: list[list[list[Piece]]] = [
        [[(5, 0, [1, 11, 12, 13], 0, 9)]],
        [[(6, 0, [1, 2], 0, 0)]],
        [[(5, 4, [14, 2], 9, 2), (8, 0, [1, 2], 0, 0)]],
        [[(8 + 1, 0, [1, 9, 2], 0, 4)]],
    ]
    dataset = open_dataset(make_set(tmp_path / "data", shards, LOSSY))
    repack(dataset.path, tmp_path / "out", 12)
    assert streams(open_dataset(tmp_path / "out")) == streams(dataset)


@pytest.mark.parametrize("name", ["documents", "tokens"])
def test_what_is_lost_on_the_way_is_never_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    data = make_set(tmp_path / "data", SETS, LOSSY)
    honest = token_dataset._read_written

    def one_less(*arguments: Any) -> token_dataset.WrittenSet:
        written = honest(*arguments)
        return replace(written, counts={"web": {**written.counts["web"], name: written.counts["web"][name] - 1}})

    monkeypatch.setattr(token_dataset, "_read_written", one_less)
    with pytest.raises(DamageError, match="source 'web'") as caught:
        repack(data, tmp_path / "out", 8)
    assert caught.value.code == "TR-ACCOUNT-WRONG"
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(token_dataset, "_read_written", honest)
    repack(data, tmp_path / "out", 8)
    assert streams(open_dataset(tmp_path / "out")) == streams(open_dataset(data))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([(5, 1, [11, 2], 0, 3)], "do not tile its tokens"),
        ([(5, 0, [11, 2], 0, 3)], "lacks BOS 1"),
        ([(5, 0, [1, 12], 0, 3)], "lacks EOS 2"),
        ([(5, 0, [1, 12], 3, 3), (5, 2, [13, 2], 4, 3)], "overlap"),
        ([(5, 0, [1], 0, 0)], "lacks EOS 2"),
    ],
)
def test_documents_that_contradict_themselves_are_named(tmp_path: Path, pieces: list[Piece], words: str) -> None:
    data = make_set(tmp_path / "data", [[pieces]], LOSSY)
    with pytest.raises(DamageError, match=words) as caught:
        repack(data, tmp_path / "out", 8)
    assert caught.value.code == "TR-REPACK-SEGMENTS"
    assert "a.jsonl record 5" in str(caught.value.place)
