"""How a training process starts, and the only place in ``train`` that reads environment variables. No torch at import.

``tokenreel train`` replaces itself by ``python -m train.main`` with the variables that torchrun would set, so that one
process and many take the same path. PYTHONSAFEPATH=1 keeps a user's own ``train.py`` from shadowing the package.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from loader.errors import ConfigError
from loader.settings import child_environment

__all__ = [
    "CONNECT_VARIABLE",
    "Place",
    "child_command",
    "connect_timeout_s",
    "end_with_launcher",
    "exec_training",
    "meeting_place",
    "place",
    "prepare_many",
    "tell_final",
    "training_environment",
    "under_torchrun",
]

_RESTARTS, _AGAIN, _LAUNCHER = "TOKENREEL_RESTARTS", "TOKENREEL_AGAIN", "TOKENREEL_LAUNCHER"
_FINAL = "TOKENREEL_FINAL"
CONNECT_VARIABLE = "TOKENREEL_CONNECT_TIMEOUT_S"
"""Sets :func:`connect_timeout_s`: it belongs to the launch, as the address does."""
_CONNECT_S = 180
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Place:
    """Where a process stands: its rank, the number of processes, how often they were restarted, and whether a launcher
    watches it, to which any exit code but 0 is a failure.

    Attributes:
        local_rank: among the processes of this machine.
        again: our own launcher will start all processes once more if this one fails.
    """

    rank: int = 0
    size: int = 1
    restarts: int = 0
    watched: bool = False
    again: bool = False
    local_rank: int = 0


def under_torchrun() -> bool:
    """Whether torchrun (or our own launcher) set this process's place."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def place() -> Place:
    """The place that the environment gives this process; a world of one when it says nothing.

    Raises:
        ConfigError: it says something that is no place.
    """
    rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < size:
        expected = "0 <= RANK < WORLD_SIZE"
        raise ConfigError("TR-LAUNCH-ENVIRONMENT", f"rank {rank} of {size}", "RANK, WORLD_SIZE", expected)
    restarts = _number("TORCHELASTIC_RESTART_COUNT", 0) + _number(_RESTARTS, 0)
    watched, again = "TORCHELASTIC_RUN_ID" in os.environ, os.environ.get(_AGAIN) == "1"
    return Place(rank, size, restarts, watched, again, _number("LOCAL_RANK", 0))


def connect_timeout_s() -> int:
    """Longest that the processes of a world look for each other when they start, seconds.

    Raises:
        ConfigError: the environment says something that is no time.
    """
    found = _number(CONNECT_VARIABLE, _CONNECT_S)
    if not found:
        raise ConfigError("TR-LAUNCH-ENVIRONMENT", f"{CONNECT_VARIABLE} is 0", CONNECT_VARIABLE, "seconds, at least 1")
    return found


def meeting_place() -> str:
    """Where the environment says that processes meet, for a message."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"MASTER_ADDR={host} MASTER_PORT={port}"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise ConfigError("TR-LAUNCH-ENVIRONMENT", f"{name} is {text!r}", name, "a whole number >= 0")
    return int(text) if text else default


def prepare_many(threads: int, restarts: int, *, again: bool, final: Path) -> None:
    """Set what the processes inherit that this one starts (``train/many.py``); it trains nothing itself. ``final``: see
    :func:`tell_final`."""
    place_keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    found = {key: value for key, value in training_environment(threads).items() if key not in place_keys}
    # torch warns of its own connections where another process of the training ended: we say what happened.
    ours = {_RESTARTS: str(restarts), _AGAIN: str(int(again)), _LAUNCHER: str(os.getpid()), _FINAL: str(final)}
    os.environ.update({"TORCH_CPP_LOG_LEVEL": "ERROR", **found, **ours})


def tell_final() -> None:
    """Tell our own launcher, where one watches, that another start would end the same way: an exit code of 1 says no
    more than that it failed."""
    final = os.environ.get(_FINAL)
    if final is not None and os.environ.get(_LAUNCHER) == str(os.getppid()):
        with contextlib.suppress(OSError):  # then it starts once more
            Path(final).touch()


def end_with_launcher() -> None:
    """Where our own launcher started this process: get SIGTERM, which saves and ends, when the launcher is gone.
    Killed, it cannot pass anything on, and the processes would go on with nobody to watch them and the run locked.

    Linux alone; the kernel counts from the thread that started the process, which waits for its end.
    """
    launcher = os.environ.get(_LAUNCHER)
    if launcher is not None and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(launcher):  # it was gone before we asked
            os.kill(os.getpid(), signal.SIGTERM)


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


def exec_training(arguments: Sequence[str], threads: int, *, replica: bool = False) -> NoReturn:
    """Become the training process: signals, exit code and process id are then its own.

    Args:
        replica: it is one of several under torchft, which writes ten lines a step, and torch some for each peer that is
            lost; what matters of it the replica says itself.
    """
    quiet = {"RUST_LOG": "error", "TORCH_CPP_LOG_LEVEL": "ERROR"} if replica else {}
    environment = {**quiet, **training_environment(threads)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, child_command(arguments), environment)  # noqa: S606 - no shell wanted
