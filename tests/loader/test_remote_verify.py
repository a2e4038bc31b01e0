"""``verify`` of Datasets at URLs: what it finds in a folder, it finds in the store, whatever a cache holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import Fault, FaultProxy, S3Server, static_http
from support.remote_datasets import QUICK, cached_files, proxy, upload

from loader.cli import main
from loader.errors import ConfigError, DamageError, JobError
from loader.shards.verify import Finding, verify_dataset
from loader.stream.store import StoreOptions, fetch_dataset, verify_location

__all__ = ["proxy"]

_SPEC = DatasetSpec(documents={"web": 30, "code": 12}, seq_len=32, samples_per_shard=24)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("verify"), _SPEC)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOKENREEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def options(cache: Path) -> StoreOptions:
    return StoreOptions(cache, None, 5.0, QUICK)


def verified(url: str, cache: Path) -> list[Finding]:
    return verify_location(url, lambda size_bytes: None, options(cache))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def add(path: Path) -> None:
    path.write_bytes(b"somebody else's")


CASES: list[tuple[str, Callable[[Path], None]]] = [
    ("web/shard.00000.mds", flip),
    ("web/shard.00001.mds", cut),
    ("code/shard.00000.segments", flip),
    ("web/shard.00000.docs", empty),
    ("web/shard.00001.docs", remove),
    ("documents.npy", flip),
    ("shards.npy", flip),
    ("files.txt", cut),
    ("code/index.json", remove),
    ("manifest.json", flip),
    ("web/notes.txt", add),
]


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("case", CASES, ids=[f"{name}-{how.__name__}" for name, how in CASES])
def test_the_store_shows_what_a_folder_shows(
    case: tuple[str, Callable[[Path], None]], made: MadeDataset, s3_server: S3Server, cache: Path, tmp_path: Path
) -> None:
    name, damage = case
    bucket = f"verify-{CASES.index(case)}"
    url = upload(s3_server, bucket, made.path)
    assert verified(url, cache) == []
    dataset = fetch_dataset(url, options(cache))  # a good copy in the cache excuses nobody
    for row in range(len(dataset.shards_R)):
        dataset.storage.prefetch(dataset.shard_files(row))  # type: ignore[attr-defined]
    spoilt = tmp_path / "spoilt"
    shutil.copytree(made.path, spoilt)
    damage(spoilt / name)
    if (spoilt / name).exists():
        s3_server.put(bucket, {f"data/{name}": (spoilt / name).read_bytes()})
    else:
        s3_server.delete(bucket, f"data/{name}")
    here = verify_dataset(spoilt)
    found = verified(url, cache)
    assert here
    assert [(one.severity, one.file) for one in found] == [(one.severity, one.file) for one in here]
    # The object that is not there, or is longer, has words of its own; what it is does not differ.
    assert [one.code for one in found] == [one.code for one in here]
    assert [one.place for one in found] == [one.place for one in here]


def test_verify_as_typed(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = upload(s3_server, "verify-typed", made.path)
    proxy.faults.update({"shard.00001.mds": Fault("cut"), "documents.npy": Fault("503")})
    assert main(["verify", url, "--json", "--quiet"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (value["kind"], value["path"], value["intact"], value["findings"]) == ("dataset", url, True, [])
    total = sum(path.stat().st_size for path in made.path.rglob("*") if path.is_file())
    assert proxy.body_bytes >= total, "every byte is asked of the store"
    assert not list(cached_files(cache)), "and none is kept"
    flipped = bytearray((made.path / "web" / "shard.00000.mds").read_bytes())
    flipped[-1] ^= 1
    s3_server.put("verify-typed", {"data/web/shard.00000.mds": bytes(flipped)})
    assert main(["verify", url, "--quiet"]) == DamageError.exit_code
    shown = capsys.readouterr().out
    assert "damage: web/shard.00000.mds (sample 23)" in shown
    assert f"{url}: 1 damaged" in shown


def test_a_store_that_fails_is_no_damage(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = upload(s3_server, "verify-fails", made.path)
    proxy.faults["shard.00001.docs"] = Fault("503", times=1000)
    with pytest.raises(JobError, match=r"TR-REMOTE-FAILED[\s\S]*shard\.00001\.docs"):
        verified(url, cache)
    assert main(["verify", f"{url}/none", "--quiet"]) == ConfigError.exit_code
    assert "no Dataset here" in capsys.readouterr().err


def test_a_web_server_without_ranges_or_listing(made: MadeDataset, cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    with static_http(copy) as url:
        (note,) = verified(url, cache)
        assert (note.severity, "no listing" in note.message) == ("note", True)
        assert not list(cached_files(cache))
        flip(copy / "web" / "shard.00000.mds")
        cut(copy / "code" / "shard.00000.docs")
        found = [one.file for one in verified(url, cache) if one.severity == "damage"]
        assert found == [one.file for one in verify_dataset(copy)]


def test_a_file_url_is_a_folder(made: MadeDataset, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"file://{made.path}", "--quiet"]) == 0
    assert "intact" in capsys.readouterr().out
