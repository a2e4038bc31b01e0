"""Stock mosaicml-streaming reads every sample of our shards, equal to ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.datasets import DatasetSpec, make_dataset

from loader.errors import ConfigError
from loader.mosaic_adapter import read_with_stock


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
