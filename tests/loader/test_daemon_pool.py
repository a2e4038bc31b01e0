"""Threads that nobody waits for: results, errors and limits are those of ThreadPoolExecutor; leaving is at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from loader.remote.daemon_pool import DaemonPool


def test_results_and_errors_are_those_of_the_standard_pool() -> None:
    with DaemonPool(3, "a") as ours, ThreadPoolExecutor(3) as theirs:
        assert list(ours.map(divmod, range(200), [7] * 200)) == list(theirs.map(divmod, range(200), [7] * 200))
        for pool in (ours, theirs):
            with pytest.raises(ZeroDivisionError):
                pool.submit(divmod, 1, 0).result()
    for pool in (ours, theirs):
        with pytest.raises(RuntimeError):
            pool.submit(int)


def test_never_more_threads_than_allowed_and_no_more_than_needed() -> None:
    running, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(30)
        with lock:
            running -= 1

    with DaemonPool(2, "pool-of-two") as pool:
        list(pool.map(work, range(20)))
        assert sum(thread.name.startswith("pool-of-two") for thread in threading.enumerate()) == 2
    assert most == 2
    assert not any(thread.name.startswith("pool-of-two") for thread in threading.enumerate())


def test_a_pool_left_by_an_error_waits_for_nothing_and_begins_nothing() -> None:
    release, began = threading.Event(), threading.Event()
    pool = DaemonPool(1, "b")
    first = pool.submit(lambda: (began.set(), release.wait(60)))
    second = pool.submit(int)
    assert began.wait(30)
    pool.__exit__(KeyError, KeyError(), None)
    assert not first.done()
    with pytest.raises(CancelledError):
        second.result(30)
    release.set()
    assert first.result(30)


def test_a_process_ends_while_a_thread_of_a_pool_is_stalled() -> None:
    code = (
        "import threading; from loader.remote.daemon_pool import DaemonPool\n"
        "with DaemonPool(1, 'c') as pool:\n    pool.submit(threading.Event().wait)\n    raise SystemExit(130)"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 130
