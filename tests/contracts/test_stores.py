"""Contract of stores, over the schemes that obstore reads: one real server each on 127.0.0.1, and the proxy that does
what networks do. S3 has more tests of its own (``loader/test_store_faults.py``)."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from support.cloud_servers import SERVERS, CloudServer, running
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import Fault, FaultProxy, fault_proxy
from support.remote_datasets import QUICK, digests, open_remote, through, upload

from loader.errors import ConfigError, DamageError, JobError, RefusedError
from loader.remote.fetch import Fetcher, read_ranges
from loader.remote.store import RemoteFile, Store, open_store
from loader.remote.store_failures import StoreError
from loader.shards.verify import verify_dataset
from loader.stream.store import StoreOptions, look_into_dataset, verify_location

_ROWS = [pytest.param(name, marks=pytest.mark.slow) if name == "az" else name for name in SERVERS]
OBJECTS = {
    "a/first.bin": bytes(range(256)) * 700,
    "a/second file+plus.bin": b"second",
    "a/deep/er/%20 and é.bin": b"third",
    "b/empty.bin": b"",
}


@pytest.fixture(scope="module", params=_ROWS)
def server(request: pytest.FixtureRequest) -> Iterator[CloudServer]:
    with running(request.param) as one:
        yield one


@pytest.fixture
def proxy(server: CloudServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with fault_proxy(server) as one:
        through(one, server, monkeypatch)
        yield one


@pytest.fixture
def bucket(server: CloudServer, request: pytest.FixtureRequest) -> str:
    """A bucket of the test's own, with ``OBJECTS`` below ``root``."""
    name = "c" + xxhash.xxh3_64_hexdigest(request.node.nodeid.encode())
    server.put(name, {f"root/{key}": data for key, data in OBJECTS.items()})
    return name


@pytest.fixture
def store(server: CloudServer, bucket: str, proxy: FaultProxy) -> Store:
    """Asked without retries below: a pause of the machine must not be a stall of the server."""
    return open_store(f"{server.scheme}://{bucket}/root", dataclasses.replace(QUICK, idle_timeout_s=1.5))


def test_listing_and_looking_up_agree(store: Store) -> None:
    listed = {file.path: file for file in store.list("")}
    assert {path: file.size_bytes for path, file in listed.items()} == {key: len(data) for key, data in OBJECTS.items()}
    assert all(file.version for file in listed.values())
    for path, file in listed.items():
        assert store.head(path) == file
    assert {file.path for file in store.list("a")} == {key for key in OBJECTS if key.startswith("a/")}
    assert list(store.list("none")) == []


def test_exact_ranges_of_what_was_listed(store: Store) -> None:
    data = OBJECTS["a/first.bin"]
    for file in store.list(""):
        if file.size_bytes:
            assert bytes(store.read(file, 0, file.size_bytes)) == OBJECTS[file.path]
            assert b"".join(bytes(piece) for piece in store.stream(file)) == OBJECTS[file.path]
    file = store.head("a/first.bin")
    for start, stop in ((0, 1), (5, 9), (len(data) - 1, len(data)), (1000, 100_000)):
        assert bytes(store.read(file, start, stop)) == data[start:stop]
    with pytest.raises(StoreError):
        store.read(file, len(data) - 2, len(data) + 2)


def test_what_is_not_there(store: Store, server: CloudServer, bucket: str) -> None:
    with pytest.raises(StoreError) as caught:
        store.head("a/none.bin")
    assert caught.value.kind == "missing"
    with pytest.raises(StoreError) as caught:
        store.read(RemoteFile("a/none.bin", 3, '"x"'), 0, 3)
    assert caught.value.kind in ("missing", "changed")  # Azure's answer to If-Match: it is not the one that was meant
    with pytest.raises((ConfigError, RefusedError), match=r"TR-REMOTE-(MISSING|CHANGED)"):
        read_ranges(store, RemoteFile("a/none.bin", 3, '"x"'), 0, 3, QUICK)
    nowhere = open_store(f"{server.scheme}://{bucket}x/root", QUICK)
    with pytest.raises(StoreError) as caught:
        nowhere.head("a")
    assert caught.value.kind == "missing"


def test_another_version_is_never_mixed_in(store: Store, server: CloudServer, bucket: str, tmp_path: Path) -> None:
    file = store.head("a/first.bin")
    server.put(bucket, {"root/a/first.bin": OBJECTS["a/first.bin"][::-1]})
    with pytest.raises(StoreError) as caught:
        store.read(file, 0, 10)
    assert caught.value.kind == "changed"
    with Fetcher(QUICK) as fetcher, pytest.raises(RefusedError, match="TR-REMOTE-CHANGED"):
        fetcher.fetch(store, file, tmp_path / "object")
    assert not (tmp_path / "object").exists()


@pytest.mark.parametrize("kind", ["cut", "short", "stall", "500", "503", "403"])
def test_faults_that_pass_are_lived_through(kind: str, store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    data = OBJECTS["a/first.bin"]
    file = store.head("a/first.bin")
    proxy.faults["first"] = Fault(kind, times=2)
    with Fetcher(QUICK) as fetcher:
        assert fetcher.fetch(store, file, tmp_path / "object") == xxhash.xxh3_128_hexdigest(data)
    assert (tmp_path / "object").read_bytes() == data
    assert proxy.faults["first"].times == 0
    proxy.faults["first"] = Fault(kind, times=1)
    assert read_ranges(store, file, 100, 70_000, QUICK) == data[100:70_000]


@pytest.mark.parametrize(("kind", "code"), [("503", "TR-REMOTE-FAILED"), ("403", "TR-REMOTE-DENIED")])
def test_faults_that_stay_are_named(kind: str, code: str, store: Store, server: CloudServer, proxy: FaultProxy) -> None:
    file = store.head("a/first.bin")
    proxy.faults["first"] = Fault(kind, times=100)
    with pytest.raises(JobError, match=rf"{code}[\s\S]*a/first\.bin bytes 0-10") as caught:
        read_ranges(store, file, 0, 10, QUICK)
    for secret in server.environment().values():
        assert len(secret) < 12 or secret not in str(caught.value).replace(proxy.endpoint, "")


# Datasets -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("stores"), DatasetSpec(documents={"web": 40}, seq_len=32))


@pytest.fixture(scope="module")
def local(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    with open_remote(str(made.path), tmp_path_factory.mktemp("none")) as stream:
        return digests(stream, 12)


def test_a_dataset_is_streamed_looked_into_and_verified(
    made: MadeDataset, local: list[int], server: CloudServer, bucket: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    url = upload(server, bucket, made.path, "data")
    proxy.faults.update(
        {"shard.00000.mds": Fault("cut"), "shard.00001.segments": Fault("503"), "manifest": Fault("500")}
    )
    with open_remote(url, tmp_path / "cache") as stream:
        assert digests(stream, 12) == local
    options = StoreOptions(tmp_path / "other", None, 5.0, QUICK)
    looked = look_into_dataset(url, options)
    assert np.array_equal(looked.read_samples("web", [3, 1, 9]), made.open().read_samples("web", [3, 1, 9]))
    document = next(iter(made.documents))
    assert [name for name, _ in looked.samples_of_document(document)] == ["web"]
    assert verify_location(url, lambda size_bytes: None, options) == verify_dataset(made.path) == []


def test_damage_in_the_store_is_named(
    made: MadeDataset, server: CloudServer, bucket: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    url = upload(server, bucket, made.path, "data")
    data = bytearray((made.path / "web" / "shard.00000.mds").read_bytes())
    data[-1] ^= 1
    server.put(bucket, {"data/web/shard.00000.mds": bytes(data)})
    server.delete(bucket, "data/web/shard.00001.docs")
    server.put(bucket, {"data/web/notes.txt": b"whose?"})
    options = StoreOptions(tmp_path, None, 5.0, QUICK)
    found = {(one.file, one.severity) for one in verify_location(url, lambda size_bytes: None, options)}
    expected = {("web/shard.00000.mds", "damage"), ("web/shard.00001.docs", "damage"), ("web/notes.txt", "unnamed")}
    assert found == expected
    with pytest.raises(DamageError, match=f"{url}/web/shard.00000.mds"):
        look_into_dataset(url, options).read_samples("web", [15])


def test_many_threads_share_a_store(store: Store) -> None:
    file, data = store.head("a/first.bin"), OBJECTS["a/first.bin"]
    wrong: list[int] = []

    def read(number: int) -> None:
        if (
            read_ranges(store, file, number * 1000, number * 1000 + 999, QUICK)
            != data[number * 1000 : number * 1000 + 999]
        ):
            wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
