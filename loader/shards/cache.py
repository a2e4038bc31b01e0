"""A small least-recently-used cache that threads may share. What falls out lives on while somebody still uses it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Lru"]

_Value = TypeVar("_Value")


class Lru(Generic[_Value]):
    """Values by an integer key, at most ``limit`` in total cost (the newest one is kept whatever it costs)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[int, tuple[_Value, int]] = OrderedDict()
        self._cost = 0
        self._lock = threading.Lock()

    def get(self, key: int, make: Callable[[], tuple[_Value, int]]) -> _Value:
        """The value of ``key``; ``make`` gives (value, cost) where there is none.

        ``make`` runs outside the lock, so that one slow file holds nobody up; two threads may both make a value, the
        first one stays.
        """
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found[0]
        value, cost = make()
        with self._lock:
            found = self._values.setdefault(key, (value, cost))
            if found[0] is value:
                self._cost += cost
            while self._cost > self._limit and len(self._values) > 1:
                self._cost -= self._values.popitem(last=False)[1][1]
        return found[0]
