"""A run that names no mixture reads what its Dataset was mixed for, and is told where that ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from loader.settings import load_config
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage
from loader.shards.manifest import encode_manifest
from train.config import TrainConfig
from train.job import open_job_sources, resolve_job
from train.loop import mixture_stages

QUARTER = 1 << 24


def test_the_mixture_of_the_dataset_is_trained_on(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 20, "code": 20}, seq_len=32))
    stages = (
        DefaultMixtureStage(0, {"web": 3 * QUARTER, "code": QUARTER}),
        DefaultMixtureStage(256, {"code": 4 * QUARTER}),
    )
    mixture = DefaultMixture("repeat", 300, stages)
    manifest = replace(made.open().manifest, mixture=mixture)
    (made.path / "manifest.json").write_bytes(encode_manifest(manifest)[0])
    path = write_job(tmp_path, made.path, data={"datasets": ["data"], "batch": [{"start": 0, "global_batch": 128}]})
    job = resolve_job(load_config(path, TrainConfig))
    assert mixture_stages(job, open_job_sources(job)) == [(0, {"web": 0.75, "code": 0.25}), (256, {"code": 1.0})]
    said: list[str] = []
    train(path, "steps=2", say=said.append)
    assert not any("was mixed for" in line for line in said)
    train(path, "steps=3", say=said.append)
    assert "the Dataset was mixed for 300 positions; 3 steps read 384" in said
    # a plan that ends before the configured steps: told as far as it goes, no question about steps that it has not
    value = yaml.safe_load(path.read_text())
    for total, steps in ((280, 2), (600, 4)):
        value["data"]["exhaustion"] = {"policy": "repeat", "total": total}
        path.write_text(yaml.safe_dump(value))
        said.clear()
        result = train(path, f"output=end-{total}", say=said.append)
        assert (result.outcome, result.step) == ("finished", steps)
        told = [line for line in said if "was mixed for" in line]
        assert told == ([] if steps == 2 else ["the Dataset was mixed for 300 positions; 4 steps read 512"])
