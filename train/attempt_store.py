"""A place in the launcher's store that no earlier attempt of the same job has written to.

torchrun keeps one store over all its restarts, and torch puts the addresses of the processes into it under the same
names each time: those who start again would connect to the dead (pytorch issue 135712). The launcher's count of
restarts cannot tell attempts apart, because every machine's agent counts its own. So the processes of an attempt find
each other first: the leading one makes up a name and passes it to whoever answers.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from loader.errors import JobError

__all__ = ["attempt_store"]

_PAUSE_S = 0.01


def attempt_store(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """``store`` under a name that all ``size`` processes of this attempt, and none of another, agree on.

    A process leaves its own new word; the leading one answers each new word with the name; what the dead left gets an
    answer too, which nobody reads. The leading one goes on once all have confirmed its name.

    Raises:
        JobError: ``TR-WORLD-PEER``: a process did not come in time.
    """
    if rank:
        word = secrets.token_hex(16)
        store.set(f"tokenreel/word/{rank}", word)
        name = store.get(f"tokenreel/answer/{word}").decode()
        store.set(f"tokenreel/confirmed/{name}/{rank}", "")
        return PrefixStore(name, store)
    name = secrets.token_hex(16)
    confirmed = [f"tokenreel/confirmed/{name}/{other}" for other in range(1, size)]
    answered: set[str] = set()
    deadline = time.monotonic() + timeout.total_seconds()
    while not store.check(confirmed):
        if time.monotonic() > deadline:
            missing = [other for other, key in enumerate(confirmed, 1) if not store.check([key])]
            raise JobError(
                "TR-WORLD-PEER", f"{len(missing)} processes of {size} did not come, rank {missing[0]} first", "rank 0",
                "all processes running", "the same command: it resumes at the newest checkpoint",
            )  # fmt: skip
        for other in range(1, size):
            key = f"tokenreel/word/{other}"
            if store.check([key]) and (word := store.get(key).decode()) not in answered:
                store.set(f"tokenreel/answer/{word}", name)
                answered.add(word)
        time.sleep(_PAUSE_S)
    return PrefixStore(name, store)
