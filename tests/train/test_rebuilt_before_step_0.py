"""A run that did nothing yet takes the Dataset that was rebuilt meanwhile; one that did anything refuses it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from loader.errors import ConfigError, RefusedError
from loader.run_folder import RunPaths, read_config, read_identity
from loader.run_verify import verify_run


@pytest.mark.parametrize("changed", [(), ("model.layers=2",)], ids=["the data alone", "a fixed key as well"])
def test_a_refused_first_start_knows_the_data_of_the_next_one(tmp_path: Path, changed: tuple[str, ...]) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    job, paths = write_job(tmp_path, made.path, steps=2), RunPaths(tmp_path / "run")
    with pytest.raises(ConfigError, match="TR-HF-FOLDER"):
        train(job, "model.init_from=nowhere")
    before = read_identity(paths)
    shutil.rmtree(made.path)
    make_dataset(tmp_path, DatasetSpec(seq_len=32, seed=1))
    assert train(job, *changed).step == 2
    after = read_identity(paths)
    assert after["run_id"] == before["run_id"]
    assert after["datasets"] != before["datasets"]
    assert read_config(paths)["model"]["init_from"] is None
    assert [finding for finding in verify_run(paths.root) if finding.severity == "damage"] == []
    shutil.rmtree(made.path)
    make_dataset(tmp_path, DatasetSpec(seq_len=32, seed=2))
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        train(job, *changed, "steps=4")


def test_more_datasets_than_the_refused_start_had(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    other = make_dataset(tmp_path, DatasetSpec(seq_len=32, seed=1, documents={"more": 8}), "other")
    job, paths = write_job(tmp_path, made.path, steps=2), RunPaths(tmp_path / "run")
    with pytest.raises(ConfigError, match="TR-HF-FOLDER"):
        train(job, "model.init_from=nowhere")
    data = {"datasets": ["data", "other"], "batch": [{"start": 0, "global_batch": 4}]}
    assert train(write_job(tmp_path, made.path, steps=2, data=data)).step == 2
    assert [entry["path"] for entry in read_identity(paths)["datasets"]] == ["../data", "../other"]
    assert other.path.name == "other"
