"""Prefetch: in order, at most so far ahead, errors where they belong, waits that end, threads that end."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from loader.errors import JobError
from loader.stream.prefetch import Note, Prefetcher


def _alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tokenreel-prefetch")]


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order(threads: int, depth: int) -> None:
    def produce(index: int, note: Note) -> int:
        time.sleep(0.001 * (index * 7 % 3))
        return index

    prefetcher = Prefetcher(produce, 5, depth, threads)
    assert [prefetcher.get(10.0) for _ in range(40)] == list(range(5, 45))
    prefetcher.close(10.0)
    assert not _alive()


def test_no_more_than_depth_ahead() -> None:
    started: list[int] = []
    prefetcher = Prefetcher(lambda index, note: started.append(index), 0, 3, 2)
    for index in range(10):
        prefetcher.get(10.0)
        assert max(started) <= index + 3
    prefetcher.close(10.0)


def test_an_error_is_raised_at_its_item_and_the_item_is_tried_again() -> None:
    broken = {4}

    def produce(index: int, note: Note) -> int:
        if index in broken:
            raise ValueError(f"item {index}")
        return index

    prefetcher = Prefetcher(produce, 0, 4, 2)
    assert [prefetcher.get(10.0) for _ in range(4)] == [0, 1, 2, 3]
    for _ in range(3):
        with pytest.raises(ValueError, match="item 4"):
            prefetcher.get(10.0)
    broken.clear()
    assert [prefetcher.get(10.0) for _ in range(4)] == [4, 5, 6, 7]
    prefetcher.close(10.0)


def test_an_item_that_waits_for_a_thread_is_tried_once() -> None:
    go_on, seen = threading.Event(), list[int]()

    def produce(index: int, note: Note) -> int:
        seen.append(index)
        if index == 0 and seen.count(0) == 1:
            raise ValueError("item 0")
        if index:
            go_on.wait(30)
        return index

    prefetcher = Prefetcher(produce, 0, 3, 2)
    while len(seen) < 3:  # both threads are held by items 1 and 2
        time.sleep(0.001)
    with pytest.raises(ValueError, match="item 0"):
        prefetcher.get(10.0)
    for _ in range(2):  # nobody is free to try it again
        with pytest.raises(JobError, match="no thread has begun it"):
            prefetcher.get(0.05)
    go_on.set()
    assert [prefetcher.get(10.0) for _ in range(6)] == list(range(6))
    assert seen.count(0) == 2
    prefetcher.close(10.0)


def test_a_wait_ends_and_names_what_it_waited_for() -> None:
    go_on = threading.Event()

    def produce(index: int, note: Note) -> int:
        note("reading from the moon")
        go_on.wait(30)
        return index

    prefetcher = Prefetcher(produce, 7, 1, 1)
    with pytest.raises(JobError, match=r"reading from the moon[\s\S]*step 7"):
        prefetcher.get(0.1)
    with pytest.raises(JobError, match=r"did not end[\s\S]*reading from the moon"):
        prefetcher.close(0.1)
    go_on.set()
    prefetcher.close(10.0)
    with pytest.raises(JobError, match="closed"):
        prefetcher.get(1.0)
    assert not _alive()


def test_a_forgotten_prefetcher_ends_its_threads() -> None:
    prefetcher = Prefetcher(lambda index, note: index, 0, 2, 2)
    assert prefetcher.get(10.0) == 0
    del prefetcher
    gc.collect()
    deadline = time.monotonic() + 10
    while _alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive()
