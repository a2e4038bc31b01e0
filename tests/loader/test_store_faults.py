"""What stores, networks and disks do to a Dataset at a URL: right batches, or an error in the consumer that names the
object; never a short epoch, never a hang; and after repair the same stream goes on."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.faulty_streams import run_into
from support.object_store import ACCESS_KEY, SECRET_KEY, Fault, FaultProxy, S3Server
from support.remote_datasets import QUICK, cached_files, digests, open_remote, proxy, upload

from loader.canonical import canonical_json
from loader.errors import ConfigError, DamageError, JobError, TokenreelError
from loader.remote.store_failures import Transfer
from loader.sealed import seal
from loader.stream.store import StoreOptions, fetch_dataset, look_into_dataset
from loader.stream.stream import Stream, StreamConfig

__all__ = ["proxy"]

_SPEC = DatasetSpec(documents={"web": 60, "code": 20}, seq_len=32, samples_per_shard=12)
_STEPS = 25
BUCKET = "store-faults"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("remote"), _SPEC)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    """Another version of the same Dataset, under the same names."""
    return make_dataset(tmp_path_factory.mktemp("older"), DatasetSpec(**{**vars(_SPEC), "seed": 8}))


@pytest.fixture(scope="module")
def url(made: MadeDataset, s3_server: S3Server) -> str:
    return upload(s3_server, BUCKET, made.path)


@pytest.fixture(scope="module")
def local(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    with open_remote(str(made.path), tmp_path_factory.mktemp("none")) as stream:
        return digests(stream, _STEPS)


def flipped(data: bytes, older: bytes) -> bytes:
    at = len(data) - 30
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def cut(data: bytes, older: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes, older: bytes) -> bytes:
    return b""


def stale(data: bytes, older: bytes) -> bytes:
    assert older != data
    return older


def missing(data: bytes, older: bytes) -> None:
    return None


def some_slow(cases: list[Any], fast: list[Any]) -> list[Any]:
    """All cases; those that are not named as fast belong to the whole sweep."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


Damage = Callable[[bytes, bytes], bytes | None]
DAMAGES = [flipped, cut, emptied, missing, stale]


def read_into(stream: Stream, local: list[int]) -> TokenreelError:
    return run_into(stream, _STEPS, lambda step, batch: batch.token_digest == local[step])


def damaged(server: S3Server, key: str, damage: Damage, paths: tuple[Path, Path], bucket: str) -> None:
    data = damage((paths[0] / key).read_bytes(), (paths[1] / key).read_bytes())
    if data is None:
        server.delete(bucket, f"data/{key}")
    else:
        server.put(bucket, {f"data/{key}": data})


CASES = [(suffix, damage) for suffix in (".mds", ".segments", ".docs") for damage in DAMAGES]
FAST = [(".mds", stale), (".segments", cut), (".docs", emptied), (".mds", missing)]


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("case", some_slow(CASES, FAST), ids=lambda case: f"{case[0]}-{case[1].__name__}")
def test_damage_in_the_store_is_raised_and_heals(
    case: tuple[str, Damage],
    made: MadeDataset,
    older: MadeDataset,
    local: list[int],
    tmp_path: Path,
    s3_server: S3Server,
) -> None:
    suffix, damage = case
    bucket = f"damage-{suffix[1:]}-{damage.__name__}"
    url = upload(s3_server, bucket, made.path)
    key = f"web/shard.00001{suffix}"
    damaged(s3_server, key, damage, (made.path, older.path), bucket)
    with open_remote(url, tmp_path) as stream:
        error = read_into(stream, local)
        assert isinstance(error, DamageError)
        assert f"{url}/{key}" in str(error)
        step = stream.next_step
        state = stream.state_dict()
        with pytest.raises(DamageError, match=key):
            next(stream)
        s3_server.put(bucket, {f"data/{key}": (made.path / key).read_bytes()})
        assert digests(stream, 3) == local[step : step + 3], "the same stream goes on"
    with open_remote(url, tmp_path) as stream:
        stream.load_state_dict(state)
        assert digests(stream, _STEPS - step) == local[step:]


@pytest.mark.parametrize("damage", some_slow([flipped, cut, emptied, missing], [flipped, missing]))
@pytest.mark.parametrize("key", ["manifest.json", "shards.npy"])
def test_a_damaged_manifest_is_refused_at_once(
    key: str, damage: Damage, made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    bucket = f"damage-{key[0]}-{damage.__name__}"
    url = upload(s3_server, bucket, made.path)
    damaged(s3_server, key, damage, (made.path, made.path), bucket)
    for open_it in (fetch_dataset, look_into_dataset):
        with pytest.raises((DamageError, ConfigError), match=url):
            open_it(url, StoreOptions(tmp_path, None, 5.0, QUICK))
        s3_server.put(bucket, {f"data/{key}": (made.path / key).read_bytes()})
        assert open_it(url, StoreOptions(tmp_path, None, 5.0, QUICK)).digest == made.digest
        damaged(s3_server, key, damage, (made.path, made.path), bucket)


def test_a_bad_index_is_named(made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    url = upload(s3_server, "damage-index", made.path)
    good = (made.path / "documents.npy").read_bytes()
    s3_server.put("damage-index", {"data/documents.npy": flipped(good, b"")})
    document = next(iter(made.documents))
    for open_it in (fetch_dataset, look_into_dataset):
        dataset = open_it(url, StoreOptions(tmp_path, None, 5.0, QUICK))
        with pytest.raises(DamageError, match=f"{url}/documents.npy"):
            dataset.find_document(document)
    s3_server.put("damage-index", {"data/documents.npy": good})
    assert dataset.find_document(document) == made.open().find_document(document)


def hostile(made: MadeDataset, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The manifest with something changed and a self-hash that fits."""
    value = made.open().manifest.to_json()
    change(value)
    assert canonical_json(value)
    return seal(value)


def _traverse(value: dict[str, Any]) -> None:
    value["sources"][0]["name"] = "../../outside"


def _absolute(value: dict[str, Any]) -> None:
    value["files_hashed"]["/etc/outside"] = value["files_hashed"]["files.txt"]


def _huge(value: dict[str, Any]) -> None:
    value["files_hashed"]["shards.npy"]["size_bytes"] = (1 << 63) - 1


def _many(value: dict[str, Any]) -> None:
    value["sources"][0]["num_samples"] = (1 << 63) - 1


@pytest.mark.parametrize("change", [_traverse, _absolute, _huge, _many])
def test_a_hostile_manifest_is_refused(
    change: Callable[[dict[str, Any]], None], made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    url = upload(s3_server, f"hostile-{change.__name__.strip('_')}", made.path)
    s3_server.put(url.split("/")[2], {"data/manifest.json": hostile(made, change)})
    for open_it in (fetch_dataset, look_into_dataset):
        with pytest.raises(DamageError):
            open_it(url, StoreOptions(tmp_path / "cache", None, 5.0, QUICK))
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"])
    assert not list((tmp_path / "cache").rglob("*outside*"))


def _flip_file(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), b""))


def _link(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    path.unlink()
    path.symlink_to(copy)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").write_bytes(b"x")


POISONS: list[Callable[[Path], None]] = [
    _flip_file,
    lambda path: path.write_bytes(path.read_bytes()[:100]),
    lambda path: path.write_bytes(b""),
    _link,
    _folder,
    lambda path: shutil.copyfile(path.with_name(path.name.replace("00001", "00000")), path),
]


@pytest.mark.parametrize("poison", some_slow(POISONS, [_flip_file, _link]))
def test_a_cache_poisoned_between_runs_is_fetched_again(
    poison: Callable[[Path], None], url: str, made: MadeDataset, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    with open_remote(url, tmp_path) as stream:
        assert digests(stream, _STEPS) == local
    folder = tmp_path / "datasets" / made.digest / "web"
    for suffix in (".mds", ".segments", ".docs"):
        poison(folder / f"shard.00001{suffix}")
    shards = tmp_path / "datasets" / made.digest / "shards.npy"
    shards.write_bytes(flipped(shards.read_bytes(), b""))
    with open_remote(url, tmp_path) as stream:
        assert digests(stream, _STEPS) == local
    for path in cached_files(tmp_path):
        if path.name != "copy":
            assert path.read_bytes() == (made.path / path.parent.name / path.name).read_bytes()
    assert not [path for path in cached_files(tmp_path) if path.is_symlink()]


@pytest.mark.parametrize("damage", [_flip_file, lambda path: os.truncate(path, 5000)])
def test_a_cache_poisoned_while_it_is_read_is_fetched_again(
    damage: Callable[[Path], None], url: str, made: MadeDataset, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    """Written into the very file that is mapped."""
    with open_remote(url, tmp_path, config=StreamConfig(threads=2, prefetch_steps=1, timeout_s=10)) as stream:
        assert digests(stream, 8) == local[:8]
        for path in list(cached_files(tmp_path)):
            if path.suffix == ".mds":
                damage(path)
        assert digests(stream, _STEPS - 8) == local[8:]


@pytest.mark.parametrize("kind", some_slow(["cut", "short", "stall", "500", "503", "403"], ["short", "403"]))
def test_faults_that_pass_change_nothing(
    kind: str, url: str, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    proxy.faults = {f"shard.0000{n}.{s}": Fault(kind, times=2) for n in range(3) for s in ("mds", "segments", "docs")}
    proxy.faults["manifest.json"] = Fault(kind)
    proxy.faults["shards.npy"] = Fault(kind)
    with open_remote(url, tmp_path) as stream:
        assert digests(stream, _STEPS) == local


@pytest.mark.parametrize("cache_bytes", some_slow([None, 30_000], [None]))
def test_one_request_in_ten_fails(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path, cache_bytes: int | None
) -> None:
    rng = random.Random(7)
    spoilt: list[str] = []

    def fault_of(target: str, faults: object) -> str | None:
        del faults
        if rng.random() > 0.1:
            return None
        spoilt.append(target)
        return rng.choice(["cut", "short", "500", "503", "403"])

    proxy.fault_of = fault_of  # type: ignore[method-assign]
    transfer = Transfer(64 << 10, 4, attempts=8, backoff_s=0.01, request_timeout_s=2, idle_timeout_s=0.5)
    with open_remote(url, tmp_path, transfer=transfer, cache_bytes=cache_bytes) as stream:
        assert digests(stream, _STEPS) == local
    assert len(spoilt) > 3


def test_a_store_that_hangs_is_named_in_time_and_the_stream_goes_on(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    config = StreamConfig(threads=2, timeout_s=1.5)
    patient = Transfer(64 << 10, 4, attempts=20, backoff_s=0.01, request_timeout_s=2, idle_timeout_s=0.3)
    with open_remote(url, tmp_path, config=config, transfer=patient) as stream:
        proxy.faults = {"/shard.": Fault("stall", times=10**6)}
        start = time.monotonic()
        with pytest.raises(JobError, match="TR-STREAM-TIMEOUT") as caught:
            next(stream)
        assert time.monotonic() - start < 10
        assert url in str(caught.value)
        assert "shard.0" in str(caught.value)
        proxy.faults = {}
        deadline = time.monotonic() + 30
        found: list[int] = []
        while len(found) < 5:
            assert time.monotonic() < deadline
            try:
                found.append(next(stream).token_digest)
            except JobError:
                continue
        assert found == local[:5]


def test_credentials_that_expired_are_named_and_new_ones_are_taken(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    with open_remote(url, tmp_path) as stream:
        proxy.faults = {"/shard.": Fault("403", times=10**6)}
        error = read_into(stream, local)
        assert error.code == "TR-REMOTE-DENIED"
        assert f"{url}/" in str(error)
        assert ACCESS_KEY not in str(error)
        assert SECRET_KEY not in str(error)
        proxy.faults = {}
        assert digests(stream, 5) == local[:5]


def test_a_store_that_is_not_there_is_an_error_in_time(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    start = time.monotonic()
    with pytest.raises(JobError, match=r"s3://nowhere/data"):
        fetch_dataset("s3://nowhere/data", StoreOptions(tmp_path, None, 5.0, QUICK))
    assert time.monotonic() - start < 10


def test_a_cache_that_cannot_be_written_is_named(url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"TR-STORE-CACHE[\s\S]*file"):
        fetch_dataset(url, StoreOptions(tmp_path / "file", None, 5.0, QUICK))
    with open_remote(url, tmp_path / "cache") as stream:
        root = tmp_path / "cache" / "datasets"
        digest = stream.sources.digests[0]
        (root / digest / "web").mkdir(exist_ok=True)
        shutil.rmtree(root / digest / "web")
        (root / digest / "web").write_bytes(b"a file where a folder should be")
        assert len(digests(stream, 3)) == 3, "what lies in the way in the cache's own folder is removed"


def test_look_up_sees_damage_in_what_it_reads(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    """One flipped token of one sample: that sample alone is damaged."""
    url = upload(s3_server, "damage-ranges", made.path)
    key = "web/shard.00000.mds"
    good = (made.path / key).read_bytes()
    sample_bytes = 2 * _SPEC.seq_len
    s3_server.put(
        "damage-ranges", {f"data/{key}": good[: -3 * sample_bytes] + bytes(sample_bytes) + good[-2 * sample_bytes :]}
    )
    dataset = look_into_dataset(url, StoreOptions(tmp_path, None, 5.0, QUICK))
    last = made.shard_samples["web"][0] - 1
    expected = made.open().read_samples("web", [0, last, last - 1, 1])
    assert (dataset.read_samples("web", [0, last, last - 1, 1]) == expected).all()
    with pytest.raises(DamageError, match=rf"sample {last - 2} of[\s\S]*{url}/{key}"):
        dataset.read_samples("web", [0, last - 2])
    s3_server.put("damage-ranges", {f"data/{key}": good})
    assert (dataset.read_samples("web", [last - 2]) == made.open().read_samples("web", [last - 2])).all()
