"""Where a Dataset lies: a location to an opened Dataset. Every wait has a time-out that names its reason.

``STORES`` maps a location's scheme to the store that answers for it. Local folders are opened where they are; even that
can block (a network mount that is gone), so the first touch runs in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigError, JobError
from ..shards.dataset import Dataset, open_dataset

__all__ = ["STORES", "fetch_dataset", "within"]

_Result = TypeVar("_Result")


def within(timeout_s: float, what: str, work: Callable[[], _Result]) -> _Result:
    """The result of ``work``, or an error when it takes longer than ``timeout_s``; its own errors pass through.

    A call that never returns cannot be ended from outside: its thread is left behind, but keeps no process alive.

    Raises:
        JobError: time ran out; ``what`` is named.
    """
    outcome: list[_Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="tokenreel-store", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise JobError("TR-STORE-TIMEOUT", f"waited {timeout_s:g} s", what, "storage that answers")
    return outcome[0]


def _open_local(location: str, timeout_s: float) -> Dataset:
    path = Path(location.removeprefix("file://"))
    return within(timeout_s, f"opening the Dataset at {path}", lambda: open_dataset(path))


STORES: Mapping[str, Callable[[str, float], Dataset]] = {"": _open_local, "file": _open_local}
"""Scheme -> function (location, timeout_s) that opens a Dataset there."""


def fetch_dataset(location: str, timeout_s: float = 60.0) -> Dataset:
    """Open the Dataset at ``location``: a folder or ``file://`` folder.

    Raises:
        ConfigError: no store for the location's scheme, or no Dataset there.
        DamageError: its manifest is damaged.
        JobError: storage did not answer in time.
    """
    scheme = location.partition("://")[0] if "://" in location else ""
    if scheme not in STORES:
        known = ", ".join(f"{name}://" if name else "a folder" for name in STORES)
        raise ConfigError("TR-STORE-SCHEME", f"no store for {scheme}://", location, known)
    return STORES[scheme](location, timeout_s)
