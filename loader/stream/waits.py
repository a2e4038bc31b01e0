"""What a thread is waiting for, told to whoever waits for the thread, so that a time-out can name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["tell", "told"]

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("tokenreel-waits", default=None)


@contextmanager
def told(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, ``listener`` hears what this thread waits for."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(what: str) -> None:
    """Say what this thread waits for now; saying something new also says that it gets on."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what)
