"""The data block: what it refuses, and the mixture it falls back to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, make_dataset

from loader.errors import ConfigError, RefusedError
from loader.order import SkipList
from loader.run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan, default_weights
from loader.sources import open_sources

BATCH = (BatchStageConfig(0, 8),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datasets": ()}, "datasets"),
        ({"batch": ()}, "batch: the first stage"),
        ({"batch": (BatchStageConfig(5, 8),)}, "batch: the first stage"),
        ({"batch": (BatchStageConfig(0, 8), BatchStageConfig(0, 9))}, "batch: starts must ascend"),
        ({"mixture": (MixtureStageConfig(256, {"web": 1}),)}, "mixture: the first stage"),
        ({"seed": -1}, "seed"),
        ({"window_shards": 0, "slices": 0}, "slices"),
    ],
)
def test_what_a_data_block_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**{"datasets": ("a",), "batch": BATCH, **change})


@pytest.mark.parametrize("weights", [{}, {"web": 0.0}, {"web": -1.0}, {"web": float("nan")}, {"web": float("inf")}])
def test_weights_that_mean_nothing(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        MixtureStageConfig(0, weights)


@pytest.mark.parametrize(("start", "size"), [(-1, 8), (0, 0), (0, 1 << 24)])
def test_batches_that_mean_nothing(start: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"start|global_batch"):
        BatchStageConfig(start, size)


def test_stages_start_on_block_borders() -> None:
    with pytest.raises(ValueError, match="multiple of 256"):
        MixtureStageConfig(100, {"web": 1.0})


def test_the_default_mixture_is_the_mix_of_the_datasets(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 30, "code": 10}))
    plain = open_sources([made.open()])
    weights = default_weights(plain)
    assert weights == {name: plain.info(name).num_tokens for name in ("web", "code")}
    dataset = made.open()
    mix = [{"source": "web", "epochs": 1.0}, {"source": "code", "epochs": 9.0}]
    dataset.manifest = replace(dataset.manifest, accounting={"mix": mix})
    mixed = open_sources([dataset])
    assert default_weights(mixed) == {"web": weights["web"], "code": 9 * weights["code"]}
    plan = build_plan(DataConfig(("x",), BATCH), mixed, SkipList())
    share = np.mean(plan.samples(np.arange(25_600)).source_N == plan.source_number("code"))
    assert abs(share - 9 * weights["code"] / (weights["web"] + 9 * weights["code"])) < 0.001


def test_unknown_sources_are_named(tmp_path: Path) -> None:
    sources = open_sources([make_dataset(tmp_path, DatasetSpec(documents={"web": 5})).open()])
    data = DataConfig(("x",), BATCH, mixture=(MixtureStageConfig(0, {"wbe": 1.0}),))
    with pytest.raises(ConfigError, match="'wbe'"):
        build_plan(data, sources, SkipList())


def test_sources_without_samples_do_not_take_part(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(texts={"web": ["some text"] * 9, "empty": []}))
    sources = open_sources([made.open()])
    assert sources.names == ("web", "empty")
    plan = build_plan(DataConfig(("x",), BATCH), sources, SkipList())
    assert set(plan.samples(np.arange(600)).source_N.tolist()) == {0}
    made = make_dataset(tmp_path, DatasetSpec(texts={"empty": []}), "nothing")
    with pytest.raises(RefusedError, match="no source holds a sample"):
        open_sources([made.open()])
