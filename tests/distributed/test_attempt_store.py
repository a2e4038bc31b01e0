"""Processes of one attempt agree on a name in a store that earlier attempts have written to and that outlives them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import Store, TCPStore

from loader.errors import JobError
from train.attempt_store import attempt_store

SIZE, SHORT = 4, timedelta(seconds=20)


@pytest.fixture
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, SHORT, wait_for_workers=False)


def join(server: TCPStore, rank: int, timeout: timedelta = SHORT) -> Store:
    client = TCPStore("127.0.0.1", server.port, None, False, timeout, wait_for_workers=False)
    return attempt_store(client, rank, SIZE, timeout)


def attempt(server: TCPStore, ranks: list[int]) -> list[Store]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: join(server, rank), ranks))


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_a_later_attempt_finds_nothing_of_an_earlier_one(server: TCPStore, ranks: list[int]) -> None:
    for number in range(3):
        stores = attempt(server, ranks)
        assert not stores[0].check(["address"])
        stores[number].set("address", str(number))
        assert [store.get("address") for store in stores] == [str(number).encode()] * SIZE


def test_words_of_the_dead_disturb_nobody(server: TCPStore) -> None:
    """An attempt that lost processes while it formed leaves words and, if rank 0 lived, answers."""
    for rank in (1, 2):
        server.set(f"tokenreel/word/{rank}", "of the dead")
    with pytest.raises(JobError, match=r"TR-WORLD-PEER.*3 processes of 4 did not come, rank 1"):
        join(server, 0, timedelta(seconds=2))
    assert server.check(["tokenreel/answer/of the dead"])
    stores = attempt(server, [0, 1, 2, 3])
    stores[2].set("address", "here")
    assert [store.get("address") for store in stores] == [b"here"] * SIZE
