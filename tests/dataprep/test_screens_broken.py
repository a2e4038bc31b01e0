"""What a hostile or careless user does to screens and cuts: options, item files, documents of which nothing is left."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from dataprep.config import BuildConfig
from dataprep.cuts import CUT_DTYPE, load_cuts, save_cuts
from dataprep.decontamination.files import load_found
from dataprep.decontamination.index import load_index
from dataprep.decontamination.items import items_identity, read_items
from dataprep.documents import Status
from dataprep.fates import Fates
from dataprep.inputs import check_names
from dataprep.run import prepare, run_build
from dataprep.screen_config import BenchmarkConfig, DecontaminateConfig
from dataprep.spans.store import load_array as spans_array
from loader.cli_options import Output
from loader.errors import ConfigError, DamageError
from loader.settings import load_config
from loader.shards.access import npy_bytes
from loader.shards.verify import verify_dataset

ITEM = "Natalia sold clips to forty eight of her friends in April and then she sold half as many clips in May how many"


def write_config(folder: Path, **changes: Any) -> Path:
    config = {"version": 1, "output": "out", "sources": {"web": {"root": "web"}}, **changes}
    path = folder / "build.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def write_texts(folder: Path, texts: list[str]) -> None:
    (folder / "web").mkdir(exist_ok=True)
    (folder / "web" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "items.jsonl").write_text(json.dumps({"question": ITEM, "answer": "72"}) + "\n")


def prose(number: int) -> str:
    rng = random.Random(number)
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=6)) for _ in range(60))


def build(path: Path) -> dict[str, Any]:
    return run_build(prepare(path, (), read_only=False), Output(quiet=True))


def test_options_of_filters_may_be_lists_and_mappings(tmp_path: Path) -> None:
    options = {"top_n_grams": [[2, 0.5], [3, 0.4]], "dup_n_grams": []}
    steps = [{"filter": "gopher_repetition", "options": options}]
    config = load_config(write_config(tmp_path, quality=steps), BuildConfig, ()).config
    assert config.quality[0].options == options
    check_names(config)
    steps = [{"filter": "gopher_repetition", "options": {"top_n_grams": [[1, {"deep": [None]}]]}}]
    config = load_config(write_config(tmp_path, quality=steps), BuildConfig, ()).config
    with pytest.raises(ConfigError, match="top_n_grams"):
        check_names(config)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("deep.jsonl", b'{"question": ' + b"[" * 100_000 + b"]" * 100_000 + b', "answer": ""}\n', "TR-BENCHMARK-ITEM"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab", "TR-BENCHMARK-FILES"),
        ("folder.jsonl/x", b"", "TR-BENCHMARK-FILES"),
    ],
)
def test_broken_item_files_are_named(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_items(DecontaminateConfig({"ours": BenchmarkConfig(path=name.split("/", maxsplit=1)[0])}), tmp_path)
    assert caught.value.code == code
    assert name.split("/", maxsplit=1)[0] in str(caught.value.place)


@pytest.mark.parametrize("pattern", ["", "**x/*.jsonl"])
def test_what_is_no_pattern_of_item_files(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_items(DecontaminateConfig({"ours": BenchmarkConfig(path=pattern)}), tmp_path)
    assert caught.value.code == "TR-BENCHMARK-FILES"


def test_items_with_lone_surrogates_have_a_digest(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"question": "a \\ud800 b", "answer": "c"}\n')
    config = DecontaminateConfig({"ours": BenchmarkConfig(path="items.jsonl")})
    assert items_identity(config, tmp_path)[0][1] == 1
    assert read_items(config, tmp_path)[0].question == "a ? b"


def test_documents_that_are_nothing_but_an_item_go_when_items_are_cut(tmp_path: Path) -> None:
    whole = [ITEM + " 72", f" {ITEM}\u2028\n72\u3000", f"{ITEM} 72 {ITEM.upper()}\n72 {ITEM}"]
    symbols = "@@@\n" + ITEM  # one screen cuts the first line, the other the rest
    write_texts(tmp_path, [*map(prose, range(20)), *whole, symbols, "before it " + ITEM + " 72"])
    changes = {
        "quality": [{"datatrove": "SymbolLinesFormatter", "options": {"symbols_to_remove": ["@"]}}],
        "decontaminate": {"benchmarks": {"gsm": {"path": "items.jsonl"}}, "action": "cut"},
        "dedup": {"methods": ["exact"]},
        "holdout": {"fraction": 0},
        "tokenizer": {
            "sentencepiece": {"train": {"vocab_size": 300, "sample_bytes": 9000}},
            "add_bos": False,
            "add_eos": False,
        },
        "pack": {"seq_len": 32},
        "run": {"workers": 1},
    }
    result = build(write_config(tmp_path, **changes))
    assert verify_dataset(Path(result["output"])) == []
    removed = pq.read_table(tmp_path / "out" / "removed.parquet").to_pylist()
    assert [(row["record"], row["method"], row["reason"]) for row in removed] == [
        (record, "contaminated", "decontaminate: gsm") for record in (20, 21, 22, 23)
    ]
    cuts = pq.read_table(tmp_path / "out" / "cuts.parquet").to_pylist()
    assert [(row["record"], row["method"], row["byte_start"]) for row in cuts] == [(24, "decontaminate", 10)]


def test_what_stages_together_cut_whole_is_removed_and_listed(tmp_path: Path) -> None:
    documents_D = np.zeros(4, [("record", "<u8"), ("size_bytes", "<u8")])
    documents_D["record"], documents_D["size_bytes"] = (0, 1, 2, 3), (10, 10, 10, 10)
    np.save(tmp_path / "documents.00000.npy", documents_D)
    np.save(tmp_path / "status.00000.npy", np.array([0, Status.HELD_OUT, 0, Status.REMOVED_EXACT], np.uint8))
    rows = [(0, 0, 6, "decontaminate"), (0, 5, 5, "ngram"), (1, 0, 10, "SymbolLinesFormatter"), (2, 0, 6, "ngram")]
    rows += [(2, 0, 9, "ngram"), (3, 0, 10, "ngram")]
    cuts_C = np.zeros(len(rows), CUT_DTYPE)
    for row, (record, start, count, method) in zip(cuts_C, rows, strict=True):
        row["record"], row["byte_start"], row["byte_count"], row["method"] = record, start, count, method.encode()
    save_cuts(tmp_path, 0, cuts_C)
    fates = Fates(tmp_path, (tmp_path,), (), tmp_path)
    assert fates.status_of_file(0).tolist() == [
        Status.REMOVED_NGRAM, Status.REMOVED_QUALITY, Status.KEPT, Status.REMOVED_EXACT
    ]  # fmt: skip
    assert [reason for _, _, reason in fates.emptied_of_file(0)] == [
        "cut whole: decontaminate, ngram",
        "cut whole: SymbolLinesFormatter",
    ]


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY", npy_bytes(np.zeros(9, CUT_DTYPE))[:-40], b"\x80\x04N."])
def test_damaged_files_between_stages_are_named(tmp_path: Path, content: bytes | None) -> None:
    names = ("cuts.00000.npy", "status.00000.npy", "verdict.00000.npy", "grams_F.npy")
    for name in names if content is not None else ():
        (tmp_path / name).write_bytes(content or b"")
    reads: list[Callable[[], object]] = [
        lambda: load_cuts([tmp_path], 0),
        lambda: Fates(tmp_path).status_of_file(0),
        lambda: load_found(tmp_path, 0),
        lambda: load_index(tmp_path),
        lambda: load_index(tmp_path, with_texts=False),
        lambda: spans_array(tmp_path / names[0]),
    ]
    for read in reads:
        with pytest.raises(DamageError) as caught:
            read()
        assert caught.value.code in ("TR-WORK-DAMAGED", "TR-SPANS-DAMAGED")
        assert str(tmp_path) in str(caught.value.place)


@pytest.mark.parametrize(
    "memory", ["0", "12XB", "4 gb", "63MiB", "1.5GB", "-4GB", "", "9" * 5000 + "GB", "9" * 12 + "TB"]
)
def test_what_is_no_amount_of_memory(tmp_path: Path, memory: str) -> None:
    with pytest.raises(ConfigError, match="memory: a whole number with"):
        load_config(write_config(tmp_path, run={"memory": memory}), BuildConfig, ())


def test_a_length_that_no_text_has(tmp_path: Path) -> None:
    steps = [{"filter": "length", "options": {"min_words": 30, "max_words": 3}}]
    config = load_config(write_config(tmp_path, quality=steps), BuildConfig, ()).config
    with pytest.raises(ConfigError, match="min_words: at most max_words"):
        check_names(config)
