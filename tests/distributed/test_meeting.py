"""The first contact of the processes: bounded where nobody answers, patient where somebody is slow."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from support.worlds import run_ranks

from loader.errors import ConfigError, JobError
from train.launch import CONNECT_VARIABLE
from train.world import join_world


@pytest.fixture
def free() -> socket.socket:
    """A port that is taken; nobody listens until the test does."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


@pytest.mark.parametrize(("rank", "answers"), [(1, "nobody"), (1, "silence"), (0, "no other rank")])
def test_an_address_where_nobody_answers_is_an_error_by_name(
    monkeypatch: pytest.MonkeyPatch, free: socket.socket, rank: int, answers: str
) -> None:
    """Far below the ten minutes that collectives may take; the address and what to do are in the message."""
    port = free.getsockname()[1]
    if answers == "silence":
        free.listen()
    else:
        free.close()
    where = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, CONNECT_VARIABLE: 1}
    for name, value in where.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(JobError) as caught, join_world("cpu"):
        pass
    free.close()
    error = caught.value
    assert error.code == "TR-LAUNCH-MEETING"
    assert f"rank {rank} of 2 met nobody within 1 s" in error.message
    assert error.place == f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
    assert CONNECT_VARIABLE in str(error.next_command)


def test_no_time_at_all_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", CONNECT_VARIABLE: "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"TR-LAUNCH-ENVIRONMENT.*{CONNECT_VARIABLE}"), join_world("cpu"):
        pass


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_process_still_joins(tmp_path: Path, free: socket.socket, slow: int) -> None:
    """Rank 0 holds the store itself, as on machines without torchrun; either comes later than the other."""
    port = free.getsockname()[1]
    free.close()

    def work(rank: int) -> int:
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
        os.environ.update({"MASTER_PORT": str(port), CONNECT_VARIABLE: "60"})
        if rank == slow:
            time.sleep(1.5)
        with join_world("cpu") as world:
            return world.begin_sum(rank + 1)()

    ended = run_ranks(work, 2, tmp_path / "world")
    assert [(one.code, one.value) for one in ended] == [(0, 3), (0, 3)], ended
