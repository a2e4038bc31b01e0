"""Datasets in a real S3 server give the very batches that the folder gives, whatever cache, threads and processes."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import FaultProxy, S3Server
from support.remote_datasets import QUICK, cached_bytes, cached_files, digests, open_remote, proxy, upload

from loader.errors import ConfigError, RefusedError
from loader.settings import child_environment
from loader.stream.open import open_stream
from loader.stream.store import StoreOptions, fetch_dataset
from loader.stream.stream import StreamConfig

__all__ = ["proxy"]

_SPEC = DatasetSpec(documents={"web": 120, "code": 50}, seq_len=32, samples_per_shard=12)
_STEPS = 40
_BATCH = 6
_TINY, _SMALL = 12_000, 40_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("remote"), _SPEC)


@pytest.fixture(scope="module")
def url(made: MadeDataset, s3_server: S3Server) -> str:
    return upload(s3_server, "remote-dataset", made.path)


@pytest.fixture(scope="module")
def local(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    with open_remote(str(made.path), tmp_path_factory.mktemp("none")) as stream:
        return digests(stream, _STEPS)


_WAYS = [(1, 1, None), (4, 8, None), (4, 1, _TINY), (1, 8, _SMALL)]
_MORE = [way for way in itertools.product((1, 4), (1, 8), (None, _TINY, _SMALL)) if way not in _WAYS]


@pytest.mark.parametrize("way", _WAYS + [pytest.param(way, marks=pytest.mark.slow) for way in _MORE])
def test_the_batches_are_those_of_the_folder(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path, way: tuple[int, int, int | None]
) -> None:
    threads, prefetch, cache_bytes = way
    config = StreamConfig(threads=threads, prefetch_steps=prefetch, timeout_s=10)
    steps = 12 if cache_bytes == _TINY else _STEPS
    with open_remote(url, tmp_path, config=config, cache_bytes=cache_bytes) as stream:
        assert digests(stream, steps) == local[:steps]
    if cache_bytes is not None:
        used = cached_bytes(tmp_path)
        largest = sum(path.stat().st_size for path in (tmp_path / "datasets").rglob("shard.00000.*"))
        assert used <= cache_bytes + threads * max(largest, 8000), "what is being opened may be too much, no more"


def test_open_stream_takes_urls(url: str, made: MadeDataset, proxy: FaultProxy, tmp_path: Path) -> None:
    with (
        open_stream(url, 6, config=StreamConfig(cache=tmp_path / "cache", cache_bytes=1 << 20)) as there,
        open_stream(made.path, 6) as here,
    ):
        assert digests(there, 20) == digests(here, 20)
        assert there.state_dict() == here.state_dict(), "a Cursor does not know where its Datasets are"
        assert url in there.sources.place


def test_data_ranks_share_a_cache_and_fetch_once(url: str, proxy: FaultProxy, local: list[int], tmp_path: Path) -> None:
    ranks = [open_remote(url, tmp_path, config=StreamConfig(rank, 4, timeout_s=10)) for rank in range(4)]
    parts: list[list[int]] = [[] for _ in ranks]
    readers = [
        threading.Thread(target=lambda part=part, stream=stream: part.extend(digests(stream, 20)))  # type: ignore[misc]
        for part, stream in zip(parts, ranks, strict=True)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert [sum(step) % (1 << 64) for step in zip(*parts, strict=True)] == local[:20]
    fetched = Counter(target for method, target, _ in list(proxy.requests) if method == "GET" and "/shard." in target)
    assert set(fetched.values()) == {1}
    for stream in ranks:
        stream.close()


_CHILD = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.remote_datasets import digests, open_remote
from loader.stream.stream import StreamConfig
url, cache, rank, ranks, steps, limit, state = json.loads(sys.argv[2])
with open_remote(url, Path(cache), config=StreamConfig(rank, ranks, timeout_s=20), cache_bytes=limit) as stream:
    if state:
        stream.load_state_dict(state)
    for _ in range(steps):
        print(json.dumps([next(stream).token_digest, stream.state_dict()]), flush=True)
    sys.stdin.read()
"""


def child(url: str, cache: Path, *rest: object) -> subprocess.Popen[str]:
    """A process that streams and prints a line a step, and stays until its input ends: rank, ranks, steps, cache limit,
    state."""
    command = [sys.executable, "-c", _CHILD, str(Path(__file__).parents[1]), json.dumps([url, str(cache), *rest])]
    environment = child_environment(OMP_NUM_THREADS="1")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def lines(process: subprocess.Popen[str], steps: int) -> list[int]:
    """The digests of its steps, all that it takes; it stays."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())[0] for _ in range(steps)]


def end(process: subprocess.Popen[str]) -> None:
    rest, _ = process.communicate(timeout=100)
    assert (process.returncode, rest) == (0, "")


@pytest.mark.parametrize("limit", [None, pytest.param(_SMALL, marks=pytest.mark.slow)])
def test_processes_share_a_cache(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path, limit: int | None
) -> None:
    processes = [child(url, tmp_path, rank, 2, 25, limit, None) for rank in range(2)]
    parts = [lines(one, 25) for one in processes]
    requests = list(proxy.requests)  # what one is fetching as it ends, the other fetches again
    for one in processes:
        end(one)
    assert [sum(step) % (1 << 64) for step in zip(*parts, strict=True)] == local[:25]
    if limit is None:
        fetched = Counter(target for method, target, _ in requests if method == "GET" and "/shard." in target)
        assert set(fetched.values()) == {1}, "no file twice"


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_that_stops_the_next(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    """Killed between steps and, the other one, while it fetches; both beside one that lives."""
    hanging = threading.Event()
    proxy.on_request = lambda target: hanging.wait(0.3) if "/shard.00001" in target else None  # type: ignore[assignment,return-value]
    killed = [child(url, tmp_path, 0, 1, 30, _SMALL, None) for _ in range(2)]
    alive = child(url, tmp_path, 0, 1, 25, _SMALL, None)
    done, state = [], None
    for _ in range(7):
        assert killed[0].stdout is not None
        digest, state = json.loads(killed[0].stdout.readline())
        done.append(digest)
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    hanging.set()
    assert done == local[:7]
    assert lines(alive, 25) == local[:25]
    end(alive)
    last = child(url, tmp_path, 0, 1, 12, _SMALL, state)
    assert lines(last, 12) == local[7:19]
    end(last)
    root = tmp_path / "datasets"
    assert not list(root.glob(".tmp-*")), "what was half fetched is cleared away"
    with open_remote(url, tmp_path) as stream:
        digests(stream, 1)
        assert len(list((root / ".leases").iterdir())) == 1


def wait_for_files(cache: Path, number: int) -> None:
    deadline = time.monotonic() + 20
    while len(list(cached_files(cache))) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("total", [None, 600])
def test_shards_are_fetched_before_they_are_read(
    url: str, proxy: FaultProxy, tmp_path: Path, total: int | None
) -> None:
    """With one step read, the shards of a whole epoch are there soon, though the plan may end in what is walked."""
    with open_remote(url, tmp_path, total=total) as stream:
        next(stream)
        wait_for_files(tmp_path, 3 * len(stream.sources.datasets[0].shards_R))


def test_what_was_fetched_serves_the_next_start(url: str, proxy: FaultProxy, local: list[int], tmp_path: Path) -> None:
    with open_remote(url, tmp_path) as stream:
        digests(stream, _STEPS)
        wait_for_files(tmp_path, 3 * len(stream.sources.datasets[0].shards_R))
    proxy.requests.clear()
    with open_remote(url, tmp_path) as stream:
        assert digests(stream, _STEPS) == local
    assert not [target for _, target, _ in proxy.requests if "/shard" in target]


def test_a_cache_smaller_than_the_live_windows_says_what_they_need_once(
    url: str, proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tokenreel.store"), open_remote(url, tmp_path, cache_bytes=_TINY) as stream:
        digests(stream, 20)
    (record,) = caplog.records
    assert f"{_TINY:,}" in record.getMessage()


def test_a_cache_that_holds_no_shard_is_refused_with_the_number(url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TR-STORE-CACHE-SMALL[\s\S]*at least \d,\d+ bytes"):
        fetch_dataset(url, StoreOptions(tmp_path, 1000, 5.0, QUICK))
    with pytest.raises(ConfigError, match="TR-STORE-OPTIONS"):
        StoreOptions(tmp_path, 0)


def test_nothing_that_was_not_fetched_is_removed(
    made: MadeDataset, url: str, proxy: FaultProxy, local: list[int], tmp_path: Path
) -> None:
    """A cache folder in which a user keeps files of the same names; a folder of the Dataset's own digest."""
    for own in ("mine/shard.00000.mds", f"datasets/{'0' * 32}/web/shard.00000.mds", "datasets/shard.00001.segments"):
        (tmp_path / own).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / own).write_bytes(b"mine" * 5000)
    kept = set(cached_files(tmp_path))
    with open_remote(url, tmp_path, cache_bytes=_TINY) as stream:
        assert digests(stream, 20) == local[:20]
    assert kept <= set(cached_files(tmp_path))
    other = tmp_path / "other"
    (other / "datasets" / made.digest).mkdir(parents=True)
    (other / "datasets" / made.digest / "mine").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="TR-STORE-CACHE"):
        fetch_dataset(url, StoreOptions(other, None, 5.0, QUICK))
    before = {path: path.stat().st_mtime_ns for path in made.path.rglob("*")}
    with open_remote(f"file://{made.path}", tmp_path / "unused", cache_bytes=_TINY) as stream:
        assert digests(stream, 20) == local[:20]
    assert {path: path.stat().st_mtime_ns for path in made.path.rglob("*")} == before
    assert not (tmp_path / "unused").exists()


def test_descriptors_and_threads_end_with_the_stream(url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def own_threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith(("tokenreel-fetch", "tokenreel-prefetch"))]

    with open_remote(url, tmp_path, cache_bytes=_SMALL) as stream:
        digests(stream, 10)
        first = descriptors()
        digests(stream, 60)
        assert descriptors() <= first + 24, "some shards more may be open"
    deadline = time.monotonic() + 10
    while own_threads():
        assert time.monotonic() < deadline, own_threads()
        time.sleep(0.01)


def test_a_cursor_of_other_data_is_refused(url: str, proxy: FaultProxy, s3_server: S3Server, tmp_path: Path) -> None:
    with open_remote(url, tmp_path) as stream:
        digests(stream, 3)
        state = stream.state_dict()
    other = make_dataset(tmp_path, DatasetSpec(documents=_SPEC.documents, seq_len=32, samples_per_shard=12, seed=3))
    with (
        open_remote(upload(s3_server, "remote-newer", other.path), tmp_path) as stream,
        pytest.raises(RefusedError),
    ):
        stream.load_state_dict(state)
