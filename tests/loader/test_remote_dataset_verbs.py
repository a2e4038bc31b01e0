"""The verbs on Datasets in a real S3 server: train fetches and resumes, locate and inspect read ranges only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import FaultProxy, S3Server
from support.remote_datasets import cached_files, proxy, upload
from support.runs import make_run
from support.runs import train as run
from support.training import ledger, train, write_job

from loader.cli import main
from loader.errors import ConfigError, RefusedError
from loader.settings import load_config
from loader.shards.access import npy_bytes
from train.config import TrainConfig

__all__ = ["proxy"]

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


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if documents.npy were large: it is searched by ranges, a few rows at a time."""
    monkeypatch.setattr("loader.stream.remote._DEAR_BYTES", 0)
    monkeypatch.setattr("loader.shards.index_search._PAGE_ROWS", 8)


@pytest.mark.usefixtures("searching")
def test_documents_are_found_by_ranges_of_the_index(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = len(np.load(made.path / "documents.npy"))
    for document in list(made.documents)[::7]:
        proxy.requests.clear()
        assert main(["locate", url, "--document", f"{document:016x}", "--json"]) == 0
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        read, of = found.pop("searched_rows")
        assert (0 < read < rows // 2, of) == (True, rows)
        assert "that there is no other one is not" in shown.err
        assert found == result(capsys, "locate", str(made.path), "--document", f"{document:016x}")
        ranges = [length(given) for given in ranges_of(proxy, "documents.npy")]
        assert sum(ranges[1:]) == read * 16
    assert not list((tmp_path / "default-cache").rglob("documents.npy"))
    assert main(["locate", url, "--document", "00000000000000ff"]) == ConfigError.exit_code
    assert "its hash was not checked" in capsys.readouterr().err


@pytest.mark.usefixtures("searching")
def test_what_a_plan_must_know_is_read_whole(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That a document is in no other sample decides what a run reads: no search may answer that."""
    documents = [f"{document:016x}" for document in list(made.documents)[:2]]
    paths = make_run(tmp_path, [made], urls=[url])
    run(paths, 2)
    assert result(capsys, "locate", str(paths.root), "--document", documents[1])["searched_rows"]
    assert not list((tmp_path / "default-cache").rglob("documents.npy"))
    assert result(capsys, "skip", str(paths.root), "--document", documents[1], "--mode", "drop")["written"]
    assert len(list((tmp_path / "default-cache").rglob("documents.npy"))) == 1
    assert "searched_rows" not in result(capsys, "locate", url, "--document", documents[0]), "the cache has it now"


@pytest.mark.usefixtures("searching")
def test_a_run_over_a_url_refuses_a_document_that_nobody_holds_after_a_few_requests(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_run(tmp_path, [made], urls=[url])
    run(paths, 2)
    for document in ("0000000000000000", "0123456789abcdef", "ffffffffffffffff"):
        proxy.requests.clear()
        assert main(["locate", str(paths.root), "--document", document]) == ConfigError.exit_code
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"no Dataset holds document {document}" in shown.err
        assert len(ranges_of(proxy, "documents.npy")) <= 6
        assert not proxy.ranges(".mds")


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize("field", ["id", "shard", "row"])
def test_a_page_that_lies_is_found_out_by_the_shards(
    field: str, made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a row says, no document is shown where it is not; a row that is hidden may be missed, and so is said."""
    bucket = f"remote-lies-{field}"
    url = upload(s3_server, bucket, made.path)
    rows_M = np.load(made.path / "documents.npy")
    for row in range(0, len(rows_M), 37):
        lies_M, document = rows_M.copy(), int(rows_M["id"][row])
        lies_M[field][row] ^= 1
        s3_server.put(bucket, {"data/documents.npy": npy_bytes(lies_M)})
        code = main(["locate", url, "--document", f"{document:016x}", "--json"])
        value = json.loads(capsys.readouterr().out)
        if code == 0:
            assert field == "id", "another row of the document is left"
            assert value["segments"]
            here = result(capsys, "locate", str(made.path), "--document", f"{document:016x}")
            assert all(segment in here["segments"] for segment in value["segments"])
        else:
            assert value["error"]["code"] in ("TR-DATASET-INDEX", "TR-LOOKUP-DOCUMENT")


def test_replay_and_report_of_a_run_over_a_url(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for name, place in (("here", str(made.path)), ("there", url)):
        train(job(tmp_path, place, name, cache="cache"))
        root = str(tmp_path / name)
        found = result(capsys, "replay", root, "--steps", "4:6")
        assert all(step["matches_ledger"] for step in found["steps"])
        answers.append(found["steps"])
        page = tmp_path / f"{name}.html"
        assert result(capsys, "report", root, "--out", str(page))["kind"] == "run"
        assert (url in page.read_text()) is (name == "there")
    assert answers[0] == answers[1]
    assert list(cached_files(tmp_path / "default-cache")) == []
