"""Locks end with the process that took them, not with the last of its children: kill -9 of parents whose children live
on, by fork alone and by fork and exec."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash

from loader.errors import RefusedError
from loader.process_locks import lock_file
from loader.run_folder import RunPaths, lock_run
from loader.stream.cache_folder import CacheFolder, Wanted
from loader.stream.leases import Lease, read_needs

DATA = b"what a shard holds" * 50
WANTED = Wanted(f"{'0' * 32}/web/shard.00000.mds", len(DATA), xxhash.xxh3_128_hexdigest(DATA), "s3://bucket/shard")


def fetch(target: Path, advance: Callable[[int], None]) -> str:
    target.parent.mkdir(parents=True)
    target.write_bytes(DATA)
    advance(len(DATA))
    return xxhash.xxh3_128_hexdigest(DATA)


def _forked() -> int:
    """A child that does nothing until it is killed."""
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(1)
    return pid


def _called() -> int:
    """Another program, that a child turns into; it keeps whatever is not closed on exec."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], close_fds=False).pid


@contextmanager
def outlived(work: Callable[[], object], offspring: Callable[[], int]) -> Iterator[None]:
    """After kill -9 of a process that did ``work`` and then got a child, which lives on; the child is killed at the
    end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            keep = work()
            os.write(writer, f"{offspring()}\n".encode())
            signal.pause()
            del keep
        finally:
            os._exit(1)
    child = int(os.read(reader, 32))
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.kill(child, 0)  # it lives
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("offspring", [_forked, _called])
def test_a_fetch_goes_on_though_a_child_of_its_killed_process_lives(
    offspring: Callable[[], int], tmp_path: Path
) -> None:
    def work() -> object:
        cache, begun = CacheFolder(tmp_path, None, 5.0), threading.Event()

        def hanging(target: Path, advance: Callable[[int], None]) -> str:
            target.parent.mkdir(parents=True)
            target.write_bytes(b"half")
            advance(4)
            begun.set()
            threading.Event().wait()
            return ""

        threading.Thread(target=cache.ensure, args=(WANTED, hanging), daemon=True).start()
        begun.wait()
        return cache

    with outlived(work, offspring):
        cache = CacheFolder(tmp_path, None, 0.3)
        assert not list(tmp_path.glob(".tmp-*")), "what the dead process was fetching is cleared"
        assert cache.ensure(WANTED, fetch).read_bytes() == DATA
        assert read_needs(tmp_path / ".leases").alive == {cache.lease.name}


@pytest.mark.parametrize("offspring", [_forked, _called])
def test_a_run_is_free_though_a_child_of_its_killed_process_lives(offspring: Callable[[], int], tmp_path: Path) -> None:
    def work() -> object:
        context = lock_run(RunPaths(tmp_path))
        context.__enter__()
        return context

    with outlived(work, offspring), lock_run(RunPaths(tmp_path)):
        pass


def test_a_child_has_no_part_in_the_locks_of_its_parent(tmp_path: Path) -> None:
    """Neither its ending nor its leaving of the same blocks frees, removes or writes what the parent holds."""
    lease = Lease(tmp_path / "leases")
    lease.keep(["a/b"])
    name = lease.name
    held, _ = lock_file(tmp_path / "lock")
    assert held is not None
    paths = RunPaths(tmp_path / "run")
    with lock_run(paths):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                held.cut_to(5)
                held.close()
                lease.keep(["c/d"])  # a lease of the child's own
                assert lease.name != name
                assert read_needs(tmp_path / "leases").kept == {"a/b", "c/d"}
                with pytest.raises(RefusedError, match="TR-RUN-BUSY"), lock_run(paths):
                    pass
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with open(tmp_path / "lock", "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert (tmp_path / "lock").stat().st_size == 0
        assert read_needs(tmp_path / "leases").kept == {"a/b"}, "the child's ended with it"
        assert lease.name == name
    held.close()


def test_forks_while_other_threads_lock_leave_nothing_locked(tmp_path: Path) -> None:
    """No fork falls between the opening of a file and its being known: a child keeps none that its parent gave back."""
    stop, path = threading.Event(), tmp_path / "lock"

    def lock_again_and_again() -> None:
        while not stop.is_set():
            held, _ = lock_file(path)
            assert held is not None
            held.close()

    thread = threading.Thread(target=lock_again_and_again)
    thread.start()
    children = [_forked() for _ in range(20)]
    stop.set()
    thread.join()
    try:
        held, _ = lock_file(path)
        assert held is not None
        held.close()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
