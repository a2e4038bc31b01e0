"""Contract: stock mosaicml-streaming reads a source's folder unmodified, sample by sample equal to our own reader."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, make_dataset

from loader.shards import InputFile, ShardSpec, ShardWriter, make_segments, open_dataset, write_dataset_manifest
from loader.shards.commit import DatasetInfo

pytestmark = pytest.mark.usefixtures("stock_turn")


@pytest.fixture(scope="module")
def stock() -> Any:
    """The library; its import warns (of pkg_resources, of invalid escapes in dependencies), which is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("streaming", exc_type=ImportError)


def check_equal(stock: Any, path: Path) -> None:
    dataset = open_dataset(path)
    for source in dataset.source_names:
        count = int(dataset.shard_samples(source).sum())
        theirs = stock.StreamingDataset(local=str(path / source), shuffle=False, batch_size=1, validate_hash="xxh3_128")
        assert len(theirs) == count
        ours_NT = dataset.read_samples(source, np.arange(count))
        for number in range(count):
            sample = theirs[number]
            assert list(sample) == ["tokens"]
            assert sample["tokens"].dtype == ours_NT.dtype
            assert (sample["tokens"] == ours_NT[number]).all()


def test_stock_reads_every_sample_equal_to_ours(stock: Any, tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 60, "code": 20}))
    assert len(made.shard_samples["web"]) > 1
    check_equal(stock, made.path)


def test_stock_reads_wide_tokens(stock: Any, tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, ShardSpec("web", 0, 16, 200_000))
    rng = np.random.default_rng(0)
    row = writer.add_document(1, 0, 0, 0)
    for _ in range(40):
        writer.add_sample(rng.integers(0, 200_000, 16), make_segments([0], [row], [0], [0], [1]))
    info = DatasetInfo(("web",), 16, 200_000, (writer.close(),), (InputFile("web", "a"),), {}, 0, "0")
    write_dataset_manifest(tmp_path, info)
    check_equal(stock, tmp_path)


def test_stock_finds_our_hashes_right(stock: Any, tmp_path: Path) -> None:
    from streaming.base.hashing import get_hash

    made = make_dataset(tmp_path)
    for source in made.samples:
        index = json.loads((made.path / source / "index.json").read_bytes())
        assert [shard["samples"] for shard in index["shards"]] == made.shard_samples[source]
        for shard in index["shards"]:
            data = (made.path / source / shard["raw_data"]["basename"]).read_bytes()
            assert len(data) == shard["raw_data"]["bytes"]
            assert get_hash("xxh3_128", data) == shard["raw_data"]["hashes"]["xxh3_128"]


def test_the_header_is_what_the_stock_writer_makes_but_for_the_padding(stock: Any, tmp_path: Path) -> None:
    made = make_dataset(tmp_path)
    count = made.shard_samples["web"][0]
    columns = {"tokens": f"ndarray:uint16:{made.spec.seq_len}"}
    out = tmp_path / "stock"
    with stock.MDSWriter(out=str(out), columns=columns, hashes=["xxh3_128"], size_limit=None) as writer:
        for tokens, _ in made.samples["web"][:count]:
            writer.write({"tokens": np.array(tokens, np.uint16)})
    theirs = (out / "shard.00000.mds").read_bytes()
    ours = (made.path / "web" / "shard.00000.mds").read_bytes()
    table_bytes = 4 * (count + 2)
    their_start, our_start = (int.from_bytes(data[4:8], "little") for data in (theirs, ours))
    assert theirs[:4] == ours[:4]
    assert theirs[table_bytes:their_start] == ours[table_bytes:our_start].rstrip(b" ")
    assert theirs[their_start:] == ours[our_start:]
