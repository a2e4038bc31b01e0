"""Datasets in a real S3 server give the very batches that the folder gives, whatever cache, threads and processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import FaultProxy, S3Server, fault_proxy, s3_server
from support.remote_datasets import QUICK, cached_files, digests, open_remote, through, upload

from loader.stream.open import open_stream
from loader.stream.stream import StreamConfig

__all__ = ["s3_server"]

_SPEC = DatasetSpec(documents={"web": 120, "code": 50}, seq_len=32, samples_per_shard=12)
_STEPS = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("remote"), _SPEC)


@pytest.fixture(scope="module")
def url(made: MadeDataset, s3_server: S3Server) -> str:
    return upload(s3_server, "remote-dataset", made.path)


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with fault_proxy(s3_server) as running:
        through(running, s3_server, monkeypatch)
        yield running


@pytest.fixture(scope="module")
def local(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    with open_remote(str(made.path), tmp_path_factory.mktemp("none")) as stream:
        return digests(stream, _STEPS)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("prefetch", [1, 8])
@pytest.mark.parametrize("cache_bytes", [None, 12_000, 40_000])
def test_the_batches_are_those_of_the_folder(
    url: str, proxy: FaultProxy, local: list[int], tmp_path: Path, threads: int, prefetch: int, cache_bytes: int | None
) -> None:
    config = StreamConfig(threads=threads, prefetch_steps=prefetch, timeout_s=10)
    with open_remote(url, tmp_path, config=config, cache_bytes=cache_bytes) as stream:
        assert digests(stream, _STEPS) == local
