"""Fetching from a real S3 server through a proxy that cuts, shortens, stalls and refuses: every byte or an error that
names the URL and the range, never a shorter file.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from support.object_store import ACCESS_KEY, SECRET_KEY, Fault, FaultProxy, S3Server, fault_proxy, static_http

from dataprep.remote.listing import find_objects, look_up
from dataprep.remote.mirror import fetch_all, mirrored, to_fetch
from loader.cli_options import Output
from loader.errors import ConfigError, JobError, RefusedError, TokenreelError
from loader.remote import fetch
from loader.remote.fetch import Fetcher
from loader.remote.store import open_store
from loader.remote.store_failures import Transfer
from loader.settings import child_environment

QUICK = Transfer(range_bytes=64 << 10, ranges=4, attempts=4, backoff_s=0.01, request_timeout_s=2, idle_timeout_s=1)
SMALL = random.Random(1).randbytes(50_000)
LARGE = random.Random(2).randbytes(1_000_001)
BUCKET = "faults"


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    s3_server.put(BUCKET, {"in/small.bin": SMALL, "in/large.bin": LARGE, "in/empty.bin": b""})
    return s3_server


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with fault_proxy(server) as running:
        for name, value in server.environment(running.endpoint).items():
            monkeypatch.setenv(name, value)
        yield running


def fetched(path: str, target: Path, transfer: Transfer = QUICK) -> str:
    store = open_store(f"s3://{BUCKET}/in", transfer)
    with Fetcher(transfer) as fetcher:
        return fetcher.fetch(store, store.head(path), target)


@pytest.mark.parametrize("kind", ["cut", "short", "stall", "500", "503", "403"])
@pytest.mark.parametrize(("path", "data"), [("small.bin", SMALL), ("large.bin", LARGE)])
def test_a_fault_that_passes_costs_nothing(
    proxy: FaultProxy, tmp_path: Path, kind: str, path: str, data: bytes
) -> None:
    proxy.faults = {path: Fault(kind, times=2, skip=0 if data is SMALL else 3)}
    assert fetched(path, tmp_path / path) == xxhash.xxh3_128_hexdigest(data)
    assert (tmp_path / path).read_bytes() == data
    assert [left.name for left in tmp_path.iterdir()] == [path], "nothing else is left"
    assert proxy.faults[path].times == 0, "the faults were committed"
    assert len(proxy.ranges(path)) == -(-len(data) // QUICK.range_bytes) + 2


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("cut", "TR-REMOTE-FAILED", ""),
        ("short", "TR-REMOTE-FAILED", ""),
        ("stall", "TR-REMOTE-FAILED", ""),
        ("503", "TR-REMOTE-FAILED", "SlowDown"),
        ("403", "TR-REMOTE-DENIED", "ExpiredToken"),
    ],
)
def test_a_fault_that_stays_ends_by_url_and_range(
    proxy: FaultProxy, tmp_path: Path, kind: str, code: str, words: str
) -> None:
    proxy.faults = {"large.bin": Fault(kind, times=10**6, skip=2)}
    transfer = Transfer(64 << 10, 1, attempts=3, backoff_s=0.01, request_timeout_s=1, idle_timeout_s=0.5)
    with pytest.raises(JobError) as caught:
        fetched("large.bin", tmp_path / "large.bin", transfer)
    error = caught.value
    assert error.code == code
    assert words in error.message
    assert "3 attempts" in error.message
    assert error.place == f"s3://{BUCKET}/in/large.bin bytes 131072-196608"
    assert SECRET_KEY not in str(error)
    assert not (tmp_path / "large.bin").exists()
    assert len(proxy.ranges("large.bin")) == 2 + 3


def test_memory_and_requests_are_bounded(proxy: FaultProxy, tmp_path: Path) -> None:
    """At most ``ranges`` ranges are between their request and the disk, whatever the number of objects."""
    transfer = Transfer(range_bytes=10_000, ranges=3, attempts=2, backoff_s=0.01)
    store = open_store(f"s3://{BUCKET}/in", transfer)
    inside = most = 0
    with Fetcher(transfer) as fetcher:
        acquire, release = fetcher._slots.acquire, fetcher._slots.release

        def taken(*arguments: object, **options: object) -> bool:
            nonlocal inside, most
            got = acquire(*arguments, **options)  # type: ignore[arg-type]
            inside += got
            most = max(most, inside)
            return got

        def given() -> None:
            nonlocal inside
            inside -= 1
            release()

        fetcher._slots.acquire = taken  # type: ignore[method-assign,assignment]
        fetcher._slots.release = given  # type: ignore[method-assign,assignment]
        fetcher.fetch(store, store.head("large.bin"), tmp_path / "large.bin")
    assert (tmp_path / "large.bin").read_bytes() == LARGE
    assert (most, inside) == (3, 0)


def test_an_object_that_changes_under_the_fetch_is_refused(proxy: FaultProxy, server: S3Server, tmp_path: Path) -> None:
    server.put(BUCKET, {"in/moving.bin": LARGE})
    seen: list[str] = []

    def replace(target: str) -> None:
        seen.append(target)
        if len(seen) == 4:
            server.put(BUCKET, {"in/moving.bin": LARGE[::-1]})

    proxy.on_request = replace
    with pytest.raises(RefusedError, match="TR-REMOTE-CHANGED") as caught:
        fetched("moving.bin", tmp_path / "moving.bin")
    assert caught.value.place == f"s3://{BUCKET}/in/moving.bin"
    assert list(tmp_path.iterdir()) == []
    proxy.on_request = lambda target: None
    assert fetched("moving.bin", tmp_path / "moving.bin") == xxhash.xxh3_128_hexdigest(LARGE[::-1])


def test_a_fetch_goes_on_from_what_was_made_durable(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a note vouches for is not asked for again, unless it no longer hashes to what the note says."""
    monkeypatch.setattr(fetch, "_DURABLE_BYTES", 200_000)
    place = tmp_path / "large.bin"
    for damaged in (False, True):
        proxy.faults = {"large.bin": Fault("500", times=10**6, skip=10)}
        with pytest.raises(JobError):
            fetched("large.bin", place)
        note = json.loads((tmp_path / ".part.json").read_bytes())
        assert note["bytes"] >= 200_000
        if damaged:
            with open(tmp_path / ".part", "r+b") as part:
                part.seek(1000)
                part.write(b"?")
        proxy.faults.clear()
        proxy.requests.clear()
        assert fetched("large.bin", place) == xxhash.xxh3_128_hexdigest(LARGE)
        assert place.read_bytes() == LARGE
        first = sorted(proxy.ranges("large.bin"), key=lambda given: int(given.split("=")[1].split("-")[0]))[0]
        assert first.startswith(f"bytes={0 if damaged else note['bytes']}-")
        place.unlink()


KILLED = """
import sys
from pathlib import Path
from loader.remote import fetch
from loader.remote.store import open_store
from loader.remote.store_failures import Transfer
fetch._DURABLE_BYTES = 100_000
store = open_store("s3://faults/in")
with fetch.Fetcher(Transfer(range_bytes=32 << 10, ranges=2)) as fetcher:
    fetcher.fetch(store, store.head("large.bin"), Path(sys.argv[1]) / "large.bin")
"""


def test_a_killed_fetch_leaves_no_file_and_goes_on(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.faults = {"large.bin": Fault("slow", times=10**6)}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=child_environment())
    deadline = time.monotonic() + 30
    while not (tmp_path / ".part.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / ".part.json").exists()
    assert not (tmp_path / "large.bin").exists()
    proxy.faults.clear()
    proxy.requests.clear()
    assert fetched("large.bin", tmp_path / "large.bin") == xxhash.xxh3_128_hexdigest(LARGE)
    assert len(proxy.ranges("large.bin")) < -(-len(LARGE) // QUICK.range_bytes), "not from its start"
    assert [left.name for left in tmp_path.iterdir()] == ["large.bin"]


STALLED = """
import sys
from pathlib import Path
from dataprep.remote.listing import find_objects
from dataprep.remote.mirror import fetch_all, mirrored
from loader.cli_options import Output
from loader.remote.store import open_store
from loader.remote.store_failures import Transfer
patient = Transfer(range_bytes=64 << 10, ranges=3, request_timeout_s=3600, idle_timeout_s=3600)
store = open_store("s3://faults/in", patient)
files = find_objects(store, ["*.bin", "small.bin"], patient)
fetch_all([mirrored(Path(sys.argv[1]), store, file) for file in files], Output(quiet=True), patient)
"""


@pytest.mark.parametrize("stalled", ["list-type", "large.bin"])
def test_an_interrupt_does_not_wait_for_a_stalled_answer(proxy: FaultProxy, tmp_path: Path, stalled: str) -> None:
    """Each answer may take an hour."""
    proxy.faults = {stalled: Fault("stall", times=10**6)}
    process = subprocess.Popen([sys.executable, "-c", STALLED, str(tmp_path)], env=child_environment())
    deadline = time.monotonic() + 60
    while not any(stalled in target for _, target, _ in list(proxy.requests)) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) != 0
    proxy.faults.clear()


def test_listing_and_looking_up_try_again_and_name_what_is_missing(proxy: FaultProxy) -> None:
    store = open_store(f"s3://{BUCKET}/in", QUICK)
    proxy.faults = {"list-type": Fault("503", times=2)}
    found = find_objects(store, ["*.bin", "small.bin", "none.bin"], QUICK)
    assert {"empty.bin", "large.bin", "small.bin"} <= {file.path for file in found}
    assert [file.path for file in look_up(store, ["small.bin", "empty.bin"], QUICK)] == ["small.bin", "empty.bin"]
    with pytest.raises(ConfigError, match="TR-REMOTE-MISSING") as caught:
        look_up(store, ["small.bin", "gone.bin"], QUICK)
    assert caught.value.place == f"s3://{BUCKET}/in/gone.bin"
    proxy.faults = {"list-type": Fault("403", times=10**6)}
    with pytest.raises(JobError, match="TR-REMOTE-DENIED"):
        find_objects(store, ["*"], QUICK)


def test_wrong_keys_are_said_without_the_keys(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**server.environment(), "AWS_ACCESS_KEY_ID": "AKIACANARY2", "AWS_SECRET_ACCESS_KEY": "CANARYsecret"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/in", QUICK)
    with pytest.raises(JobError, match="TR-REMOTE-DENIED") as caught:
        find_objects(store, ["*"], QUICK)
    assert "CANARY" not in str(caught.value)


def test_renewed_credentials_are_read_again(
    proxy: FaultProxy, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that expired are replaced in the environment while the job waits: the next attempt takes the new ones."""
    store = open_store(f"s3://{BUCKET}/in", QUICK)
    file = store.head("small.bin")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired-long-ago")
    store.renew()
    proxy.on_request = lambda target: os.environ.update(server.environment(proxy.endpoint))
    with Fetcher(QUICK) as fetcher:
        assert fetcher.fetch(store, file, tmp_path / "small.bin") == xxhash.xxh3_128_hexdigest(SMALL)
    assert len(proxy.ranges("small.bin")) == 2


def test_a_profile_is_as_good_as_variables(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="profiles are read by boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = no\n[mine]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert open_store(f"s3://{BUCKET}/in", QUICK).head("small.bin").size_bytes == len(SMALL)


def test_a_server_without_ranges_is_asked_again_for_the_whole(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "a.bin").write_bytes(LARGE)
    with static_http(tmp_path / "www") as url, fault_proxy(S3Server(url, int(url.rpartition(":")[2]))) as proxy:
        store = open_store(proxy.endpoint, QUICK)
        file = store.head("a.bin")
        steps: list[int] = []
        proxy.faults = {"a.bin": Fault("cut", times=2, skip=QUICK.ranges)}
        with Fetcher(QUICK) as fetcher:
            digest = fetcher.fetch(store, file, tmp_path / "out" / "a.bin", steps.append)
    assert digest == xxhash.xxh3_128_hexdigest(LARGE)
    assert (tmp_path / "out" / "a.bin").read_bytes() == LARGE
    assert sum(steps) == len(LARGE), "progress counts what is there, not what came"


def test_what_ranges_brought_is_not_counted_twice_where_the_server_knows_none_any_more(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "a.bin").write_bytes(LARGE)
    steps: list[int] = []
    with static_http(tmp_path / "www") as url, Fetcher(QUICK) as fetcher:
        store = open_store(url, QUICK)
        file = store.head("a.bin")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".part").write_bytes(LARGE[:200_000])
        digest = xxhash.xxh3_128_hexdigest(LARGE[:200_000])
        facts = {"size": file.size_bytes, "version": file.version, "bytes": 200_000, "digest": digest}
        (tmp_path / "out" / ".part.json").write_text(json.dumps(facts))
        fetcher.fetch(store, file, tmp_path / "out" / "a.bin", steps.append)
    assert steps[0] == 200_000, "it went on from there"
    assert sum(steps) == len(LARGE)
    assert (tmp_path / "out" / "a.bin").read_bytes() == LARGE


def test_a_server_without_ranges_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "www" / "a b").mkdir(parents=True)
    (tmp_path / "www" / "a b" / "é%20.bin").write_bytes(LARGE)
    with static_http(tmp_path / "www") as url:
        store = open_store(f"{url}/a b", QUICK)
        with pytest.raises(ConfigError, match="TR-REMOTE-LIST"):
            find_objects(store, ["*"], QUICK)
        (file,) = look_up(store, ["é%20.bin"], QUICK)
        with Fetcher(QUICK) as fetcher:
            assert fetcher.fetch(store, file, tmp_path / "out") == xxhash.xxh3_128_hexdigest(LARGE)
            (tmp_path / "www" / "a b" / "é%20.bin").write_bytes(LARGE + b"!")
            with pytest.raises(RefusedError, match="TR-REMOTE-CHANGED"):
                fetcher.fetch(store, file, tmp_path / "out2")
    assert (tmp_path / "out").read_bytes() == LARGE


ODD = ("a b", "é", "c%20d", "p+q", "r[1]~*", "=&@!$'(),;:")


def test_keys_stand_for_themselves(proxy: FaultProxy, server: S3Server) -> None:
    """Whatever is in them: in the root, in what is listed, in what is looked up and read."""
    server.put("odd", {f"{folder}/{folder}.bin": folder.encode() for folder in ODD})
    for folder in ODD:
        store = open_store(f"s3://odd/{folder}", QUICK)
        (file,) = find_objects(store, ["*"], QUICK)
        assert file.path == f"{folder}.bin"
        assert look_up(store, [file.path], QUICK) == [file]
        assert bytes(store.read(file, 0, file.size_bytes)) == folder.encode()


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match="TR-REMOTE-EXTRA") as caught:
        open_store("s3://bucket/x")
    assert caught.value.next_command == "pip install 'tokenreel[s3]'"
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match="TR-REMOTE-EXTRA"):
        open_store("memory://x")


def test_other_schemes_are_read_by_fsspec(tmp_path: Path) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe({"/tokenreel/in/x/a.bin": SMALL, "/tokenreel/in/b.bin": LARGE, "/tokenreel/c.bin": b"no"})
    store = open_store("memory://tokenreel/in", QUICK)
    found = find_objects(store, ["**/*.bin"], QUICK)
    assert [(file.path, file.size_bytes) for file in found] == [("b.bin", len(LARGE)), ("x/a.bin", len(SMALL))]
    assert find_objects(store, ["x/*.bin"], QUICK) == look_up(store, ["x/a.bin"], QUICK)
    with Fetcher(QUICK) as fetcher:
        assert fetcher.fetch(store, found[0], tmp_path / "b") == xxhash.xxh3_128_hexdigest(LARGE)
        system.pipe("/tokenreel/in/b.bin", LARGE[::-1])
        with pytest.raises(RefusedError, match="TR-REMOTE-CHANGED"):
            fetcher.fetch(store, found[0], tmp_path / "c")
    with pytest.raises(ConfigError, match="TR-REMOTE-SCHEME"):
        open_store("nothing-knows-this://x/y")


def test_one_object_that_fails_stops_the_rest_and_keeps_what_is_done(proxy: FaultProxy, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}/in", QUICK)
    files = look_up(store, ["small.bin", "large.bin", "empty.bin"], QUICK)
    inputs = [mirrored(tmp_path, store, file) for file in files]
    proxy.faults = {"large.bin": Fault("500", times=10**6, skip=6)}
    with pytest.raises(TokenreelError, match=r"large\.bin bytes"):
        fetch_all(inputs, Output(quiet=True), Transfer(64 << 10, 1, attempts=2, backoff_s=0.01))
    proxy.faults.clear()
    lacking, notes = to_fetch(inputs)
    assert "large.bin" in {remote.file.path for remote in lacking}
    notes |= fetch_all(lacking, Output(quiet=True), QUICK)
    assert sorted(note[2] for note in notes.values()) == sorted(
        xxhash.xxh3_128_hexdigest(data) for data in (SMALL, LARGE, b"")
    )
    assert to_fetch(inputs) == ([], notes)
    os.utime(inputs[0].location)
    assert [remote.file.path for remote in to_fetch(inputs)[0]] == ["small.bin"], "touched: it may be anything"
    assert len(to_fetch(inputs, rehash=True)[0]) == 3
