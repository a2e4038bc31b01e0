"""How a training process starts, and the only place in ``train`` that reads environment variables. No torch at import.

``tokenreel train`` replaces itself by ``python -m train.main`` with the variables that torchrun would set, so that one
process and many take the same path. PYTHONSAFEPATH=1 keeps a user's own ``train.py`` from shadowing the package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from loader.settings import child_environment

__all__ = ["Place", "child_command", "exec_training", "place", "training_environment", "under_torchrun"]


@dataclass(frozen=True)
class Place:
    """Where a process stands: its rank, the number of processes, and how often torchrun restarted them."""

    rank: int = 0
    size: int = 1
    restarts: int = 0


def under_torchrun() -> bool:
    """Whether torchrun (or our own launcher) set this process's place."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def place() -> Place:
    """The place that the environment gives this process; a world of one when it says nothing."""
    return Place(
        int(os.environ.get("RANK", "0")),
        int(os.environ.get("WORLD_SIZE", "1")),
        int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def training_environment(threads: int) -> dict[str, str]:
    """The environment of a lone training process: torchrun's variables for a world of one, and a fixed thread count."""
    single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    # Threads that spin while they wait cost four times the step when a core is shared with anything else.
    waiting = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    # cuBLAS is deterministic only with a fixed workspace; it must be set before the context exists.
    return child_environment(**single, **waiting, OMP_NUM_THREADS=str(threads), CUBLAS_WORKSPACE_CONFIG=":4096:8")


def child_command(arguments: Sequence[str]) -> list[str]:
    """The command that trains: ``python -m train.main ARGUMENTS``, the arguments being those of ``tokenreel``."""
    return [sys.executable, "-m", "train.main", *arguments]


def exec_training(arguments: Sequence[str], threads: int) -> NoReturn:
    """Become the training process: signals, exit code and process id are then its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, child_command(arguments), training_environment(threads))  # noqa: S606 - no shell wanted
