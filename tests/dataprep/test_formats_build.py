"""A build from each format gives, to the byte, the tokens of a build from JSONL, and finds its texts again."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import ipc
from support.warc import warc_record

from dataprep.run import prepare, run_build
from loader.cli_options import Output
from loader.shards.dataset import Dataset, open_dataset
from loader.text.records import RecordPlace
from loader.text.roots import TextSource

NAME = "data.arrow"  # the same in every format: a document's id is its source, path and record


def _texts() -> list[str]:
    rng = random.Random(4)
    words = ["reel", "token", "naïve", "東京", "<s>", "tab\there", "a,b", '"q"', "\\", "привет", "x\ny", "end  "]
    return [f"number {number} " + " ".join(rng.choice(words) for _ in range(60)) + "." for number in range(60)]


TEXTS = _texts()


def _table() -> pa.Table:
    return pa.table({"id": range(len(TEXTS)), "text": TEXTS})


def _arrow() -> bytes:
    memory = io.BytesIO()
    with ipc.new_stream(memory, _table().schema) as writer:
        writer.write_table(_table(), max_chunksize=7)
    return memory.getvalue()


def _parquet() -> bytes:
    memory = io.BytesIO()
    pq.write_table(_table(), memory, row_group_size=11)
    return memory.getvalue()


FORMS: dict[str, Callable[[], bytes]] = {
    "jsonl": lambda: "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode(),
    "arrow": _arrow,
    "huggingface": _arrow,
    "parquet": _parquet,
    "text_paragraphs": lambda: "\n\n".join(TEXTS).encode(),
    "warc": lambda: b"".join(warc_record(text.encode()) for text in TEXTS),
}


def build(folder: Path, form: str) -> Dataset:
    """Build a job of one source in ``folder``/in; open its Dataset."""
    config = {
        "version": 1,
        "output": "out",
        "sources": {"web": {"root": "in", "paths": ["data*"], "format": form}},
        "holdout": {"fraction": 0},
        "tokenizer": {"sentencepiece": {"train": {"vocab_size": 360, "sample_bytes": 20000}}},
        "pack": {"seq_len": 64, "window_documents": 32},
        "run": {"workers": 1},
    }
    path = folder / "build.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    result = run_build(prepare(path, (), read_only=False), Output(quiet=True))
    return open_dataset(result["output"])


def shards(dataset: Dataset) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in sorted(dataset.path.rglob("*.mds"))}
    assert found
    return found


def texts_again(dataset: Dataset) -> list[str]:
    """The text of every document of the Dataset, read again by its Origin."""
    source = TextSource(dataset, {})
    count = int(dataset.shard_samples("web").sum())
    table = dataset.segments_of("web", np.arange(count))
    places: dict[int, set[RecordPlace]] = {}
    for row in np.flatnonzero(~table.padding_S).tolist():
        place = RecordPlace(int(table.record_start_S[row]), int(table.record_S[row]))
        places.setdefault(int(table.file_S[row]), set()).add(place)
    return [text for file, wanted in places.items() for text in source.texts(file, sorted(wanted)).values()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("jsonl")
    (folder / "in").mkdir()
    (folder / "in" / NAME).write_bytes(FORMS["jsonl"]())
    dataset = build(folder, "jsonl")
    assert texts_again(dataset) == TEXTS
    return shards(dataset)


@pytest.mark.parametrize(
    "form", ["arrow", "parquet", "text_paragraphs", "warc", pytest.param("huggingface", marks=pytest.mark.slow)]
)
def test_a_build_gives_the_tokens_of_one_from_jsonl(tmp_path: Path, reference: dict[str, bytes], form: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / NAME).write_bytes(FORMS[form]())
    dataset = build(tmp_path, form)
    assert shards(dataset) == reference
    assert texts_again(dataset) == TEXTS


def test_a_build_from_a_folder_of_text_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    texts = ["\n\n".join(TEXTS[start::5]) for start in range(5)]
    for number, text in enumerate(texts):
        (tmp_path / "in" / f"data{number}.txt").write_bytes(text.encode())
    assert sorted(texts_again(build(tmp_path, "text"))) == sorted(texts)
