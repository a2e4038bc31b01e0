"""The data block: what it refuses, and the mixture it falls back to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.errors import ConfigError, DamageError, RefusedError
from loader.order import SkipList
from loader.run_config import (
    BatchStageConfig,
    DataConfig,
    MixtureStageConfig,
    build_plan,
    default_stages,
    default_weights,
    mixture_of,
    planned_positions,
)
from loader.shards.dataset import Dataset
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage, parse_mixture
from loader.shards.manifest import encode_manifest, parse_manifest
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


@pytest.mark.parametrize(("start", "size"), [(-1, 8), (0, 0), (0, (1 << 24) + 1)])
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


def with_mixture(made: MadeDataset, mixture: DefaultMixture) -> Dataset:
    """The Dataset with a mixture in its manifest, as it would be read back."""
    dataset = made.open()
    manifest = replace(dataset.manifest, mixture=mixture)
    dataset.manifest = parse_manifest(encode_manifest(manifest)[0], "manifest.json")
    assert dataset.manifest.mixture == mixture
    return dataset


HALF = 1 << 25
ANNEALED = DefaultMixture(
    "repeat",
    1000,
    (
        DefaultMixtureStage(0, {"web": HALF + HALF // 2, "code": HALF // 2}),
        DefaultMixtureStage(512, {"code": 2 * HALF}),
    ),
)


def test_the_stages_of_the_manifest_are_the_default_mixture(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 30, "code": 10}))
    sources = open_sources([with_mixture(made, ANNEALED)])
    data = DataConfig(("x",), BATCH)
    assert [(stage.start, stage.weights) for stage in default_stages(sources)] == [
        (stage.start, stage.weights) for stage in ANNEALED.stages
    ]
    assert planned_positions(data, sources) == 1000
    plan = build_plan(data, sources, SkipList())
    code = plan.samples(np.arange(1024)).source_N == plan.source_number("code")
    assert code[:512].sum() == 128
    assert code[512:].all()
    own = replace(data, mixture=(MixtureStageConfig(0, {"web": 1.0}),))
    assert mixture_of(own, sources) == own.mixture
    assert planned_positions(own, sources) is None


def test_datasets_together_weigh_what_their_plans_read(tmp_path: Path) -> None:
    """One with a mixture beside one without; changing shares beside others must be named."""
    mixed = make_dataset(tmp_path, DatasetSpec(documents={"web": 30, "code": 10}), "mixed")
    plain = make_dataset(tmp_path, DatasetSpec(documents={"books": 20}), "plain")
    one_stage = DefaultMixture("stop", 400, (DefaultMixtureStage(0, {"web": HALF // 2, "code": HALF + HALF // 2}),))
    sources = open_sources([with_mixture(mixed, one_stage), plain.open()])
    tokens = {"web": 100 * 64, "code": 300 * 64, "books": sources.info("books").num_tokens}
    assert default_weights(sources) == tokens
    assert default_stages(sources) == (MixtureStageConfig(0, tokens),)
    annealed = open_sources([with_mixture(mixed, ANNEALED), plain.open()])
    with pytest.raises(ConfigError, match="change at position 512") as caught:
        build_plan(DataConfig(("x",), BATCH), annealed, SkipList())
    assert caught.value.code == "TR-MIXTURE-SEVERAL"
    named = DataConfig(("x",), BATCH, mixture=(MixtureStageConfig(0, {"web": 1, "code": 1, "books": 1}),))
    build_plan(named, annealed, SkipList())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "guess"}, "policy"),
        ({"total_positions": 0}, "total_positions"),
        ({"total_positions": 1 << 36}, "total_positions"),
        ({"total_positions": 512}, "start"),
        ({"stages": []}, "from 1 to"),
        ({"stages": [{"start": 0, "weights": {"web": 2 * HALF}}]}, "every source"),
        ({"stages": [{"start": 256, "weights": {"web": HALF, "code": HALF}}]}, "start"),
        ({"stages": [{"start": 0, "weights": {"web": HALF, "code": HALF - 1}}]}, "weights"),
        ({"stages": [{"start": 0, "weights": {"web": HALF, "cod": HALF}}]}, "weights"),
        ({"stages": [{"start": 0, "weights": {"web": 2 * HALF, "code": 0}}]}, "code"),
        ({"stages": [{"start": 0, "weights": {"web": HALF, "code": True}}]}, "code"),
        ({"stages": [{"start": 0, "weights": {"web": HALF, "code": 0.5}}]}, "weights"),
        ({"stages": [{"start": 0, "weights": {"web": HALF, "code": HALF}}, 7]}, "an object"),
    ],
)
def test_mixtures_that_no_build_wrote(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DamageError, match=message):
        parse_mixture({**ANNEALED.to_json(), **change}, {"web", "code"}, "manifest.json: mixture")


@pytest.mark.parametrize(
    "second",
    [{"start": 0, "weights": {"web": HALF, "code": HALF}}, {"start": 300, "weights": {"web": HALF, "code": HALF}}],
)
def test_stages_of_a_manifest_ascend_on_block_borders(second: dict[str, Any]) -> None:
    first = {"start": 0, "weights": {"web": HALF, "code": HALF}}
    with pytest.raises(DamageError, match="start"):
        parse_mixture({**ANNEALED.to_json(), "stages": [first, second]}, {"web", "code"}, "manifest.json: mixture")


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
