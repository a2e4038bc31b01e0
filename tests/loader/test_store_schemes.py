"""Which client answers for which URL: fsspec, a web server, mosaicml-streaming, nobody; S3 has its own tests."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import static_http
from support.remote_datasets import QUICK, cached_files, digests, open_remote

from loader.errors import ConfigError, DamageError, JobError
from loader.stream.remote import RangedTokens
from loader.stream.store import StoreOptions, fetch_dataset, look_into_dataset

_SPEC = DatasetSpec(documents={"web": 40, "code": 20}, seq_len=32, samples_per_shard=12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("schemes"), _SPEC)


@pytest.fixture(scope="module")
def local(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    with open_remote(str(made.path), tmp_path_factory.mktemp("none")) as stream:
        return digests(stream, 12)


def test_schemes_of_fsspec(made: MadeDataset, local: list[int], tmp_path: Path) -> None:
    import fsspec  # type: ignore[import-untyped]

    system = fsspec.filesystem("memory")
    for path in made.path.rglob("*"):
        if path.is_file():
            system.pipe(f"/schemes/data/{path.relative_to(made.path).as_posix()}", path.read_bytes())
    with open_remote("memory://schemes/data", tmp_path) as stream:
        assert digests(stream, 12) == local
    looked = look_into_dataset("memory://schemes/data", StoreOptions(tmp_path / "none", None, 5.0, QUICK))
    assert np.array_equal(looked.read_samples("web", [3, 1]), made.open().read_samples("web", [3, 1]))


def test_a_plain_web_server_without_ranges(made: MadeDataset, local: list[int], tmp_path: Path) -> None:
    with static_http(made.path) as url:
        with open_remote(url, tmp_path) as stream:
            assert digests(stream, 12) == local
        dataset = look_into_dataset(url, StoreOptions(tmp_path / "none", None, 5.0, QUICK))
        assert np.array_equal(dataset.read_samples("web", [3, 1]), made.open().read_samples("web", [3, 1]))


def test_a_scheme_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no store for s5://[\s\S]*tokenreel\[mosaic\]"):
        fetch_dataset("s5://bucket/data", StoreOptions(tmp_path, None, 5.0, QUICK))


def test_threads_of_a_forgotten_dataset_end(made: MadeDataset, tmp_path: Path) -> None:
    def fetching() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("range-")}

    before = fetching()
    with static_http(made.path) as url:
        dataset = fetch_dataset(url, StoreOptions(tmp_path, None, 5.0, QUICK))
        dataset.read_samples("web", [0])
        own = fetching() - before
        assert own
        del dataset
        gc.collect()
        for thread in own:
            thread.join(10)
    assert not own & fetching()


class _Stalled:
    """A folder as a store whose second sample is never answered and whose first one fails."""

    url = "stalled://folder"
    has_ranges = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked, self.leave = threading.Event(), threading.Event()
        self.starts: list[int] = []

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def read(self, name: str, start: int, stop: int) -> bytes:
        self.starts.append(start)
        if start == min(self.starts):
            self.asked.wait(10)
            raise JobError("TR-REMOTE-FAILED", "no answer", name)
        self.asked.set()
        self.leave.wait(60)
        return b""

    def fetch(self, name: str, target: Path, advance: Any) -> str:
        raise NotImplementedError


def test_samples_of_a_shard_wait_for_no_stalled_request_after_an_error(made: MadeDataset) -> None:
    objects, dataset, failed = _Stalled(made.path), made.open(), list[BaseException]()
    tokens = RangedTokens(objects, dataset.shard_files(0), np.zeros(12, np.uint64))

    def copy() -> None:
        try:
            tokens.copy([0, 4], memoryview(bytearray(2 * 64)), [0, 1])
        except JobError as error:
            failed.append(error)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    thread.join(10)
    objects.leave.set()
    assert [type(error) for error in failed] == [JobError]


def test_a_forked_process_is_told(made: MadeDataset, tmp_path: Path) -> None:
    """Clients do not survive a fork; what is in the cache is read all the same."""
    with static_http(made.path) as url:
        dataset = fetch_dataset(url, StoreOptions(tmp_path, None, 5.0, QUICK))
        good = dataset.read_samples("web", [0])
        pid = os.fork()
        if not pid:
            code = 1
            try:
                assert np.array_equal(dataset.read_samples("web", [0]), good)
                dataset.read_samples("code", [0])
            except JobError as error:
                code = 7 if error.code == "TR-STORE-FORKED" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(dataset.read_samples("code", [0])) == 1


@pytest.mark.slow
def test_schemes_of_mosaic_streaming(
    made: MadeDataset, local: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through mosaicml-streaming's own registry and base class; the place that answers is a folder."""
    download = pytest.importorskip("streaming.base.storage.download")
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    failures = ["web/shard.00001.mds"]

    class Folder(download.CloudDownloader):  # type: ignore[misc,name-defined]
        @staticmethod
        def _client_identifier() -> str:
            return "sftp"

        def clean_up(self) -> None:
            """Nothing to clean."""

        def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
            name: Any = remote.removeprefix("sftp://host/data/")
            if name in failures:
                failures.remove(name)
                raise TimeoutError(f"{name} took longer than {timeout} s")
            shutil.copyfile(copy / name, local)

    monkeypatch.setitem(download.DOWNLOADER_MAPPINGS, "sftp", Folder)
    with open_remote("sftp://host/data", tmp_path / "cache") as stream:
        assert digests(stream, 12) == local
    assert not failures
    assert list(cached_files(tmp_path / "cache"))
    path = copy / "web" / "shard.00000.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    dataset = fetch_dataset("sftp://host/data", StoreOptions(tmp_path / "new", None, 5.0, QUICK))
    with pytest.raises(DamageError, match=r"sftp://host/data/web/shard\.00000\.mds"):
        dataset.read_samples("web", [0])
    path.unlink()
    with pytest.raises(DamageError, match=r"TR-FILE-MISSING[\s\S]*sftp://host/data/web/shard.00000.mds"):
        dataset.read_samples("web", [0])
