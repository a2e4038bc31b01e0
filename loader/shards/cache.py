"""A small cache that threads may share. What falls out lives on while somebody still uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Cache"]

_Value = TypeVar("_Value")


class _Entry(Generic[_Value]):
    __slots__ = ("cost", "used", "value")

    def __init__(self, value: _Value, cost: int) -> None:
        self.value = value
        self.cost = cost
        self.used = True


class Cache(Generic[_Value]):
    """Values by an integer key, at most ``limit`` in total cost (the newest one is kept whatever it costs).

    The oldest entry leaves first, unless it was used since it last came to be the oldest ("second chance"): a hit only
    sets a flag, so hits need no lock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[int, _Entry[_Value]] = {}
        self._cost = 0
        self._lock = threading.Lock()

    def get(self, key: int, make: Callable[[int], tuple[_Value, int]]) -> _Value:
        """The value of ``key``; ``make(key)`` gives (value, cost) where there is none.

        ``make`` runs outside the lock, so that one slow file holds nobody up; where two threads make the same value,
        the first one stays.
        """
        entry = self._entries.get(key)
        if entry is None:
            value, cost = make(key)
            with self._lock:
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = _Entry(value, cost)
                    self._cost += cost
                    self._evict(key)
        entry.used = True
        return entry.value

    def peek(self, key: int) -> _Value | None:
        """The value of ``key`` if there is one; it counts as used no more than before."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def drop(self, key: int) -> None:
        """Forget the value of ``key``, if there is one."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._cost -= entry.cost

    def _evict(self, newest: int) -> None:
        while self._cost > self._limit and len(self._entries) > 1:
            key = next(iter(self._entries))
            entry = self._entries.pop(key)
            if entry.used or key == newest:
                entry.used = False
                self._entries[key] = entry
            else:
                self._cost -= entry.cost
