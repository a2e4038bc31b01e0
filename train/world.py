"""The process group of a training run, and what each process is for in it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from loader.errors import JobError, TokenreelError

from .attempt_store import attempt_store
from .failure import agree_on_failure, error_from_json
from .launch import place
from .meeting import meeting_store
from .parallel.config import ParallelConfig
from .parallel.mesh import Mesh, make_mesh

__all__ = ["World", "join_world"]

_TIMEOUT_S = 600
_PULSE_S = 30.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """The process group.

    Attributes:
        rank: of this process. size: number of processes.
        saving: a group of its own for checkpoints that are written beside the training, or None outside of one.
        counting: a group of its own for :meth:`begin_sum`, or None outside of one.
        mesh: where this process stands. restarts: how often the launcher restarted the job.
    """

    rank: int = 0
    size: int = 1
    saving: dist.ProcessGroup | None = None
    mesh: Mesh = field(default_factory=Mesh)
    restarts: int = 0
    counting: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's folder: one does, all others read it."""
        return self.rank == 0

    @property
    def saves(self) -> bool:
        """Whether this process takes part in saving checkpoints."""
        return True

    @property
    def counts(self) -> bool:
        """Whether this process speaks for its data rank: samples and labels are counted once."""
        place = self.mesh.place
        return place.tensor == 0 and place.context == 0 and place.pipeline == 0

    @property
    def scores(self) -> bool:
        """Whether the losses of this process's tokens count: ranks of a tensor group compute the same ones."""
        return self.mesh.place.tensor == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum over ranks in place; nothing in a world of one, where it would only wake gloo's threads."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def begin_sum(self, value: int) -> Callable[[], int]:
        """Begin to sum one exact number over ranks, in host memory, beside whatever the ranks do next.

        Returns:
            The sum; called, it waits for the other ranks to have begun. Nobody needs to call it.
        """
        if self.size == 1:
            return lambda: value
        tensor = torch.tensor(value, dtype=torch.int64)
        work = dist.all_reduce(tensor, group=self.counting, async_op=True)

        def total() -> int:
            if work is not None:
                work.wait()
            return int(tensor)

        return total

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()

    def lead(self, work: Callable[[], object]) -> None:
        """Let the leading process do something to the run's folder while the others wait.

        Raises:
            Exception: see :meth:`share`.
        """

        def done() -> None:
            work()

        self.share(done)

    def gather(self, own: dict[str, Any], group: dist.ProcessGroup | None = None) -> dict[str, Any]:
        """The JSON-able dictionaries of all processes as one, on every process; of equal keys the highest rank's."""
        if self.size == 1:
            return own
        out: dict[str, Any] = {}
        for data in self.gather_bytes(json.dumps(own).encode("utf-8"), group):
            out.update(json.loads(data))
        return out

    def gather_bytes(self, own: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
        """The bytes of all processes, by rank, on every process; each may have another number of them."""
        if self.size == 1:
            return [own]
        data = torch.frombuffer(bytearray(own), dtype=torch.uint8) if own else torch.empty(0, dtype=torch.uint8)
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor(len(data), dtype=torch.int64), group=group)
        most = max(int(size) for size in sizes)
        buffers = [torch.empty(most, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(buffers, torch.nn.functional.pad(data, (0, most - len(data))), group=group)
        return [buffer[: int(size)].numpy().tobytes() for buffer, size in zip(buffers, sizes, strict=True)]

    def share(self, make: Callable[[], _T], group: dist.ProcessGroup | None = None) -> _T:
        """A JSON-able value that the leading process makes, on every process.

        Args:
            make: called by the leading process only. group: of all processes; None: the training's own.

        Raises:
            Exception: what ``make`` raised, in the leading process; in the others the same if it is an error for
                users, else JobError.
        """
        if self.size == 1:
            return make()
        if not self.leads:
            answer: Any = json.loads(_broadcast(b"", group))
            if answer["failed"] is not None:
                raise error_from_json(answer["failed"])
            return cast(_T, answer["value"])
        try:
            value = make()
        except BaseException as error:
            told = error if isinstance(error, TokenreelError) else None
            cause = f"the leading process failed: {type(error).__name__}: {error}"
            failed = (told or JobError("TR-WORLD-LEADER", cause, "rank 0")).to_json()
            _broadcast(json.dumps({"failed": failed}).encode("utf-8"), group)
            raise
        _broadcast(json.dumps({"failed": None, "value": value}).encode("utf-8"), group)
        return value

    def share_slowly(self, make: Callable[[], _T]) -> _T:
        """:meth:`share` for what may take longer than processes wait for each other: the others hear that it goes on.

        Limit: ``make`` runs in a thread of its own, which goes on where the wait is broken off.

        Raises:
            Exception: see :meth:`share`.
        """
        if self.size == 1:
            return make()
        future: Future[_T] = Future()
        if self.leads:
            threading.Thread(target=_settle, args=(future, make), name="slow", daemon=True).start()
        while not self.share(lambda: bool(wait([future], _PULSE_S).done)):
            pass
        return self.share(future.result)


def _settle(future: Future[_T], make: Callable[[], _T]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:  # handed to the thread that waits
        future.set_exception(error)


def _broadcast(data: bytes, group: dist.ProcessGroup | None) -> bytes:
    """The leading process's bytes on every process."""
    size = torch.tensor(len(data), dtype=torch.int64)
    dist.broadcast(size, 0, group=group)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, 0, group=group)
    return buffer.numpy().tobytes()


def _own_group(timeout_s: float) -> dist.ProcessGroup | None:
    """A group of all processes, in host memory, whose collectives meet no others."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    return group if isinstance(group, dist.ProcessGroup) else None


@contextmanager
def join_world(
    device: str, parallel: ParallelConfig | None = None, saving_timeout_s: float = _TIMEOUT_S
) -> Iterator[World]:
    """Join the process group of the environment (a world of one when there is none) and leave it in order.

    Args:
        device: that the training computes on. parallel: the mesh to make.
        saving_timeout_s: longest that a save waits for another process.

    Raises:
        ConfigError: the number of processes is no product of the mesh's dimensions.
        JobError: ``TR-LAUNCH-MEETING``: no other process was met, see ``meeting.meeting_store``. ``TR-WORLD-PEER``:
            another process is gone, and none has told why.
        EchoError: another process told what went wrong.
    """
    here = place()
    hook = sys.excepthook  # torch puts its own in front at every call
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=_TIMEOUT_S)
    if here.size == 1:
        # A world of one needs no port: two runs on one machine cannot collide.
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
    else:
        store = meeting_store(here.rank, here.size, timeout)
        store = attempt_store(store, here.rank, here.size, timeout)
        dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.size, timeout=timeout)
    try:
        mesh = make_mesh(parallel or ParallelConfig(), here.rank, here.size, device)
        saving, counting = _own_group(saving_timeout_s), _own_group(_TIMEOUT_S)
        yield World(here.rank, here.size, saving, mesh, here.restarts, counting)
        dist.barrier()  # leaving while a peer still sends aborts it
    except Exception as error:
        if here.size == 1:
            raise
        final = agree_on_failure(error, cast(Any, c10d)._get_default_store(), here.rank)
        if final is error:
            raise
        raise final from error
    finally:
        sys.excepthook = hook
        dist.destroy_process_group()
