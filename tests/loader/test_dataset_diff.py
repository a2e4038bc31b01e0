"""What differs between two Datasets or runs: documents against an oracle of sets, fates against what was put there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, train

from loader import dataset_diff
from loader.dataset_diff import document_difference
from loader.diff import changed_keys, compare, to_text
from loader.errors import ConfigError, DamageError
from loader.order import SkipEntry
from loader.run_view import open_run
from loader.runs import append_skips, lock_run
from loader.sealed import seal, unseal
from loader.shards.layout import DOCUMENT_INDEX_DTYPE


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeDataset, MadeDataset]:
    folder = tmp_path_factory.mktemp("diff")
    one = DatasetSpec(documents={"web": 30, "code": 8}, seq_len=48, samples_per_shard=5)
    other = DatasetSpec(documents={"web": 36, "books": 7}, seq_len=48, samples_per_shard=4, max_words=30)
    return make_dataset(folder, one, "a"), make_dataset(folder, other, "b")


def test_the_same_is_said_and_nothing_more(pair: tuple[MadeDataset, MadeDataset]) -> None:
    value = compare(pair[0].path, pair[0].path)
    assert value["same"]
    assert set(value) == {"kind", "same", "left", "right"}
    assert pair[0].digest in to_text(value)


def test_documents_inputs_and_counts_of_two_datasets(pair: tuple[MadeDataset, MadeDataset]) -> None:
    one, other = pair
    value = compare(one.path, other.path, examples=3)
    left, right = set(one.documents), set(other.documents)
    documents = value["documents"]
    assert documents["in_both"] == len(left & right)
    for side, mine, only in (("removed", one, left - right), ("added", other, right - left)):
        part = documents[side]
        assert part["count"] == len(only)
        by_source: dict[str, int] = {}
        for document in only:
            source = mine.documents[document].source
            by_source[source] = by_source.get(source, 0) + 1
        assert part["by_source"] == by_source
        assert sum(part["there"].values()) == len(only)
        shown = [mine.documents[document] for document in sorted(only)[:3]]
        assert part["examples"] == [
            {"document": f"{d.id:016x}", "source": d.source, "file": d.path, "record": d.record} for d in shown
        ]
    assert documents["removed"]["there"] == {"no input": 8}
    assert documents["added"]["there"] == {"no input": 7, "input changed": 6}
    assert {k: v for k, v in value["inputs"].items() if isinstance(v, int)} == {"added": 2, "removed": 2, "changed": 2}
    changes = {change["key"]: change for change in value["changes"]["sources"]}
    assert (changes["(all).num_documents"]["left"], changes["(all).num_documents"]["right"]) == (38, 43)
    assert "right" not in changes["code.num_tokens"]
    assert json.loads(json.dumps(value)) == value
    assert f"count: {len(left - right)}" in to_text(value)


def test_a_damaged_side_is_damage(pair: tuple[MadeDataset, MadeDataset], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(pair[0].path, tmp_path / "copy"))
    data = bytearray((copy / "documents.npy").read_bytes())
    data[-1] ^= 1
    (copy / "documents.npy").write_bytes(data)
    with pytest.raises(DamageError, match=r"documents\.npy"):
        compare(copy, pair[1].path)


def test_manifests_on_their_own_and_other_salts(pair: tuple[MadeDataset, MadeDataset], tmp_path: Path) -> None:
    one, other = pair
    for name, made in (("a.json", one), ("b.json", other)):
        shutil.copy(made.path / "manifest.json", tmp_path / name)
    value = compare(tmp_path / "a.json", tmp_path / "b.json")
    assert (value["same"], "documents" in value, len(value["notes"])) == (False, False, 1)
    assert compare(tmp_path / "a.json", one.path)["same"]
    salted = make_dataset(tmp_path, DatasetSpec(documents={"web": 3}, salt=8), "salted")
    value = compare(one.path, salted.path)
    assert "salts" in value["notes"][0]
    assert {change["key"] for change in value["changes"]["layout"]} >= {"salt"}
    assert "documents" not in value


def put_table(path: Path, name: str, columns: dict[str, list[Any]]) -> None:
    """Add a Parquet table to a finished Dataset, named by its manifest."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    types = {"document": pa.uint64(), "record": pa.int64()}
    pq.write_table(pa.table({k: pa.array(v, types.get(k, pa.string())) for k, v in columns.items()}), path / name)
    data = (path / name).read_bytes()
    value = unseal((path / "manifest.json").read_bytes(), "manifest")
    value["files_hashed"][name] = {"size_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    (path / "manifest.json").write_bytes(seal(value))


def test_what_became_of_documents_is_read_from_the_other_sides_tables(tmp_path: Path) -> None:
    texts = [f"document {number} about something" for number in range(20)]
    whole = make_dataset(tmp_path, DatasetSpec(texts={"web": texts}, files_per_source=1, samples_per_shard=4), "whole")
    ids = {document.record: document.id for document in whole.documents.values()}
    less = make_dataset(tmp_path, DatasetSpec(texts={"web": texts[:10]}, files_per_source=1), "less")
    held = DatasetSpec(texts={"web": texts[:18]}, files_per_source=1)
    make_dataset(tmp_path, held, "less-validation")
    removed = {"document": [ids[18], ids[3]], "method": ["minhash", "exact"]}
    put_table(less.path, "removed.parquet", removed)
    put_table(less.path, "rejected.parquet", {"source": ["web"], "file": ["part0.jsonl"], "record": [19]})
    value = compare(whole.path, less.path)
    assert value["documents"]["removed"]["count"] == 10
    assert value["documents"]["removed"]["there"] == {"held out": 8, "removed: minhash": 1, "rejected": 1}
    make_dataset(tmp_path, DatasetSpec(texts={"web": texts[:2]}, files_per_source=1), "few-validation")
    make_dataset(tmp_path, DatasetSpec(texts={"web": texts[:17]}, files_per_source=1), "few")
    value = compare(tmp_path / "less-validation", tmp_path / "few-validation")
    assert value["documents"]["removed"]["there"] == {"trained": 15, "input changed": 1}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_the_merge_is_that_of_sets_however_blocks_fall(left: list[int], right: list[int], one: int, two: int) -> None:
    streams = {}
    for side, (ids, rows) in enumerate(((left, one), (right, two))):
        table = np.zeros(len(ids), DOCUMENT_INDEX_DTYPE)
        table["id"] = sorted(ids)
        table["row"] = np.arange(len(ids))
        streams[side] = [table[i : i + rows] for i in range(0, len(ids), rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_diff, "index_blocks", lambda side: iter(streams[side]))
        only_left, only_right, both = document_difference(0, 1)  # type: ignore[arg-type]
    assert only_left["id"].tolist() == sorted(set(left) - set(right))
    assert only_right["id"].tolist() == sorted(set(right) - set(left))
    assert both == len(set(left) & set(right))
    assert all(sorted(left).index(row["id"]) == row["row"] for row in only_left)


def test_changed_keys() -> None:
    left = {"a": 1, "b": {"c": [1, 2], "d": {}}, "s": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]}
    right = {"a": 1.0, "b": {"c": [1, 3, 4], "d": {}}, "s": [{"name": "y", "v": 2}, {"name": "x", "v": 5}]}
    assert changed_keys(left, left) == []
    assert changed_keys(left, right) == [
        {"key": "a", "left": 1, "right": 1.0},
        {"key": "b.c.1", "left": 2, "right": 3},
        {"key": "s.(order)", "left": "x, y", "right": "y, x"},
        {"key": "s.x.v", "left": 1, "right": 5},
        {"key": "b.c.2", "right": 4},
    ]


def test_two_runs(pair: tuple[MadeDataset, MadeDataset], tmp_path: Path) -> None:
    one = make_run(tmp_path, [pair[0]], name="one")
    same = make_run(tmp_path, [pair[0]], name="same")
    other = make_run(tmp_path, [pair[1]], global_batch=4, name="other")
    train(one, 2)
    value = compare(one.root, same.root)
    assert value["same"]
    assert (value["left"]["num_steps"], value["right"]["num_steps"]) == (2, 0)
    value = compare(one.root, other.root)
    assert not value["same"]
    assert value["changes"]["datasets"] == [{"key": "0", "left": pair[0].digest, "right": pair[1].digest}]
    keys = [change["key"] for change in value["changes"]["configuration"]]
    assert "data.batch.0.global_batch" in keys
    with lock_run(same):
        view = open_run(same.root)
        append_skips(same, [SkipEntry("documents", "mask", view.next_position, documents=(7,), reason="why")])
    value = compare(one.root, same.root)
    assert [change["key"] for change in value["changes"]["skips"]] == ["entries", "entries that differ", "only in B"]
    with lock_run(one):
        view = open_run(one.root)
        append_skips(one, [SkipEntry("documents", "mask", view.next_position, documents=(8,), reason="why")])
    counts = {"key": "entries that differ", "left": 1, "right": 1}
    assert compare(one.root, same.root, 0)["changes"]["skips"] == [counts]  # of one length: not their order differs
    with pytest.raises(ConfigError, match="TR-DIFF-KIND"):
        compare(one.root, pair[0].path)
    with pytest.raises(ConfigError, match="TR-PATH-KIND"):
        compare(tmp_path, pair[0].path)
