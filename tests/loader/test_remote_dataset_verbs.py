"""The verbs on Datasets in a real S3 server: train fetches and resumes, locate and inspect read ranges only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import FaultProxy, S3Server, s3_server
from support.remote_datasets import cached_files, proxy, upload
from support.training import ledger, train, write_job

from loader.cli import main
from loader.errors import ConfigError, RefusedError
from loader.settings import load_config
from train.config import TrainConfig

__all__ = ["proxy", "s3_server"]

_SPEC = DatasetSpec(documents={"web": 90, "code": 40}, seq_len=32, samples_per_shard=64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("verbs"), _SPEC)


@pytest.fixture(scope="module")
def url(made: MadeDataset, s3_server: S3Server) -> str:
    return upload(s3_server, "remote-verbs", made.path)


@pytest.fixture(autouse=True)
def default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENREEL_CACHE", str(tmp_path / "default-cache"))


def result(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def job(folder: Path, dataset: str, name: str, **run: Any) -> Path:
    data = {"datasets": [dataset], "batch": [{"start": 0, "global_batch": 4}]}
    return write_job(folder, folder, name, output=name, data=data, run=run)


def same_batches(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one["token_digest"], other["token_digest"]))


def test_train_fetches_and_resumes(made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    local = job(tmp_path, str(made.path), "local")
    assert train(local).outcome == "finished"
    remote = job(tmp_path, url, "remote", cache="cache")
    assert train(remote, "steps=7").step == 7
    asked = len(proxy.requests)
    assert len(list(cached_files(tmp_path / "cache"))) > 0
    assert train(remote).step == 12
    assert same_batches(ledger(tmp_path / "remote"), ledger(tmp_path / "local"))
    shards = [target for _, target, _ in proxy.requests[asked:] if "/shard." in target]
    earlier = [target for _, target, _ in proxy.requests[:asked] if "/shard." in target]
    assert not set(shards) & set(earlier), "what is in the cache is not fetched again"
    assert not (tmp_path / "default-cache").exists()
    stored = (tmp_path / "remote" / "config.yaml").read_text()
    assert url in stored
    assert "cache" not in stored


def test_locate_reads_ranges_and_fills_no_cache(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path, url, "run", cache="cache")
    train(path)
    local = job(tmp_path, str(made.path), "local")
    train(local)
    proxy.requests.clear()
    for question in (("--step", "3"), ("--step", "20"), ("--position", "5:9")):
        there = result(capsys, "locate", str(tmp_path / "run"), *question)
        assert there == result(capsys, "locate", str(tmp_path / "local"), *question)
    ranges = [given for name in ("web", "code") for given in ranges_of(proxy, f"{name}/shard.00000.mds")]
    assert ranges
    whole = (made.path / "web" / "shard.00000.mds").stat().st_size
    assert all(length(given) < whole // 4 for given in ranges), "samples, no files"
    assert list(cached_files(tmp_path / "default-cache")) == []


def ranges_of(proxy: FaultProxy, key: str) -> list[str]:
    return proxy.ranges(key)


def length(given: str) -> int:
    start, stop = given.removeprefix("bytes=").split("-")
    return int(stop) - int(start) + 1


def test_documents_of_a_remote_dataset(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for document in list(made.documents)[:5]:
        found = result(capsys, "locate", url, "--document", f"{document:016x}")
        assert found == result(capsys, "locate", str(made.path), "--document", f"{document:016x}")
    assert list(cached_files(tmp_path / "default-cache")) == []
    assert not proxy.ranges(".mds")
    assert main(["locate", url, "--document", "00000000000000ff"]) == ConfigError.exit_code
    assert url in capsys.readouterr().err


def test_inspect_a_url(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = (result(capsys, "inspect", place, "--exact") for place in (url, str(made.path)))
    assert there.pop("path") == url
    assert f"remote='{url}/web'" in there.pop("streaming")
    del here["path"], here["streaming"]
    assert there == here
    assert list(cached_files(tmp_path / "default-cache")) == []
    assert main(["inspect", url, "--no-shards"]) == 0
    assert made.digest in capsys.readouterr().out


def test_another_dataset_under_the_url_of_a_run_is_refused(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = upload(s3_server, "remote-other", made.path)
    path = job(tmp_path, url, "run", cache="cache")
    train(path)
    other = make_dataset(tmp_path, DatasetSpec(documents=_SPEC.documents, seq_len=32, samples_per_shard=64, seed=1))
    upload(s3_server, "remote-other", other.path)
    with pytest.raises(RefusedError, match=other.digest):
        train(path)
    assert main(["locate", str(tmp_path / "run"), "--step", "1"]) == RefusedError.exit_code


@pytest.mark.parametrize("url", ["s3://key:hunter22@bucket/x", "s3://bucket/x?token=hunter22", "s3://bucket/../x"])
def test_urls_that_hold_secrets_are_refused_without_being_shown(url: str, tmp_path: Path) -> None:
    path = job(tmp_path, url, "run")
    with pytest.raises(ConfigError, match=r"datasets: a URL") as caught:
        load_config(path, TrainConfig)
    assert "hunter22" not in str(caught.value)
