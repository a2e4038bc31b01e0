"""The ``run.torchft`` block of a training configuration. No torch."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..config_checks import require

__all__ = ["TorchftConfig"]


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


@dataclass(frozen=True)
class TorchftConfig:
    """The ``run.torchft:`` block: this process is one replica of several that share the steps of a run, extra
    ``[torchft]``. Each is started by itself with the same configuration and the same RUN folder.

    Attributes:
        lighthouse: where torchft's lighthouse listens, ``http://HOST:PORT``.
        host: name by which the other replicas reach this one; null: that of the machine.
        min_replicas: fewer do no step, they wait for more, ``quorum_timeout_s`` at most.
        timeout_s: longest wait for another replica in one sum, or for its state.
        quorum_timeout_s: longest wait for the replicas that the next step needs, and behind the last one for whoever
            saves it; longer than a save and an evaluation.
        max_retries: attempts at one step that fail in a row before a replica gives up.
    """

    lighthouse: str
    host: str | None = None
    min_replicas: int = 1
    timeout_s: float = 60.0
    quorum_timeout_s: float = 600.0
    max_retries: int = 20

    def __post_init__(self) -> None:
        require(
            [
                ("lighthouse", _is_address(self.lighthouse), "must be http://HOST:PORT"),
                ("host", self.host is None or bool(self.host.strip()), "must name a machine"),
                ("min_replicas", self.min_replicas >= 1, "must be >= 1"),
                ("timeout_s", 0 < self.timeout_s <= 86400, "must lie in 0 .. 86,400"),
                ("quorum_timeout_s", 0 < self.quorum_timeout_s <= 86400, "must lie in 0 .. 86,400"),
                ("max_retries", self.max_retries >= 1, "must be >= 1"),
            ]
        )

    @property
    def own_host(self) -> str:
        """The name that the others are told."""
        return self.host or socket.gethostname()
