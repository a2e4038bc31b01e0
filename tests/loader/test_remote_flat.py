"""Memory and descriptors stay where they are while shards of a Dataset in a real S3 server come and go through a cache
that holds a part of them."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.object_store import S3Server
from support.remote_datasets import cached_bytes, cached_files, open_remote, upload

from loader.stream.stream import StreamConfig


def _anonymous_mb() -> float:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def _open_files() -> int:
    """Descriptors of this process that stay: files, mappings, sockets. The fewest of some moments, as threads that
    fetch ahead have files and locks open for a moment; what is lost for good is open in every one."""
    seen = []
    for _ in range(20):
        seen.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.01)
    return min(seen)


@pytest.mark.parametrize(
    "num_batches", [pytest.param(200, id="200"), pytest.param(100_000, id="100,000", marks=pytest.mark.slow)]
)
def test_flat_over_batches_through_a_small_cache(
    num_batches: int, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clients speak to the server without a proxy, whose threads and sockets live in this process."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    size = 1 if num_batches < 1000 else 12
    spec = DatasetSpec(documents={"web": 60 * size, "code": 40 * size}, seq_len=16, samples_per_shard=20 * size)
    made = make_dataset(tmp_path, spec)
    url = upload(s3_server, f"flat-{num_batches}", made.path)
    total = sum(path.stat().st_size for path in cached_files(made.path))
    limit = total // 4
    config = StreamConfig(threads=1, prefetch_steps=4, timeout_s=60.0)
    memory, descriptors, cached = [], [], []
    with open_remote(url, tmp_path / "cache", config=config, cache_bytes=limit, timeout_s=60.0) as stream:
        for _ in range(10):
            for _ in range(num_batches // 10):
                next(stream)
            memory.append(_anonymous_mb())
            descriptors.append(_open_files())
            cached.append(cached_bytes(tmp_path / "cache"))
        assert stream.next_step == num_batches
        shards = len(stream.sources.datasets[0].shards_R)
    assert max(cached) <= 2 * limit, (cached, limit)
    assert 3 * max(cached) < 4 * total, "the cache holds a part: shards come again and again"
    assert shards > 20
    assert max(memory[4:]) <= memory[4] * 1.05 + 4, memory
    assert max(descriptors[5:]) <= max(descriptors[:5]) + 8, descriptors  # as many shards are open as windows need
