"""Items computed ahead by threads and handed over in order; a failure is raised where it belongs, never swallowed.

Threads, not processes: reading a sample costs microseconds and numpy copies without the lock, so there is no shared
memory to leak and no worker to lose. The threads hold only the shared state, so a forgotten prefetcher ends them when
it is collected.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from ..errors import JobError

__all__ = ["Note", "Prefetcher"]

_Item = TypeVar("_Item")
Note = Callable[[str], None]
"""A producer tells what it is waiting for, so that a time-out can name it; that it tells begins the time-out anew."""


@dataclass
class _Shared(Generic[_Item]):
    """What consumer and threads share; every field is guarded by ``changed``."""

    produce: Callable[[int, Note], _Item]
    depth: int
    next_wanted: int
    next_started: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    done: dict[int, _Item | BaseException] = field(default_factory=dict)
    doing: dict[int, str] = field(default_factory=dict)
    heard_s: dict[int, float] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    raised: int = 0
    closed: bool = False
    process: int = field(default_factory=os.getpid)

    def take(self) -> int | None:
        """The next index to compute; blocks while far enough ahead; None when closed."""
        with self.changed:
            while not self.closed:
                if self.again:
                    index = self.again.pop()
                elif self.next_started < self.next_wanted + self.depth:
                    index, self.next_started = self.next_started, self.next_started + 1
                else:
                    self.changed.wait()
                    continue
                self.doing[index], self.begun[index] = "starting", self.raised
                return index
            return None

    def note(self, index: int, what: str) -> None:
        with self.changed:
            self.doing[index] = what
            self.heard_s[index] = time.monotonic()

    def finish(self, index: int, outcome: _Item | BaseException) -> None:
        with self.changed:
            del self.doing[index]
            self.heard_s.pop(index, None)
            self.done[index] = outcome
            self.changed.notify_all()

    def close(self) -> None:
        if self.process != os.getpid():  # in a forked child a thread of the parent may hold the lock for ever
            return
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def _work(shared: _Shared[_Item]) -> None:
    while (index := shared.take()) is not None:
        try:
            outcome: _Item | BaseException = shared.produce(index, partial(shared.note, index))
        except BaseException as error:  # raised again in the consumer
            outcome = error
        shared.finish(index, outcome)


class Prefetcher(Generic[_Item]):
    """Hands over ``produce(0)``, ``produce(1)``, ... from ``first`` on, at most ``depth`` items ahead."""

    def __init__(self, produce: Callable[[int, Note], _Item], first: int, depth: int, threads: int) -> None:
        """Start ``threads`` threads; each ``produce(index, note)`` runs in one of them."""
        self._shared = _Shared(produce, depth, first, first)
        self._threads = [
            threading.Thread(target=_work, args=(self._shared,), name=f"tokenreel-prefetch-{number}", daemon=True)
            for number in range(threads)
        ]
        self._finalizer = weakref.finalize(self, self._shared.close)
        for thread in self._threads:
            thread.start()

    def get(self, timeout_s: float) -> _Item:
        """The next item. After an exception the same item is computed again at the next call.

        Raises:
            JobError: it was not there within ``timeout_s``, nor within that time since its producer last said that it
                gets on; the message names what is waited for.
            Exception: whatever ``produce`` raised for this very item.
        """
        shared = self._shared
        deadline = time.monotonic() + timeout_s
        with shared.changed:
            index = shared.next_wanted
            if shared.closed:
                raise self._not_there(index, timeout_s)
            known = index in shared.done or index in shared.doing or index in shared.again
            if index < shared.next_started and not known:  # it failed, and was taken out
                shared.again.append(index)
                shared.changed.notify_all()
            while index not in shared.done or self._is_old(index):
                left_s = max(deadline, shared.heard_s.get(index, 0.0) + timeout_s) - time.monotonic()
                if shared.closed or left_s <= 0:
                    raise self._not_there(index, timeout_s)
                shared.changed.wait(left_s)
            outcome = shared.done.pop(index)
            del shared.begun[index]
            if isinstance(outcome, BaseException):
                shared.raised += 1
                raise outcome
            shared.next_wanted = index + 1
            shared.changed.notify_all()
            return outcome

    def _is_old(self, index: int) -> bool:
        """Whether the item failed, and was begun before the consumer heard of an earlier failure: what was wrong may
        have been repaired since, so it is computed again."""
        shared = self._shared
        if shared.begun[index] == shared.raised or not isinstance(shared.done[index], BaseException):
            return False
        del shared.done[index]
        shared.again.append(index)
        shared.changed.notify_all()
        return True

    def _not_there(self, index: int, timeout_s: float) -> JobError:
        if self._shared.closed:
            return JobError("TR-STREAM-CLOSED", "the stream is closed", f"step {index}", "an open stream")
        doing = self._shared.doing.get(index, "no thread has begun it")
        return JobError(
            "TR-STREAM-TIMEOUT", f"waited {timeout_s:g} s: {doing}", f"step {index}", "storage that answers"
        )

    def close(self, timeout_s: float) -> None:
        """End the threads and join them; a second call does nothing.

        Raises:
            JobError: a thread did not end within ``timeout_s``; the message names what it is doing.
        """
        self._finalizer()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread for thread in self._threads if thread.is_alive()]
        if stuck:
            with self._shared.changed:
                doing = "; ".join(f"step {index}: {what}" for index, what in sorted(self._shared.doing.items()))
            raise JobError("TR-STREAM-STUCK", f"{len(stuck)} threads did not end in {timeout_s:g} s: {doing}")
