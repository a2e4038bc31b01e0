"""Threads for requests to a store, which nobody waits for once the work is given up.

``ThreadPoolExecutor`` waits for its threads when it is left and again when the interpreter ends, and a thread in a
stalled request comes back when the request times out: 27 s after Ctrl-C. The threads here are daemons; a pool that is
left by an error waits for none of them, and what they still do is of no effect: their futures are read by nobody.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

__all__ = ["DaemonPool"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Task = tuple[Future[Any], Callable[[], Any]]


class DaemonPool(Executor):
    """An executor of at most ``threads`` daemon threads, started as they are needed; a context manager, which waits at
    its end unless an error ends it."""

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ended = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=error is None, cancel_futures=error is not None)

    def submit(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        """Have a thread call ``fn``.

        Raises:
            RuntimeError: the pool has been shut down.
        """
        future: Future[_R] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError("the pool has been shut down")
            self._tasks.put((future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _run(*task)
            del task  # with what it returned
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; ``cancel_futures``: begin nothing that waits; ``wait``: for what has begun."""
        with self._lock:
            self._ended = True
            waiting = _drain(self._tasks) if cancel_futures else []
            for _ in self._threads:
                self._tasks.put(None)
        for task in waiting:
            if task is not None:
                task[0].cancel()
        if wait:
            for thread in self._threads:
                thread.join()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)
        else:
            future.set_result(result)


def _drain(tasks: queue.SimpleQueue[_Task | None]) -> list[_Task | None]:
    taken: list[_Task | None] = []
    try:
        while True:
            taken.append(tasks.get_nowait())
    except queue.Empty:
        return taken
