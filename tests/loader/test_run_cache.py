"""Who looks into a run's Datasets at URLs uses the cache folder that the run was trained with, where it is there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run
from support.training import train, write_job

from loader.remap import remap_run
from loader.run_cache import store_options
from loader.run_folder import RunPaths
from loader.run_view import open_run
from loader.stream.store import StoreOptions

SPEC = DatasetSpec(documents={"web": 30}, seq_len=32)


@pytest.fixture(autouse=True)
def default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOKENREEL_CACHE", str(tmp_path / "default-cache"))
    return tmp_path / "default-cache"


def published(made: MadeDataset, name: str) -> str:
    fsspec.filesystem("memory").put(str(made.path), f"/run-cache/{name}", recursive=True)
    return f"memory://run-cache/{name}"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield published(make_dataset(tmp_path, SPEC), "data")
    fsspec.filesystem("memory").rm("/run-cache", recursive=True)


def test_a_run_is_opened_in_the_cache_that_it_was_trained_with(
    url: str, default_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"datasets": [url], "batch": [{"start": 0, "global_batch": 4}]}
    monkeypatch.chdir(tmp_path)
    job = write_job(Path(), Path("data"), data=data, run={"cache": "own", "cache_bytes": 1 << 26})
    train(job, "steps=4")
    monkeypatch.chdir("/")  # relative to the configuration's folder, wherever it is asked from
    view = open_run(tmp_path / "run")
    assert view.num_steps == 4
    assert store_options(view.paths) == StoreOptions(str(tmp_path / "own")), "who looks removes nothing for its sake"
    new = published(make_dataset(tmp_path, DatasetSpec(**{**vars(SPEC), "seed": 2}), name="new"), "new")
    result = remap_run(tmp_path / "run", [new])
    assert (tmp_path / "own" / "datasets" / result["datasets"][0]["digest"]).is_dir()
    assert not default_cache.exists()


def test_a_cache_that_is_not_there_is_not_made(url: str, default_cache: Path, tmp_path: Path) -> None:
    """As after the run was copied to another machine."""
    made = make_dataset(tmp_path, SPEC, name="again")
    paths = make_run(tmp_path, [made], urls=[url])
    gone = tmp_path / "scratch" / "cache"
    (paths.root / "job.json").write_text(json.dumps({"run": {"cache": str(gone), "cache_bytes": 1 << 20}}))
    assert open_run(paths.root).num_steps == 0
    assert not gone.parent.exists()
    assert default_cache.is_dir()


def test_a_folder_that_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    """A copied run's file may name somebody else's: a cache would clear away what looks unfinished there."""
    theirs = tmp_path / "data" / "datasets" / ".tmp-7-export"
    theirs.mkdir(parents=True)
    (tmp_path / "job.json").write_text(json.dumps({"run": {"cache": str(tmp_path / "data")}}))
    assert store_options(RunPaths(tmp_path)) == StoreOptions()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"run": 3}', '{"run": {"cache": 7, "cache_bytes": -1}}', '{"run": {"cache": "near"}}']
)
def test_a_file_for_people_may_say_anything(text: str, tmp_path: Path) -> None:
    os.makedirs(tmp_path / "near")
    (tmp_path / "job.json").write_text(text)
    assert store_options(RunPaths(tmp_path)) == StoreOptions()
