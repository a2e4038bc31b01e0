"""The shared cache folder by itself: who is evicted, who waits for whom, what dead processes leave behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cache_files import NAMES, SIZE, TOP, data_of, fetch_of, there, wanted

from loader.errors import ConfigError, DamageError, JobError
from loader.stream.cache_folder import CacheFolder
from loader.stream.leases import Lease, read_needs
from loader.stream.locks import NamedLocks
from loader.stream.prefetch import Note, Prefetcher
from loader.stream.waits import told


def test_the_oldest_go_first_those_of_the_next_steps_last_those_being_opened_never(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 4 * SIZE, 5.0)
    other = Lease(tmp_path / ".leases")  # as another process would have one
    asked: list[str] = []

    def ensure(number: int) -> None:
        cache.ensure(wanted(NAMES[number]), fetch_of(NAMES[number], asked))
        os.utime(tmp_path / TOP / "web" / NAMES[number], ns=(len(asked), len(asked)))

    for number in range(4):
        ensure(number)
    other.keep([wanted(NAMES[0]).name])
    cache.lease.keep([wanted(NAMES[1]).name])
    with other.pin([wanted(NAMES[2]).name]):
        ensure(4)
        assert there(tmp_path) == {NAMES[number] for number in (0, 1, 2, 4)}
        ensure(5)
        assert there(tmp_path) == {NAMES[number] for number in (0, 1, 2, 5)}
        cache.lease.keep([wanted(NAMES[5]).name])
        ensure(6)
        assert there(tmp_path) == {NAMES[number] for number in (1, 2, 5, 6)}, "of what is kept, the oldest"
    other.let_go([wanted(NAMES[0]).name])
    ensure(7)
    assert there(tmp_path) == {NAMES[number] for number in (1, 5, 6, 7)}, "a pin ends at the lease's next writing"
    assert asked == NAMES


@pytest.mark.parametrize(
    ("free_blocks", "limit"),
    [(600, 600 * 512 + 2 * SIZE - 51_200), (99, (99 * 512 + 2 * SIZE) // 2), (3, (3 * 512 + 2 * SIZE) // 2), (0, SIZE)],
)
def test_without_a_limit_a_twentieth_of_the_disk_is_left_and_a_fuller_one_still_serves(
    free_blocks: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large disk with the last 5 % left has room for many shards: no cache at all would be worse than half of it."""
    cache = CacheFolder(tmp_path, None, 5.0)
    for name in NAMES[:2]:
        cache.ensure(wanted(name), fetch_of(name, []))
    disk = os.statvfs_result((4096, 512, 2_000, free_blocks + 100, free_blocks, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert cache.limit_bytes() == limit


def test_a_file_is_fetched_once_by_many_threads(tmp_path: Path) -> None:
    caches = [CacheFolder(tmp_path, None, 5.0) for _ in range(2)]
    asked: list[str] = []

    def slow(target: Path, advance: Callable[[int], None]) -> str:
        time.sleep(0.1)
        return fetch_of(NAMES[0], asked)(target, advance)

    threads = [threading.Thread(target=caches[n % 2].ensure, args=(wanted(NAMES[0]), slow)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert asked == NAMES[:1]
    assert not list((tmp_path / ".locks").iterdir())
    assert not list(tmp_path.glob(".tmp-*"))


def test_other_bytes_are_refused_after_a_second_try(tmp_path: Path) -> None:
    cache, asked = CacheFolder(tmp_path, None, 5.0), list[str]()
    with pytest.raises(DamageError, match=r"twice[\s\S]*s3://bucket/shard.00000"):
        cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[1], asked))
    assert len(asked) == 2
    with pytest.raises(DamageError, match="twice"):
        cache.ensure(wanted(NAMES[0], SIZE + 1), fetch_of(NAMES[0], asked))
    assert there(tmp_path) == set()
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_full_disk_is_named_and_later_it_goes_on(tmp_path: Path) -> None:
    cache, asked = CacheFolder(tmp_path, None, 5.0), list[str]()

    def full(target: Path, advance: Callable[[int], None]) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    with pytest.raises(JobError, match=r"TR-STORE-DISK[\s\S]*No space left"):
        cache.ensure(wanted(NAMES[0]), full)
    assert cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], asked)).read_bytes() == data_of(NAMES[0])


def test_a_cache_folder_that_cannot_be_made_again_is_named(tmp_path: Path) -> None:
    root, asked = tmp_path / "cache", list[str]()
    cache = CacheFolder(root, None, 5.0)
    shutil.rmtree(root)
    root.touch()
    with pytest.raises(JobError, match=r"TR-STORE-DISK[\s\S]*cache[\s\S]*TOKENREEL_CACHE"):
        cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], asked))
    root.unlink()
    assert cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], asked)).read_bytes() == data_of(NAMES[0])
    assert asked == NAMES[:1]


def test_a_cache_folder_cleared_during_a_run_is_made_again(tmp_path: Path) -> None:
    """Whole, or in parts, between two fetches and in the middle of one."""
    root, asked = tmp_path / "cache", list[str]()
    cache = CacheFolder(root, 4 * SIZE, 5.0)
    cache.lease.keep([wanted(NAMES[0]).name])

    def cleared(target: Path, advance: Callable[[int], None]) -> str:
        digest = fetch_of(NAMES[3], asked)(target, advance)
        if asked.count(NAMES[3]) == 1:
            shutil.rmtree(root)
        return digest

    cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], asked))
    for number, gone in enumerate([root, root / ".leases", root / ".locks", root / TOP], start=1):
        shutil.rmtree(gone)
        fetch = cleared if number == 3 else fetch_of(NAMES[number], asked)
        assert cache.ensure(wanted(NAMES[number]), fetch).read_bytes() == data_of(NAMES[number])
    assert asked == [*NAMES[:4], NAMES[3], NAMES[4]]
    with cache.lease.pin([wanted(NAMES[5]).name]):
        needs = read_needs(root / ".leases")
    assert needs.alive == {cache.lease.name}
    assert (needs.pinned, needs.kept) == ({wanted(NAMES[5]).name}, {wanted(NAMES[0]).name})
    assert not list(root.glob(".tmp-*"))


def test_a_folder_of_ours_whose_mark_is_being_cleared_away_is_still_ours(tmp_path: Path) -> None:
    """``rm -r`` may remove the mark long before the last file; a folder that never was ours stays refused."""
    cache, asked = CacheFolder(tmp_path, None, 5.0), list[str]()
    cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], asked))
    (tmp_path / TOP / ".fetched").unlink()
    assert cache.ensure(wanted(NAMES[1]), fetch_of(NAMES[1], asked)).read_bytes() == data_of(NAMES[1])
    (tmp_path / TOP / ".fetched").unlink()
    with pytest.raises(ConfigError, match=r"TR-STORE-CACHE[\s\S]*TOKENREEL_CACHE"):
        CacheFolder(tmp_path, None, 5.0).claim(TOP)


def test_a_forked_child_fetches_under_names_of_its_own(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, None, 5.0)
    with stopped_child(lambda: (tmp_path / "said").write_text(str(cache._temporary(1)))):
        assert (tmp_path / "said").read_text() != str(cache._temporary(1))
        cache._temporary(1).mkdir()
        CacheFolder(tmp_path, None, 5.0)  # clears away what dead processes left
        assert len(list(tmp_path.glob(".tmp-*"))) == 1


def test_a_lease_that_cannot_be_removed_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / ".leases" / "other.lease").mkdir(parents=True)
    asked: list[str] = []
    CacheFolder(tmp_path, None, 5.0).ensure(wanted(NAMES[0]), fetch_of(NAMES[0], asked))
    assert asked == NAMES[:1]


@contextmanager
def stopped_child(work: Callable[[], object]) -> Iterator[int]:
    """A process that does ``work``, then waits; killed at the end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            keep = work()
            os.write(writer, b"x")
            signal.pause()
            del keep
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 1) == b"x"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    def work() -> Lease:
        lease = Lease(tmp_path)
        lease.keep(["a/b"])
        return lease

    with stopped_child(work):
        assert read_needs(tmp_path).kept == {"a/b"}
    needs = read_needs(tmp_path)
    assert (needs.kept, needs.alive) == (frozenset(), frozenset())
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_was_fetching_is_cleared_and_fetched(tmp_path: Path) -> None:
    def work() -> object:
        cache = CacheFolder(tmp_path, None, 5.0)

        def hang(target: Path, advance: Callable[[int], None]) -> str:
            target.parent.mkdir(parents=True)
            target.write_bytes(b"half")
            advance(4)
            raise KeyboardInterrupt  # never seen: the thread below hangs instead

        def hanging(target: Path, advance: Callable[[int], None]) -> str:
            try:
                return hang(target, advance)
            except KeyboardInterrupt:
                begun.set()
                threading.Event().wait()
                return ""

        begun = threading.Event()
        threading.Thread(target=cache.ensure, args=(wanted(NAMES[0]), hanging), daemon=True).start()
        begun.wait()
        return cache

    with stopped_child(work):
        cache = CacheFolder(tmp_path, None, 0.3)
        assert len(list(tmp_path.glob(".tmp-*"))) == 1, "a living process's work is left alone"
        with pytest.raises(JobError, match=r"0\.3 s for another thread or process: fetching s3://bucket/shard.00000"):
            cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], []))
    cache = CacheFolder(tmp_path, None, 0.3)
    assert not list(tmp_path.glob(".tmp-*"))
    assert cache.ensure(wanted(NAMES[0]), fetch_of(NAMES[0], [])).read_bytes() == data_of(NAMES[0])


def test_who_waits_for_a_lock_waits_while_its_holder_gets_on(tmp_path: Path) -> None:
    locks, heard = NamedLocks(tmp_path, 0.3), list[str]()
    free = threading.Event()

    def hold() -> None:
        with locks.hold("name") as progress:
            free.set()
            for come in range(1, 9):
                time.sleep(0.1)
                progress.cut_to(come)

    thread = threading.Thread(target=hold)
    thread.start()
    free.wait()
    with told(heard.append), locks.hold("name", "fetching it") as own:
        assert os.fstat(own.descriptor).st_size == 0
    thread.join()
    assert any("fetching it" in line and "3 bytes" in line for line in heard)
    assert not list(tmp_path.iterdir())


def test_who_waits_for_a_lock_waits_while_it_goes_from_one_to_the_next(tmp_path: Path) -> None:
    """Ten that need it for a fifth of a second each: no one of them is stuck, so none may give up after one second."""
    locks, served, failed = NamedLocks(tmp_path, 1.0), list[int](), list[BaseException]()

    def use(number: int) -> None:
        try:
            with locks.hold("name"):
                time.sleep(0.2)
                served.append(number)
        except JobError as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(served) == list(range(10))


def test_whoever_holds_a_lock_that_another_lock_is_waited_for_in_gets_on_with_that_one(tmp_path: Path) -> None:
    locks, free, seen = NamedLocks(tmp_path, 0.4), threading.Event(), list[int]()

    def hold() -> None:
        with locks.hold("inner") as progress:
            free.set()
            for come in range(1, 9):
                time.sleep(0.1)
                progress.cut_to(come)

    def outer() -> None:
        with locks.hold("outer") as own:
            held.set()
            with locks.hold("inner", getting_on=lambda: own.cut_to(0)):
                seen.append(1)

    held = threading.Event()
    threads = [threading.Thread(target=hold), threading.Thread(target=outer)]
    threads[0].start()
    free.wait()
    threads[1].start()
    held.wait()
    with locks.hold("outer"):
        seen.append(2)
    for thread in threads:
        thread.join()
    assert seen == [1, 2]


def test_a_lock_file_left_by_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    locks = NamedLocks(tmp_path, 5.0)

    def work() -> object:
        context = locks.hold("name")
        context.__enter__()
        return context

    with stopped_child(work):
        (path,) = tmp_path.iterdir()
        with open(path, "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert list(tmp_path.iterdir()) == [path]
    with locks.hold("name"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_producer_that_gets_on_is_waited_for() -> None:
    def produce(index: int, note: Note) -> int:
        for part in range(6):
            time.sleep(0.1)
            note(f"part {part}")
        if index:
            threading.Event().wait(1.5)
        return index

    prefetcher = Prefetcher(produce, 0, 1, 1)
    assert prefetcher.get(0.35) == 0
    with pytest.raises(JobError, match="part 5"):
        prefetcher.get(0.35)
    prefetcher.close(10)


def test_an_old_failure_is_computed_again_before_it_is_raised() -> None:
    broken = threading.Event()
    broken.set()
    counts = [0, 0, 0]

    def produce(index: int, note: Note) -> int:
        counts[index] += 1
        if broken.is_set():
            raise DamageError("TR-X", f"item {index}", "here")
        return index

    prefetcher = Prefetcher(produce, 0, 3, 1)
    while counts != [1, 1, 1]:
        time.sleep(0.001)
    with pytest.raises(DamageError, match="item 0"):
        prefetcher.get(5)
    broken.clear()
    assert [prefetcher.get(5) for _ in range(3)] == [0, 1, 2]
    assert counts == [2, 2, 2]
    prefetcher.close(5)


def test_a_lock_whose_folder_was_cleared_takes_no_other_holders_away(tmp_path: Path) -> None:
    """The first holder leaves with its own file, which is gone; the second one's stays, and the third one waits."""
    locks = NamedLocks(tmp_path / "locks", 0.3)
    with locks.hold("evict"):
        shutil.rmtree(tmp_path / "locks")
        second = locks.hold("evict")
        second.__enter__()
    with pytest.raises(JobError, match="TR-STORE-TIMEOUT"), locks.hold("evict"):
        pass
    second.__exit__(None, None, None)
    with locks.hold("evict"):
        pass
