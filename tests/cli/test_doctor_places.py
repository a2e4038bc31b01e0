"""``tokenreel doctor`` on places that are not folders: stores by their schemes, caches and their limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import train as train_here
from support.training import write_job

import train.doctor
from loader.cli import main
from loader.doctor.needs import extras_of
from loader.doctor.stores import check_stores
from loader.errors import ConfigError

SPEC = DatasetSpec(documents={"web": 120}, seq_len=32, samples_per_shard=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("doctor"), SPEC)


@pytest.fixture
def url(made: MadeDataset) -> Iterator[str]:
    """A Dataset that no folder holds."""
    fsspec.filesystem("memory").put(str(made.path), "/doctor/data", recursive=True)
    yield "memory://doctor/data"
    fsspec.filesystem("memory").rm("/doctor", recursive=True)


@pytest.fixture(autouse=True)
def _torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it takes seconds to import is no matter of these tests."""
    monkeypatch.setattr(train.doctor, "check_torch", lambda device, processes: [])


def examined(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and the lines by name."""
    code = main(["doctor", *map(str, words), "--json"])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def job(folder: Path, url: str, **run: Any) -> Path:
    return write_job(
        folder,
        folder,
        f"job-{len(list(folder.iterdir()))}",
        data={"datasets": [url], "batch": [{"start": 0, "global_batch": 4}]},
        run=run,
    )


def build(folder: Path, **roots: str) -> Path:
    path = folder / "build.yaml"
    sources = ", ".join(f"{name}: {{root: '{root}'}}" for name, root in roots.items())
    path.write_text(
        f"version: 1\noutput: data\nsources: {{{sources}}}\nrun: {{fast: 'off'}}\n"
        "tokenizer: {sentencepiece: {train: {vocab_size: 320}}}\n"
    )
    return path


def test_what_fsspec_reads_here_needs_no_extra() -> None:
    """As docs/config.md has it for roots of sources; Datasets are read by either."""
    assert extras_of({"sources": {"web": {"root": "hf://datasets/a/b"}}}) == {}
    assert extras_of({"sources": {"web": {"root": "oci://bucket/x"}}}) == {}, "mosaicml-streaming reads no sources"
    assert extras_of({"data": {"datasets": ["memory://data"]}}) == {}
    assert list(extras_of({"data": {"datasets": ["oci://bucket/data"]}})) == ["mosaic"]
    assert list(extras_of({"run": {"torchft": {"replicas": 2}}})) == ["torchft"]


def test_a_store_of_sources_is_looked_for_in_fsspec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = {"web": "memory://doctor/web", "hub": "hf://datasets/a/b", "law": "oci://b/law", "own": "nosuch://b/own"}
    found = {check.name: check for check in check_stores({"sources": {name: {"root": r} for name, r in roots.items()}})}
    assert [found[f"store {scheme}"].state for scheme in ("memory", "hf", "oci", "nosuch")] == [
        "ok", "ok", "missing", "missing",
    ]  # fmt: skip
    assert "ocifs" in found["store oci"].message
    assert found["store oci"].next_command is not None
    assert check_stores({"sources": {"web": {"root": "s3://bucket/web"}, "own": {"root": "web"}}}) == []
    code, lines = examined(capsys, build(tmp_path, web="memory://doctor/web"))
    assert (code, lines["store memory"]["state"]) == (0, "ok")
    code, lines = examined(capsys, build(tmp_path, law="oci://b/law"))
    assert (code, lines["store oci"]["state"]) == (1, "missing")
    assert "extra mosaic" not in lines


def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKENREEL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/nohome")


def test_a_cache_that_nothing_needs_is_no_reason_to_stop(
    made: MadeDataset, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text('{"text": "word"}\n')
    _nowhere(monkeypatch)
    here = job(tmp_path, made.path.as_uri())
    for path in (build(tmp_path, web="web"), here, job(tmp_path, url, cache="own"), write_job(tmp_path, made.path)):
        code, lines = examined(capsys, path)
        assert (code, lines["cache"]["state"]) == (0, "warn")
        assert "TOKENREEL_CACHE" in lines["cache"]["next_command"]
        assert "chown" not in lines["cache"]["next_command"]
    assert examined(capsys)[1]["cache"]["state"] == "warn"
    for path in (job(tmp_path, url), write_job(tmp_path, made.path, validation=[url])):
        code, lines = examined(capsys, path)
        assert (code, lines["run.cache"]["state"]) == (1, "missing")


def test_datasets_are_looked_at_in_the_cache_of_the_run(
    made: MadeDataset, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENREEL_CACHE", str(tmp_path / "default"))
    code, lines = examined(capsys, job(tmp_path, url, cache="own"))
    assert (code, lines[f"dataset {url}"]["state"]) == (0, "ok")
    assert (tmp_path / "own" / "datasets" / made.digest).is_dir()
    assert not (tmp_path / "default").exists()


def test_the_room_of_a_cache_is_its_limit_not_the_disk(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the run itself would refuse is missing, what it would warn of a warning."""
    lines: dict[int | None, dict[str, Any]] = {}
    for limit in (1000, 30_000, 1 << 30, None):
        path = job(tmp_path, url, cache=f"own-{limit}", cache_bytes=limit)
        code, found = examined(capsys, path)
        lines[limit] = found["run.cache room"]
        assert (code == 1) == (lines[limit]["state"] == "missing") == (limit == 1000)
        if limit == 1000:
            with pytest.raises(ConfigError, match="TR-STORE-CACHE-SMALL") as refused:
                train_here(path, "steps=2")
            assert refused.value.message in lines[limit]["message"]
        else:
            assert train_here(path, "steps=2", f"output=run-{limit}").step == 2
    assert [line["state"] for line in lines.values()] == ["missing", "warn", "ok", "ok"]
    assert "30,000 bytes may be kept" in lines[30_000]["message"]
    assert "cache_bytes" in lines[1000]["next_command"]


def test_local_sources_are_looked_at_beside_remote_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text('{"text": "word"}\n')
    (tmp_path / "empty").mkdir()
    far = "memory://doctor/web"
    code, lines = examined(capsys, build(tmp_path, far=far, web="web", gone="gone", empty="empty"))
    assert code == 1
    assert lines["source web"]["message"] == "1 files, 17 bytes"
    assert (lines["source gone"]["state"], lines["source empty"]["state"]) == ("missing", "missing")
    assert lines["source empty"]["message"].startswith("TR-SOURCE-")
    assert lines["source far"]["state"] == "ok"
    big = tmp_path / "web" / "b.jsonl"
    with big.open("wb") as file:
        file.truncate(1 << 42)  # a hole, of which a file system says the whole length
    code, lines = examined(capsys, build(tmp_path, far=far, web="web"))
    assert (code, lines["room"]["state"]) == (1, "missing")
    assert "remote sources not counted" in lines["room"]["message"]
    big.unlink()
    code, lines = examined(capsys, build(tmp_path, web="web"))
    assert (code, "not counted" in lines["room"]["message"]) == (0, False)
