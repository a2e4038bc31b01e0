"""Streams and processes: forks, pickles, kill -9, the line that tells the first batch, the end of a plan."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.errors import ConfigError
from loader.stream.ahead import _Work
from loader.stream.buffers import BufferPool
from loader.stream.open import open_stream
from loader.stream.prefetch import Prefetcher
from loader.stream.stream import StreamConfig

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("processes"), DatasetSpec(documents={"web": 40}, seq_len=32))


def _in_child(work: Callable[[], bytes]) -> bytes:
    """What ``work`` returns in a forked child; a child that hangs is killed and fails the test."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, work())
        except BaseException as error:
            os.write(writing, f"{error!r}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + TIMEOUT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    with os.fdopen(reading, "rb") as file:
        return file.read()


def test_a_stream_not_read_before_a_fork_works_in_the_child(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as other, open_stream(made.path, 4) as stream:
        next(other)  # its threads are at work while this process forks
        digests = _in_child(lambda: repr([next(stream).token_digest for _ in range(5)]).encode())
        assert digests == repr([next(stream).token_digest for _ in range(5)]).encode()


def test_a_stream_read_before_a_fork_is_refused_in_the_child_and_lives_on_in_the_parent(made: MadeDataset) -> None:
    def child() -> bytes:
        with pytest.raises(ConfigError) as caught:
            next(stream)
        state = stream.state_dict()
        stream.close()
        with open_stream(made.path, 4, state=state) as own:
            return f"{caught.value.code} {next(own).token_digest}".encode()

    with open_stream(made.path, 4) as stream:
        next(stream)
        assert _in_child(child) == f"TR-STREAM-FORKED {next(stream).token_digest}".encode()
        assert next(stream).step == 2


def test_no_lock_crosses_a_fork(made: MadeDataset) -> None:
    """Each lock is held by another thread at the moment of the fork, which the child would wait for without end."""
    pool, prefetcher = BufferPool(), Prefetcher(lambda index, note: index, 0, 2, 1)
    with open_stream(made.path, 4) as stream:
        fetching = _Work(stream.plan, stream.sources, (0, 1), 1, 0)
    held, leave = threading.Barrier(2), threading.Event()

    def hold() -> None:
        with pool._lock, prefetcher._shared.changed, fetching.changed:
            held.wait()
            leave.wait(TIMEOUT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def child() -> bytes:
        array = pool.empty((1 << 20,), "u1")
        del array
        prefetcher._finalizer()
        fetching.close()
        return f"{pool.kept_bytes}".encode()

    try:
        assert _in_child(child) == str(1 << 20).encode()
    finally:
        leave.set()
        holder.join()
        prefetcher.close(TIMEOUT_S)


def test_a_stream_is_not_sent_to_other_processes_but_its_state_is(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream:
        next(stream)
        with pytest.raises(ConfigError, match="TR-STREAM-PICKLED"):
            pickle.dumps(stream)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            digest = pool.apply_async(_next_digest, (made.path, stream.state_dict())).get(TIMEOUT_S)
        assert digest == next(stream).token_digest


def _next_digest(path: Path, state: dict[str, object]) -> int:
    with open_stream(path, 4, state=state) as stream:
        return next(stream).token_digest


_ENDLESS = """
import sys
from loader.stream.open import open_stream
with open_stream(sys.argv[1], 4) as stream:
    for batch in stream:
        print(batch.step, flush=True)
"""


def test_kill_9_leaves_nothing_in_shared_memory_or_temporary_folders(made: MadeDataset, tmp_path: Path) -> None:
    dataset_before = sorted(made.path.rglob("*"))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    for _ in range(3):
        command = [sys.executable, "-c", _ENDLESS, str(made.path)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            while process.stdout.readline().strip() != "50":
                assert process.poll() is None
            assert "/dev/shm" not in Path(f"/proc/{process.pid}/maps").read_text()
            process.kill()
            process.wait(TIMEOUT_S)
    assert list(tmp_path.rglob("*")) == []
    assert sorted(made.path.rglob("*")) == dataset_before


def test_the_first_batch_is_told_at_each_start(made: MadeDataset, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tokenreel.stream")
    with open_stream(made.path, 4, config=StreamConfig(1, 2)) as stream:
        batches = [next(stream) for _ in range(3)]
        state = stream.state_dict()
        batches.append(next(stream))
        stream.load_state_dict(state)
        next(stream)
    lines = [record.getMessage() for record in caplog.records if record.name == "tokenreel.stream"]
    assert lines == [
        f"first batch: step {batch.step}, digest {batch.token_digest:016x}, data rank 1 of 2"
        for batch in (batches[0], batches[3])
    ]
