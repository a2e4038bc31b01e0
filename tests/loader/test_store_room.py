"""How full the shared cache folder may become, how rarely it is looked through for that, and a disk that is full."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cache_files import NAMES, SIZE, TOP, data_of, fetch_of, there, wanted

from loader.errors import JobError
from loader.stream.cache_folder import CacheFolder, Fetch
from loader.stream.leases import Lease, read_needs
from loader.stream.locks import NamedLocks

_MANY = [f"shard.{number:05d}.mds" for number in range(1000)]


def fill(cache: CacheFolder, names: list[str]) -> None:
    """Fetch files, each later used than the one before."""
    for name in names:
        cache.ensure(wanted(name), fetch_of(name, []))
        os.utime(cache.root / TOP / "web" / name, ns=(int(name[6:11]) + 1,) * 2)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each folder of a Dataset that is looked through."""
    seen: list[str] = []
    walk = os.walk

    def counted(top: Path, *rest: object) -> Iterator[tuple[str, list[str], list[str]]]:
        seen.append(str(top))
        return walk(top)

    monkeypatch.setattr(os, "walk", counted)
    return seen


@pytest.mark.parametrize("given", [True, False])
def test_a_full_cache_is_rarely_looked_through(
    given: bool, tmp_path: Path, walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not given:  # a disk that holds just that many files, but for its twentieth

        def disk(path: object) -> os.statvfs_result:
            free = 200 * SIZE - SIZE * len(there(tmp_path))
            return os.statvfs_result((1, 1, 200 * SIZE, free, free, 0, 0, 0, 0, 255))

        monkeypatch.setattr(os, "statvfs", disk)
    cache = CacheFolder(tmp_path, 190 * SIZE if given else None, 5.0)
    fill(cache, _MANY[:190])
    assert there(tmp_path) == set(_MANY[:190])
    walks.clear()
    fill(cache, _MANY[190:250])
    assert 1 <= len(walks) <= 8, "a sixteenth of it is freed at once"
    assert 178 <= len(there(tmp_path)) <= 190
    assert there(tmp_path) == set(_MANY[250 - len(there(tmp_path)) : 250]), "the oldest went, and no others"


def test_what_is_needed_soon_goes_only_where_it_must(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 64 * SIZE, 5.0)
    fill(cache, _MANY[:64])
    cache.lease.keep(wanted(name).name for name in _MANY[:62])
    fill(cache, _MANY[64:65])
    assert there(tmp_path) == {*_MANY[:62], _MANY[64]}, "one had to go, a second one was in nobody's way"
    cache.lease.keep([wanted(_MANY[64]).name])
    fill(cache, _MANY[65:67])
    assert there(tmp_path) == {*_MANY[:62], _MANY[64], _MANY[66]}, "what nobody needs goes before what is older"
    cache.lease.keep([wanted(_MANY[66]).name])
    fill(cache, _MANY[67:68])
    assert there(tmp_path) == {*_MANY[1:62], _MANY[64], *_MANY[66:68]}, "of what is needed, one"


def test_a_cache_as_large_as_what_is_needed_gets_on(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 2 * SIZE, 5.0)
    cache.lease.keep(wanted(name).name for name in NAMES)
    fill(cache, [*NAMES, *NAMES])
    assert there(tmp_path) == set(NAMES[-2:])


def test_many_processes_keep_to_one_limit(tmp_path: Path) -> None:
    """Each has a cache folder object of its own, here as there; all of them see what all of them brought."""
    caches, most = [CacheFolder(tmp_path, 30 * SIZE, 5.0) for _ in range(24)], 0
    for number, name in enumerate(_MANY[:240]):
        caches[number % 24].ensure(wanted(name), fetch_of(name, []))
        most = max(most, len(there(tmp_path)))
    assert most == 30


def test_what_is_on_its_way_counts(tmp_path: Path) -> None:
    cache, other = CacheFolder(tmp_path, 4 * SIZE, 5.0), CacheFolder(tmp_path, 4 * SIZE, 5.0)
    seen: list[int] = []

    def slow(target: Path, advance: Callable[[int], None]) -> str:
        for name in NAMES[1:]:
            fill(other, [name])
            seen.append(len(there(tmp_path)))
        return fetch_of(NAMES[0], [])(target, advance)

    cache.ensure(wanted(NAMES[0]), slow)
    assert seen == [1, 2, 3, 3, 3, 3, 3]
    assert len(there(tmp_path)) == 4


def test_fetches_that_fail_evict_nothing(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 8 * SIZE, 5.0)
    fill(cache, NAMES[:7])

    def broken(target: Path, advance: Callable[[int], None]) -> str:
        raise JobError("TR-REMOTE-FAILED", "no", "here")

    for name in _MANY[100:120]:
        with pytest.raises(JobError, match="TR-REMOTE-FAILED"):
            cache.ensure(wanted(name), broken)
    assert there(tmp_path) == set(NAMES[:7])


@pytest.mark.parametrize("data", [b"", b"junk", b"-1", b"\xff" * 20])
def test_an_account_that_cannot_be_read_is_made_anew(data: bytes, tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 4 * SIZE, 5.0)
    fill(cache, NAMES[:4])
    (tmp_path / ".used").write_bytes(data)
    fill(cache, NAMES[4:5])
    assert there(tmp_path) == set(NAMES[1:5])
    (tmp_path / ".used").unlink()
    fill(cache, NAMES[5:6])
    assert there(tmp_path) == set(NAMES[2:6])


def test_the_account_of_processes_that_are_gone_is_not_trusted(tmp_path: Path) -> None:
    """After a power loss files may be there that it does not know of, or a user may have put some there."""
    fill(CacheFolder(tmp_path, 4 * SIZE, 5.0), NAMES[:4])
    (tmp_path / ".used").write_bytes(b"00000000000000000000")
    fill(CacheFolder(tmp_path, 4 * SIZE, 5.0), NAMES[4:5])
    assert there(tmp_path) == set(NAMES[1:5])


def test_of_several_that_start_at_once_the_first_one_sees_that_nobody_was_there(tmp_path: Path) -> None:
    fill(CacheFolder(tmp_path, 4 * SIZE, 5.0), NAMES[:4])
    (tmp_path / ".used").write_bytes(b"00000000000000000000")
    with ThreadPoolExecutor(4) as pool, NamedLocks(tmp_path / ".locks", 5.0).hold("evict"):
        opened = [pool.submit(CacheFolder, tmp_path, 4 * SIZE, 60.0) for _ in range(4)]
        time.sleep(0.3)  # for all of them to come as far as they can
        assert not read_needs(tmp_path / ".leases").alive
        assert (tmp_path / ".used").exists()
    for one in opened:
        one.result()
    assert not (tmp_path / ".used").exists()


def on_a_small_disk(root: Path, files: int) -> Callable[[str], Fetch]:
    """A store whose files fit as long as fewer than ``files`` are there: the disk is full, whatever the limit says."""

    def fetch_on(name: str) -> Fetch:
        def fetch(target: Path, advance: Callable[[int], None]) -> str:
            if len(there(root)) >= files:
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
            return fetch_of(name, [])(target, advance)

        return fetch

    return fetch_on


def test_a_full_disk_takes_what_nobody_needs_from_the_cache(tmp_path: Path) -> None:
    cache, fetch_on = CacheFolder(tmp_path, 100 * SIZE, 5.0), on_a_small_disk(tmp_path, 4)
    other = Lease(tmp_path / ".leases")
    fill(cache, NAMES[:4])
    cache.lease.keep([wanted(NAMES[0]).name])
    with other.pin([wanted(NAMES[1]).name]):
        path = cache.ensure(wanted(NAMES[4]), fetch_on(NAMES[4]))
        assert path.read_bytes() == data_of(NAMES[4])
        assert {NAMES[0], NAMES[1], NAMES[4]} <= there(tmp_path)
        assert NAMES[2] not in there(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_full_disk_is_said_where_everything_is_needed(tmp_path: Path) -> None:
    cache, fetch_on = CacheFolder(tmp_path, None, 5.0), on_a_small_disk(tmp_path, 4)
    fill(cache, NAMES[:4])
    cache.lease.keep(wanted(name).name for name in NAMES[:4])
    with pytest.raises(
        JobError, match=r"TR-STORE-DISK[\s\S]*No space left.*nothing.*nobody needs[\s\S]*TOKENREEL_CACHE"
    ):
        cache.ensure(wanted(NAMES[4]), fetch_on(NAMES[4]))
    assert there(tmp_path) == set(NAMES[:4])


def test_a_disk_that_stays_full_is_said_after_what_nobody_needs_has_gone(tmp_path: Path) -> None:
    cache, fetch_on = CacheFolder(tmp_path, None, 5.0), on_a_small_disk(tmp_path, 0)
    fill(cache, NAMES[:1])
    with pytest.raises(JobError, match=r"TR-STORE-DISK[\s\S]*No space left.*1 file.* that nobody needs were removed"):
        cache.ensure(wanted(NAMES[4]), fetch_on(NAMES[4]))
    assert cache.ensure(wanted(NAMES[4]), fetch_of(NAMES[4], [])).read_bytes() == data_of(NAMES[4])
