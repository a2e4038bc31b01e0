"""Several ranks forked from the test's process, which has torch loaded already: a world costs what its work costs.

The parent holds the store, as torchrun's agent does, so it outlives any rank. What the parent left in reference cycles
stays uncollected in the ranks: the end of a process group waits for its threads, which no fork takes along.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from loader.errors import TokenreelError
from train.failure import EchoError

__all__ = ["Ended", "run_ranks"]


@dataclass(frozen=True)
class Ended:
    """How a rank ended.

    Attributes:
        code: its exit code, negative for a signal. value: what its work returned.
        told: the code of the error that it told, "echo" where it ended in silence, or "".
        text: the whole error.
    """

    code: int
    value: Any = None
    told: str = ""
    text: str = ""


def run_ranks(
    work: Callable[[int], object],
    size: int,
    folder: Path,
    watch: Callable[[list[int]], object] = lambda pids: None,
    limit_s: float = 400,
) -> list[Ended]:
    """Run ``work(rank)`` in ``size`` forked processes that find each other as under torchrun.

    Args:
        work: what a rank does; its value must be JSON-able. folder: scratch, new. watch: called with the ranks' process
            ids again and again until all have ended; may send signals.

    Raises:
        AssertionError: they did not end in time.
    """
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = [_fork(work, rank, size, port, folder) for rank in range(size)]
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    store = None
    try:
        store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=60), wait_for_workers=False)
        while len(codes) < size:
            assert time.monotonic() < deadline, f"of {size} ranks only {sorted(codes)} ended"
            for rank, pid in enumerate(pids):
                if rank not in codes and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[rank] = os.waitstatus_to_exitcode(found[1])
            watch(pids)
            time.sleep(0.005)
    finally:
        for rank, pid in enumerate(pids):
            if rank not in codes:
                os.kill(pid, signal.SIGUSR2)  # it tells where it stands
                time.sleep(0.2)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    del store
    return [Ended(codes[rank], **_result(folder / f"{rank}.json")) for rank in range(size)]


def _result(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _fork(work: Callable[[int], object], rank: int, size: int, port: int, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    gc.freeze()
    faulthandler.register(signal.SIGUSR2, sys.__stderr__)
    code, result = 99, {}
    try:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_USE_AGENT_STORE="True", TORCH_CPP_LOG_LEVEL="ERROR")
        torch.set_num_threads(1)
        result = {"value": work(rank)}
        code = 0
    except EchoError as echo:
        code, result = echo.exit_code, {"told": "echo"}
    except TokenreelError as error:
        code, result = error.exit_code, {"told": error.code, "text": str(error)}
    except BaseException:
        result = {"text": traceback.format_exc()}
        os.write(2, f"rank {rank}: {result['text']}\n".encode())
    finally:
        (folder / f"{rank}.json").write_text(json.dumps(result))
        os._exit(code)
