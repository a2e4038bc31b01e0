"""Where the processes of a training find each other: the store that the environment names, reached within a bound.

torch's store tries again until its time is up, ten minutes as the collectives need them, and says nothing meanwhile; a
port where something else listens holds it for ever. A wrong address is the commonest mistake of a first start on
several machines, so the first contact has a shorter time of its own.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.rendezvous import rendezvous

from loader.errors import ConfigError, JobError

from .launch import CONNECT_VARIABLE, connect_timeout_s, meeting_place

__all__ = ["meeting_store"]

_MARGIN_S = 5.0  # torch looks at its clock between tries only


def meeting_store(rank: int, size: int, timeout: timedelta) -> Store:
    """The store of ``MASTER_ADDR`` and ``MASTER_PORT``; where no launcher holds it, rank 0 does.

    Args:
        timeout: longest wait for another process once the store is reached.

    Raises:
        ConfigError: ``TR-LAUNCH-ENVIRONMENT``: the environment names no place to meet.
        JobError: ``TR-LAUNCH-MEETING``: the store, or on rank 0 a process, did not answer within
            ``launch.connect_timeout_s``; slower ones join.
    """
    limit_s = connect_timeout_s()
    future: Future[Store] = Future()
    arguments = (future, rank, size, timedelta(seconds=limit_s))
    # A thread of its own: against a port that accepts and never answers torch has no time-out.
    threading.Thread(target=_meet, args=arguments, name="meeting", daemon=True).start()
    try:
        store = future.result(limit_s + _MARGIN_S)
    except ValueError as error:
        raise ConfigError(
            "TR-LAUNCH-ENVIRONMENT", str(error).rpartition(": ")[2], "the environment",
            "MASTER_ADDR and MASTER_PORT beside RANK and WORLD_SIZE",
            "torchrun --nproc-per-node N -m train.main train CONFIG",
        ) from error  # fmt: skip
    except (DistNetworkError, DistStoreError, FutureTimeoutError) as error:
        cause = (str(error).splitlines() or ["no answer"])[0][:200]
        raise JobError(
            "TR-LAUNCH-MEETING", f"rank {rank} of {size} met nobody within {limit_s:g} s: {cause}",
            meeting_place(), "rank 0, or torchrun, listening there, and all ranks started",
            f"correct MASTER_ADDR and MASTER_PORT; for processes that start slowly: {CONNECT_VARIABLE}=600",
        ) from error  # fmt: skip
    store.set_timeout(timeout)
    return store


def _meet(future: Future[Store], rank: int, size: int, timeout: timedelta) -> None:
    try:
        found: Any = next(rendezvous("env://", rank, size, timeout=timeout))
        future.set_result(found[0])
    except BaseException as error:  # handed to the thread that waits
        future.set_exception(error)
