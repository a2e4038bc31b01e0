"""Stores that hand out whole files only: how a fetch gets on is heard while it runs; a full disk is not their fault."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from support.datasets import MadeDataset, make_dataset

from loader.errors import ConfigError, JobError
from loader.files import digest_bytes
from loader.remote.store_failures import Transfer
from loader.stream.cache_folder import CacheFolder, Wanted
from loader.stream.remote import open_cached
from loader.stream.store import within
from loader.stream.waits import told
from loader.stream.whole_objects import WholeObjects

_QUICK = Transfer(attempts=3, backoff_s=0.01)
_URL = "hf://datasets/some/where"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("made"))


def objects_in(folder: Path) -> WholeObjects:
    """A store whose objects are the files of a folder."""

    def download(url: str, path: str, timeout_s: float) -> None:
        shutil.copyfile(folder / url.removeprefix(f"{_URL}/"), path)

    return WholeObjects(_URL, download, _QUICK)


class Slow:
    """A downloader as mosaicml-streaming has them: it writes beside the path, piece by piece, and renames. It goes on
    only when what it wrote was heard of."""

    def __init__(self, heard: threading.Event, data: bytes, pieces: int) -> None:
        self.heard, self.data, self.pieces = heard, data, pieces
        self.waited: list[bool] = []

    def __call__(self, url: str, path: str, timeout_s: float) -> None:
        size = len(self.data) // self.pieces
        os.makedirs(f"{path}.tmp")
        with open(f"{path}.tmp/part", "wb", buffering=0) as file:
            for piece in range(self.pieces):
                self.heard.clear()
                file.write(self.data[piece * size : (piece + 1) * size])
                self.waited.append(self.heard.wait(20))
        os.rename(f"{path}.tmp/part", path)


@pytest.mark.parametrize("way", ["fetch", "read"])
def test_bytes_that_come_are_told_while_they_come(way: str, tmp_path: Path) -> None:
    """What a time-out waits for: a file that takes minutes gets on all the while."""
    heard, lines, came = threading.Event(), list[str](), list[int]()
    slow = Slow(heard, b"x" * 3000, 3)
    objects = WholeObjects(_URL, slow, _QUICK)

    def advance(size_bytes: int) -> None:
        came.append(size_bytes)
        heard.set()

    def listen(line: str) -> None:
        lines.append(line)
        if way == "read":
            heard.set()

    with told(listen):
        if way == "fetch":
            objects.fetch("web/a", tmp_path / "new" / "a", advance)
            assert came == [1000, 1000, 1000]
        else:
            assert objects.read("web/a", 0, 5) == b"xxxxx"
            assert any("1,000 bytes" in line and f"{_URL}/web/a" in line for line in lines)
    assert slow.waited == [True] * 3


def test_whoever_waits_for_such_a_fetch_waits_as_long_as_it_gets_on(tmp_path: Path) -> None:
    """A second of a fetch under a time-out of less: its own thread, and one that waits for the same file."""
    data, pause = b"y" * 4000, threading.Event()

    def download(url: str, path: str, timeout_s: float) -> None:
        with open(path, "wb", buffering=0) as file:
            for start in range(0, 4000, 500):
                file.write(data[start : start + 500])
                pause.wait(0.4)

    objects = WholeObjects(_URL, download, _QUICK)
    file = Wanted(f"{'0' * 32}/web/a.mds", 4000, objects.fetch("a", tmp_path / "once" / "a", lambda size: None), _URL)
    found: list[Path] = []

    def ensure() -> Path:
        cache = CacheFolder(tmp_path / "cache", None, 1.5)
        return within(1.5, "opening", lambda: cache.ensure(file, lambda path, come: objects.fetch("a", path, come)))

    threads = [threading.Thread(target=lambda: found.append(ensure())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in found] == [data, data]


def test_a_full_disk_is_no_failure_of_the_store(tmp_path: Path) -> None:
    asked: list[str] = []

    def download(url: str, path: str, timeout_s: float) -> None:
        asked.append(url)
        raise OSError(errno.ENOSPC, "No space left on device")

    objects = WholeObjects(_URL, download, _QUICK)
    with pytest.raises(OSError, match="No space left") as caught:
        objects.fetch("a", tmp_path / "a", lambda size: None)
    assert caught.value.filename == str(tmp_path / "a")
    with pytest.raises(JobError, match=r"TR-STORE-DISK[\s\S]*No space left[\s\S]*TMPDIR"):
        objects.size("a")
    assert len(asked) == 2, "nor is it asked for again"


def test_a_cache_cleared_during_a_download_is_no_missing_object(made: MadeDataset, tmp_path: Path) -> None:
    asked: list[str] = []

    def download(url: str, path: str, timeout_s: float) -> None:
        asked.append(url)
        if len(asked) == 1:
            shutil.rmtree(tmp_path / "cache")
        shutil.copyfile(made.path / "manifest.json", path)

    objects = WholeObjects(_URL, download, _QUICK)
    data = (made.path / "manifest.json").read_bytes()
    file = Wanted(f"{'0' * 32}/web/a.mds", len(data), digest_bytes(data), _URL)
    cache = CacheFolder(tmp_path / "cache", None, 5.0)
    assert cache.ensure(file, lambda path, come: objects.fetch("a", path, come)).read_bytes() == data
    assert len(asked) == 2


def test_other_failures_are_tried_again_and_named(tmp_path: Path) -> None:
    asked: list[str] = []

    def download(url: str, path: str, timeout_s: float) -> None:
        asked.append(url)
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(JobError, match=r"TR-REMOTE-FAILED[\s\S]*after 3 attempts: ConnectionResetError"):
        WholeObjects(_URL, download, _QUICK).fetch("a", tmp_path / "a", lambda size: None)
    assert len(asked) == 3


def test_a_limit_that_holds_no_shard_asks_for_a_larger_one(made: MadeDataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TR-STORE-CACHE-SMALL[\s\S]*cache_bytes[\s\S]*at least \d,\d+"):
        open_cached(objects_in(made.path), CacheFolder(tmp_path, 100, 5.0))


def test_a_disk_that_holds_no_shard_asks_for_room_or_another_folder(
    made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CacheFolder(tmp_path, None, 5.0)
    disk = os.statvfs_result((1, 1, 1 << 30, 300, 200, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    with pytest.raises(ConfigError, match="TR-STORE-CACHE-SMALL") as caught:
        open_cached(objects_in(made.path), cache)
    text = str(caught.value)
    assert "100 bytes" in text
    assert "on the disk" in text
    assert "TOKENREEL_CACHE" in text
    assert "at least" not in text
    assert "cache_bytes" not in text, "no limit was given that could be raised"
