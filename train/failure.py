"""How several processes fail as one: the first tells the error, the others end with the same exit code in silence."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from loader.errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError

__all__ = ["EchoError", "FailureStore", "agree_on_failure", "comes_again", "error_from_json", "is_peer_failure"]

_KEY = "tokenreel-failure"
_WAIT_S = 3.0
_CLASSES: Mapping[int, type[TokenreelError]] = {1: JobError, 2: ConfigError, 3: DamageError, 4: RefusedError}
_NO_PLACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM})
_PEER = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed? ?out|peer", re.I)


class EchoError(Exception):
    """Another process told why the training failed; this one ends with the same exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}, told by another process")
        self.exit_code = exit_code


class FailureStore(Protocol):
    """What of torch's ``Store`` is used."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a missing key (``expected`` is ""); what is there now."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Until the keys are set."""

    def get(self, key: str, /) -> bytes:
        """The value."""


def error_from_json(value: Mapping[str, Any]) -> TokenreelError:
    """The error whose ``to_json`` is ``value``."""
    fields = [value[key] for key in ("code", "message", "place", "expected", "next_command")]
    return _CLASSES.get(value["exit_code"], JobError)(*fields)


def comes_again(error: TokenreelError) -> bool:
    """Whether another start at once would end the same way: the replayed steps lead to the same verdict, the disk is as
    full as it was; or it is configuration, damage, or refused. What a network mount answers once may pass."""
    if error.code == "TR-CHECKPOINT-WRITE":
        cause = error.__cause__
        return isinstance(cause, OSError) and cause.errno in _NO_PLACE
    return error.exit_code != JobError.exit_code or error.code == "TR-SPIKE-GIVEN-UP"


def is_peer_failure(error: BaseException) -> bool:
    """Whether a collective failed because another process is gone or does not answer; torch has no class for it."""
    return (
        isinstance(error, RuntimeError)
        and not isinstance(error, NotImplementedError)
        and bool(_PEER.search(str(error)))
    )


def agree_on_failure(error: BaseException, store: FailureStore, rank: int) -> BaseException:
    """What this process raises for ``error``: the error itself if nobody has told one, else an :class:`EchoError`.

    A process that merely lost its peers waits a moment for one that knows why. Different errors of several processes
    are all told.

    Args:
        error: what ended this process's part. store: of the process group, reachable by all. rank: of this process.
    """
    if is_peer_failure(error):
        cause = " ".join(str(error).split())[:200]
        lost: TokenreelError = JobError(
            "TR-WORLD-PEER", f"another process of the training ended or does not answer: {cause}", f"rank {rank}",
            "all processes running", "the same command: it resumes at the newest checkpoint",
        )  # fmt: skip
    elif isinstance(error, TokenreelError):
        lost = error
    else:
        return error
    secondary = lost.code in ("TR-WORLD-PEER", "TR-WORLD-LEADER")
    try:
        if secondary:
            with suppress(Exception):  # a time-out: nobody knows more
                store.wait([_KEY], timedelta(seconds=_WAIT_S))
        own = json.dumps({"rank": rank, **lost.to_json()})
        told = json.loads(store.compare_set(_KEY, "", own))
    except Exception:  # the store went with its process
        return lost
    if told["rank"] != rank and (secondary or told["code"] == lost.code):
        return EchoError(told["exit_code"])
    return lost
