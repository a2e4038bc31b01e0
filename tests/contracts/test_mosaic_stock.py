"""Stock mosaicml-streaming reads every sample of our shards, equal to ours."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, make_dataset

from loader.errors import ConfigError
from loader.mosaic_adapter import read_with_stock, stock_setup
from loader.shards import DatasetInfo, open_dataset, write_dataset_manifest

pytestmark = pytest.mark.usefixtures("stock_turn")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_stock_reads_what_we_read(tmp_path: Path) -> None:
    pytest.importorskip("streaming", exc_type=ImportError)
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 40, "code": 15}, seq_len=48, samples_per_shard=10))
    dataset = made.open()
    for source, samples in made.samples.items():
        stock = np.stack(list(read_with_stock(made.path, source)))
        ours = dataset.read_samples(source, np.arange(len(samples)))
        assert stock.dtype == ours.dtype
        assert np.array_equal(stock, ours)
    with pytest.raises(ConfigError, match="no source"):
        next(read_with_stock(made.path, "nothing"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_printed_set_up_runs_and_reads_every_source(tmp_path: Path) -> None:
    pytest.importorskip("streaming", exc_type=ImportError)
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 40, "code": 15}, seq_len=48, samples_per_shard=10))
    dataset = made.open()
    names: dict[str, Any] = {}
    exec(stock_setup(dataset), names)
    stock = names["dataset"]
    counts = [len(samples) for samples in made.samples.values()]
    shares = {source.name: source.share for source in dataset.manifest.sources}
    assert [stream.proportion for stream in stock.streams] == pytest.approx(list(shares.values()))
    assert stock.samples_per_stream.tolist() == counts
    for stream, source in zip(stock.streams, made.samples, strict=True):
        assert stream.choose == pytest.approx(shares[source] * sum(counts), abs=1)
        assert stream.validate_hash == "xxh3_128"
    wanted = [tokens for samples in made.samples.values() for tokens, _ in samples]
    assert [stock[number]["tokens"].tolist() for number in range(sum(counts))] == wanted


def test_an_empty_dataset_has_no_set_up(tmp_path: Path) -> None:
    write_dataset_manifest(tmp_path, DatasetInfo(("web",), 8, 100, (), (), {}, 0, "0"))
    assert stock_setup(open_dataset(tmp_path)) == "# no samples\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_stock_raises_at_a_flipped_bit_where_it_validates(tmp_path: Path) -> None:
    stock = pytest.importorskip("streaming", exc_type=ImportError)
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 30}, seq_len=48, samples_per_shard=10))
    rng = random.Random(5)
    file = made.path / "web" / "shard.00001.mds"
    data = file.read_bytes()
    for number in range(3):
        place = rng.randrange(len(data))
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :])
        folder = tmp_path / f"remote{number}"
        shutil.copytree(made.path / "web", folder)
        theirs = stock.StreamingDataset(
            remote=str(folder), local=str(tmp_path / f"local{number}"), shuffle=False, batch_size=1,
            validate_hash="xxh3_128", download_retry=1,
        )  # fmt: skip
        assert theirs[0]["tokens"].tolist() == made.samples["web"][0][0]
        with pytest.raises(ValueError, match="Checksum failure"):
            theirs[10]
    file.write_bytes(data)
