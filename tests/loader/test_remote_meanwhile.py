"""What happens to a Dataset at a URL while somebody reads it: it is replaced, credentials run out and are renewed, the
cache lies on another disk or is taken away, two processes with caches of other sizes share a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import SECRET_KEY, FaultProxy, S3Server
from support.remote_datasets import QUICK, cached_files, digests, open_remote, proxy, upload

from loader.errors import DamageError, JobError, RefusedError
from loader.remote.store_failures import Transfer
from loader.settings import child_environment
from loader.stream.store import StoreOptions, fetch_dataset, look_into_dataset, verify_location

__all__ = ["proxy"]

_SPEC = DatasetSpec(documents={"web": 60, "code": 20}, seq_len=32, samples_per_shard=12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("meanwhile"), _SPEC)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("newer"), DatasetSpec(**{**vars(_SPEC), "seed": 8}))


@pytest.fixture(scope="module")
def local(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    with open_remote(str(made.path), tmp_path_factory.mktemp("none")) as stream:
        return digests(stream, 25)


@pytest.mark.usefixtures("proxy")
def test_a_dataset_that_is_replaced_is_said_to_be(
    made: MadeDataset, newer: MadeDataset, local: list[int], s3_server: S3Server, tmp_path: Path
) -> None:
    """Its shards have other bytes, which is no damage; put back, the stream goes on."""
    url = upload(s3_server, "meanwhile-replaced", made.path)
    looked = look_into_dataset(url, StoreOptions(tmp_path / "none", None, 5.0, QUICK))
    with open_remote(url, tmp_path / "cache") as stream:
        assert digests(stream, 2) == local[:2]
        upload(s3_server, "meanwhile-replaced", newer.path)
        with pytest.raises(RefusedError, match=rf"TR-DATASET-OTHER[\s\S]*{newer.digest}[\s\S]*{made.digest}"):
            digests(stream, 23)
        step = stream.next_step
        for ask in (lambda: looked.read_samples("web", [0]), lambda: looked.segments_of("web", [0])):
            with pytest.raises(RefusedError, match="TR-DATASET-OTHER"):
                ask()
        upload(s3_server, "meanwhile-replaced", made.path)
        assert digests(stream, 25 - step) == local[step:]
    assert len(looked.read_samples("web", [0])) == 1


@pytest.mark.usefixtures("proxy")
def test_a_replaced_shard_alone_is_damage(
    made: MadeDataset, newer: MadeDataset, s3_server: S3Server, tmp_path: Path
) -> None:
    url = upload(s3_server, "meanwhile-shard", made.path)
    dataset = fetch_dataset(url, StoreOptions(tmp_path, None, 5.0, QUICK))
    key = "web/shard.00000.segments"
    s3_server.put("meanwhile-shard", {f"data/{key}": (newer.path / key).read_bytes()})
    with pytest.raises(DamageError, match=key):
        dataset.read_samples("web", [0])


@pytest.mark.usefixtures("proxy")
def test_credentials_that_run_out_are_taken_anew_from_the_environment(
    made: MadeDataset, local: list[int], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server itself refuses the old ones; the environment gets new ones while the stream waits."""
    url = upload(s3_server, "meanwhile-expired", made.path)
    patient = Transfer(64 << 10, 4, 6, backoff_s=0.2, request_timeout_s=5, idle_timeout_s=2)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired/secret+9876543210")
    with pytest.raises(JobError, match="TR-REMOTE-DENIED") as caught:
        fetch_dataset(url, StoreOptions(tmp_path, None, 10.0, QUICK))
    assert "expired/secret" not in str(caught.value)
    timer = threading.Timer(0.3, lambda: os.environ.update(AWS_SECRET_ACCESS_KEY=SECRET_KEY))
    timer.start()
    with open_remote(url, tmp_path, transfer=patient, timeout_s=30.0) as stream:
        assert digests(stream, 5) == local[:5]
    timer.join()


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder on another file system than temporary files."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("no second file system to write to")
    folder = Path(tempfile.mkdtemp(dir=shared))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # what is on its way may still come


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("linked", [False, True])
def test_a_cache_on_another_disk(
    linked: bool, made: MadeDataset, local: list[int], s3_server: S3Server, other_disk: Path, tmp_path: Path
) -> None:
    url = upload(s3_server, "meanwhile-disk", made.path)
    cache = other_disk
    if linked:
        cache = tmp_path / "link"
        cache.symlink_to(other_disk)
    with open_remote(url, cache) as stream:
        assert digests(stream, 25) == local
    assert list(cached_files(other_disk))


@pytest.mark.usefixtures("proxy")
def test_a_cache_that_is_cleared_while_a_stream_runs_costs_time_alone(
    made: MadeDataset, local: list[int], s3_server: S3Server, tmp_path: Path
) -> None:
    """The whole folder with its locks and leases, before each of the first steps, while threads fetch ahead."""
    url, found = upload(s3_server, "meanwhile-cleared", made.path), list[int]()
    with open_remote(url, tmp_path / "cache", cache_bytes=30_000) as stream:
        for step in range(25):
            if step < 10:
                shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            found += digests(stream, 1)
        assert list(cached_files(tmp_path / "cache"))
    assert found == local


_READER = """
import sys
from pathlib import Path
from support.remote_datasets import digests, open_remote
with open_remote(sys.argv[1], Path(sys.argv[2]), cache_bytes=int(sys.argv[3]), timeout_s=60.0) as stream:
    print(*digests(stream, 25))
"""


@pytest.mark.usefixtures("proxy")
def test_processes_with_limits_of_their_own_share_a_cache(
    made: MadeDataset, local: list[int], s3_server: S3Server, tmp_path: Path
) -> None:
    """The smaller limit evicts what the other one fetched, again and again; both read on."""
    url = upload(s3_server, "meanwhile-limits", made.path)
    environment = child_environment(PYTHONPATH=str(Path(__file__).parents[1]))
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, url, str(tmp_path), str(limit)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for limit in (20_000, 1 << 30)
    ]  # fmt: skip
    for reader in readers:
        out, _ = reader.communicate(timeout=120)
        assert reader.returncode == 0
        assert [int(word) for word in out.split()] == local


def test_a_store_that_forgets_a_verify_half_way_is_named_in_time(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The store goes away while every byte is read: an error that names an object, not a finding."""
    url = upload(s3_server, "meanwhile-away", made.path)
    endpoint = proxy.endpoint

    def vanish(target: str) -> None:
        if "shard.00002" in target:
            raise ConnectionAbortedError

    proxy.on_request = vanish
    started = time.monotonic()
    with pytest.raises(JobError, match=r"TR-REMOTE-FAILED[\s\S]*shard\.00002") as caught:
        verify_location(url, lambda size_bytes: None, StoreOptions(tmp_path, None, 5.0, QUICK))
    assert time.monotonic() - started < 60
    assert endpoint not in str(caught.value.place)
