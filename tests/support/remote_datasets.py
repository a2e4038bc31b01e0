"""Datasets in a real object store, for tests of fetching: upload, quick options, what a stream of one gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.cloud_servers import CloudServer
from support.object_store import FaultProxy, S3Server, fault_proxy

from loader.remote.store_failures import Transfer
from loader.run_config import BatchStageConfig, DataConfig, ExhaustionConfig, build_plan
from loader.sources import open_sources
from loader.stream.store import StoreOptions, fetch_dataset
from loader.stream.stream import Stream, StreamConfig

__all__ = ["QUICK", "cached_bytes", "cached_files", "digests", "open_remote", "proxy", "through", "upload"]

QUICK = Transfer(range_bytes=64 << 10, ranges=4, attempts=5, backoff_s=0.01, request_timeout_s=2, idle_timeout_s=0.5)


def upload(server: CloudServer, bucket: str, folder: Path, prefix: str = "data") -> str:
    """Put every file below ``folder`` under its own name; the Dataset's URL."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    server.put(bucket, {f"{prefix}/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files})
    return f"{server.scheme}://{bucket}/{prefix}"


def through(proxy: FaultProxy, server: CloudServer, patch: Any) -> None:
    """Point this process's clients at the proxy; ``patch`` is pytest's monkeypatch."""
    for name, value in server.environment(proxy.endpoint).items():
        patch.setenv(name, value)


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before ``object_store.s3_server`` that all clients of this process go through."""
    with fault_proxy(s3_server) as running:
        through(running, s3_server, monkeypatch)
        yield running


def open_remote(
    url: str, cache: Path, *, config: StreamConfig | None = None, total: int | None = None, **options: Any
) -> Stream:
    """A stream over the Dataset at ``url`` in batches of 6, cached in ``cache``, ending at position ``total``;
    ``options`` of StoreOptions."""
    options = {"timeout_s": 10.0, "transfer": QUICK, **options}
    sources = open_sources([fetch_dataset(url, StoreOptions(cache, **options))])
    end = None if total is None else ExhaustionConfig(policy="repeat", total=total)
    data = DataConfig((url,), (BatchStageConfig(0, 6),), window_shards=2, exhaustion=end)
    from loader.order.skips import SkipList

    return Stream(build_plan(data, sources, SkipList(())), sources, config or StreamConfig(timeout_s=10.0))


def cached_bytes(cache: Path) -> int:
    """Bytes of the cached files; some may be evicted while they are counted."""
    total = 0
    for path in cached_files(cache):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def digests(stream: Stream, steps: int) -> list[int]:
    """Token digests of the next steps."""
    return [next(stream).token_digest for _ in range(steps)]


def cached_files(cache: Path) -> Iterator[Path]:
    """Shard files in a cache folder; those on their way, which may go at any moment, are none."""
    for name, folders, files in os.walk(cache):
        folders[:] = [folder for folder in folders if not folder.startswith(".tmp-")]
        yield from (Path(name) / file for file in files if file.endswith((".mds", ".segments", ".docs")))
