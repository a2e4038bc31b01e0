"""Two real processes of a gloo group read their parts: together the global batch, with one state, and resumed."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.datasets import DatasetSpec, make_dataset

from loader.stream.open import open_stream
from loader.stream.stream import StreamConfig

TIMEOUT_S = 100
_GROUP_TIMEOUT = datetime.timedelta(seconds=60)


def _read(dataset: Path, config: StreamConfig, steps: int, state: Any) -> tuple[list[Any], Any]:
    """(step, all-reduced digest, positions of both ranks) of each step, and the state after them."""
    rows = []
    with open_stream(dataset, 7, config=config, state=state) as stream:
        for _ in range(steps):
            batch = next(stream)
            digest = torch.tensor([batch.token_digest % 2**64 - 2**63], dtype=torch.int64)
            dist.all_reduce(digest)  # sums of 64 bits wrap, as digests do; the offsets of two ranks cancel out
            parts: list[Any] = [None, None]
            dist.all_gather_object(parts, batch.positions_B.tolist())
            rows.append([batch.step, int(digest) % 2**64, parts[0] + parts[1]])
        return rows, stream.state_dict()


def _rank(rank: int, dataset: Path, folder: Path) -> None:
    """Read four steps, and five more from the state of the other rank."""
    method = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2, timeout=_GROUP_TIMEOUT)
    rows, state = _read(dataset, StreamConfig(rank, 2, 1 + rank, 3 - rank), 4, None)
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state)
    more, last = _read(dataset, StreamConfig(rank, 2, 2 - rank, 1 + rank), 5, states[1 - rank])
    (folder / f"rank{rank}.json").write_text(json.dumps([[*rows, *more], states, last]))
    dist.destroy_process_group()


def _fork(rank: int, dataset: Path, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        _rank(rank, dataset, folder)
        code = 0
    except BaseException as error:
        os.write(2, f"rank {rank}: {error!r}\n".encode())
    finally:
        os._exit(code)


def test_two_ranks_are_one_stream(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 30, "b": 20}, seq_len=32))
    children = [_fork(rank, made.path, tmp_path) for rank in range(2)]
    deadline, running = time.monotonic() + TIMEOUT_S, set(children)
    while running and time.monotonic() < deadline:
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                running.discard(child)
                assert os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not running, "a rank hangs"
    one, other = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert one == other
    with open_stream(made.path, 7) as alone:
        batches = [next(alone) for _ in range(9)]
        assert one[0] == [[batch.step, batch.token_digest, batch.positions_B.tolist()] for batch in batches]
        assert one[1][0] == one[1][1]
        assert one[2] == alone.state_dict()
