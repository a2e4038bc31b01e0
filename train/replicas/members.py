"""Which replicas take part in a step, and their sums: the one place that knows torchft.

torchft's quorum says at the border of each step who is there; a sum that fails is noted and told by :meth:`commit`,
behind which either the step counts on this replica or nothing of it does. A replica whose step failed while that of
another counted gets its state from that one at the next border.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp, TCPStore

from loader.errors import ConfigError, JobError

from .config import TorchftConfig
from .transport import StateTransport

__all__ = ["PAUSE_S", "Members", "Replaced"]

PAUSE_S = 0.2
"""Between two questions to those who may come or go."""
_BUCKET_BYTES = 32 << 20


class Replaced(Exception):  # noqa: N818 - no error: the state of this replica became that of a peer
    """The state in memory was replaced: whoever stepped goes on from it."""


def _torchft() -> Any:
    try:
        return import_module("torchft")
    except ImportError as error:
        raise ConfigError(
            "TR-REPLICA-PACKAGE", f"torchft cannot be imported: {error}", "run.torchft", "torchft 0.2",
            "pip install 'tokenreel[torchft]'",
        ) from error  # fmt: skip


def _no_host(config: TorchftConfig, cause: str) -> ConfigError:
    return ConfigError(
        "TR-REPLICA-HOST", f"no other replica can reach {config.own_host!r}: {cause}", "run.torchft.host",
        "a name or an address of this machine that resolves here", f"getent hosts {config.own_host}",
    )  # fmt: skip


def _check_host(config: TorchftConfig) -> None:
    """Ask the resolver first: the store would look for a name that is none until its time is up."""
    try:
        socket.getaddrinfo(config.own_host, None)
    except (OSError, UnicodeError) as error:
        raise _no_host(config, f"the name does not resolve ({error})") from error


def _open_store(config: TorchftConfig, wait: timedelta) -> TCPStore:
    """Where torchft's groups meet; it calls itself by its own name, so one of another machine shows here."""
    try:
        return TCPStore(config.own_host, 0, None, True, wait, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        raise _no_host(config, " ".join(str(error).split())[:200]) from error


class Members:
    """The replicas of a run as one of them sees them.

    Args:
        config: the ``run.torchft`` block.
        offer: JSON-able facts and the tensors of the state before the next step; called in a thread while the replica
            waits at the border of a step.
        take: called with what a peer offered; it puts it in place.
        say: where remarks go.

    Attributes:
        leads: this replica writes the run's folder; set by whoever holds its lock.
        leaderless: nobody said so in the newest step.

    Raises:
        ConfigError: torchft is not installed; ``TR-REPLICA-HOST``: the others cannot be told where this replica is.
        JobError: the lighthouse does not answer.
    """

    def __init__(
        self,
        config: TorchftConfig,
        offer: Callable[[], tuple[dict[str, Any], Mapping[str, Tensor]]],
        take: Callable[[dict[str, Any], Mapping[str, Tensor]], None],
        say: Callable[[str], None],
    ) -> None:
        _check_host(config)
        torchft = _torchft()
        logging.getLogger("torchft").setLevel(logging.CRITICAL)  # what ends a step is told here, in one line
        self.leads, self.leaderless = False, False
        self._take, self._fresh, self._replaced = take, False, False
        wait = timedelta(seconds=config.timeout_s)
        group = torchft.ProcessGroupGloo(timeout=wait)
        self._config, self._say, self._closed = config, say, False
        self._store = _open_store(config, wait)

        def offered() -> dict[str, Any]:
            facts, tensors = offer()
            return {"facts": facts, "tensors": dict(tensors)}

        try:
            self._manager = torchft.Manager(
                pg=group,
                load_state_dict=self._load,
                state_dict=offered,
                min_replica_size=config.min_replicas,
                use_async_quorum=False,
                timeout=wait,
                quorum_timeout=timedelta(seconds=config.quorum_timeout_s),
                connect_timeout=wait,
                rank=0,
                world_size=1,
                store_addr=config.own_host,
                store_port=self._store.port,
                lighthouse_addr=config.lighthouse,
                # By age, so that who leads tends to be who has been here longest.
                replica_id=f"{time.time_ns():020d}-{secrets.token_hex(4)}-0",
                hostname=config.own_host,
                checkpoint_transport=StateTransport(group),
                init_sync=False,  # without a state nobody steps, see ``stand_at``
                max_retries=config.max_retries,
            )
        except (RuntimeError, TimeoutError, OSError) as error:
            raise self._unanswered(error) from error

    def _unanswered(self, error: BaseException) -> JobError:
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        return JobError(
            "TR-REPLICA-QUORUM", f"no quorum of replicas: {cause}", self._config.lighthouse,
            f"a lighthouse there, and {self._config.min_replicas} replicas",
            f"torchft_lighthouse --min_replicas {self._config.min_replicas}",
        )  # fmt: skip

    def _load(self, state: dict[str, Any]) -> None:
        self._take(state["facts"], state["tensors"])
        self._replaced = True

    @property
    def rank(self) -> int:
        """Of this replica among those of the step."""
        rank = self._manager.participating_rank()
        return 0 if rank is None else int(rank)

    @property
    def size(self) -> int:
        """Replicas of the step."""
        return max(1, int(self._manager.num_participants()))

    def stand_at(self, step: int) -> None:
        """Say which step comes next here. A replica that never said so counts as having no state, and gets one."""
        self._manager.load_state_dict({"step": step + 1, "batches_committed": 0})

    def ask(self, wait_s: float | None = None) -> None:
        """Take part in a quorum, of however many; nothing if that was done and no step followed.

        Args:
            wait_s: for its end; None: ``quorum_timeout_s``.

        Raises:
            Replaced: this replica was behind and got the state of another.
            JobError: no quorum came together in time.
        """
        if not self._fresh:
            wait = timedelta(seconds=self._config.quorum_timeout_s if wait_s is None else wait_s)
            try:
                self._manager.start_quorum(timeout=wait)
            except (RuntimeError, TimeoutError) as error:
                raise self._unanswered(error) from error
            self._fresh = True
        if self._replaced:
            self._replaced = False
            raise Replaced

    def meet(self) -> None:
        """Wait at the border of a step for those who take part in it, ``min_replicas`` at least: torchft's servers know
        no such number, and a step of fewer would fail at its end, again and again.

        Raises:
            Replaced: this replica was behind and got the state of another.
            JobError: ``TR-REPLICA-QUORUM``: too few for ``quorum_timeout_s``.
        """
        least, wait_s = self._config.min_replicas, self._config.quorum_timeout_s
        end_s = time.monotonic() + wait_s
        told = False
        while True:
            self.ask(wait_s)
            if self.size >= least:
                return
            self.leave()
            wait_s = end_s - time.monotonic()
            if wait_s <= 0:
                raise self._unanswered(TimeoutError(f"{self.size} of {least} for {self._config.quorum_timeout_s:g} s"))
            if not told:
                self._say(f"{self.size} of {least} replicas (run.torchft.min_replicas): waiting for more")
                told = True
            time.sleep(PAUSE_S)

    def leave(self) -> None:
        """Give the quorum back without a step."""
        self._fresh = False

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum each over the replicas in place, equal bits on all. After a failure they hold anything; see
        :meth:`commit`."""
        bucket: list[Tensor] = []
        for tensor in tensors:
            bucket.append(tensor)
            if sum(one.nbytes for one in bucket) >= _BUCKET_BYTES:
                self._sum_bucket(bucket)
                bucket = []
        if bucket:
            self._sum_bucket(bucket)

    @torch.no_grad()
    def _sum_bucket(self, tensors: Sequence[Tensor]) -> None:
        """As one collective: tensors of one dtype."""
        flat = torch.cat([one.reshape(-1) for one in tensors])
        self._manager.allreduce(flat, reduce_op=ReduceOp.SUM).wait()
        for one, part in zip(tensors, torch.split_with_sizes(flat, [one.numel() for one in tensors]), strict=True):
            one.copy_(part.view_as(one))

    @property
    def failed(self) -> bool:
        """Whether something of this step went wrong already; the rest of its work is then in vain."""
        return self._manager.errored() is not None

    def commit(self) -> bool:
        """Whether the step counts on this replica: every sum of it is whole, and enough replicas took part.

        Raises:
            JobError: too many steps failed in a row.
        """
        self._fresh = False
        try:
            return bool(self._manager.should_commit())
        except (RuntimeError, TimeoutError) as error:
            raise JobError(
                "TR-REPLICA-STUCK", f"the step cannot be done: {' '.join(str(error).split())[:200]}",
                self._config.lighthouse, "replicas that reach each other", "the same command: it resumes",
            ) from error  # fmt: skip

    def close(self) -> None:
        """Leave; the others notice at their next sum. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._manager.shutdown(wait=False)
