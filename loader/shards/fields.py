"""Typed access to untrusted JSON objects."""

from __future__ import annotations

from typing import Any

from ..errors import DamageError

__all__ = ["Fields"]


class Fields:
    """Typed access to an untrusted JSON object; everything unexpected is a DamageError that names the key."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise DamageError("TR-MANIFEST-FORMAT", "not an object", place, "a JSON object")
        self._value = value
        self._place = place

    def fail(self, key: str, expected: str) -> DamageError:
        """The error to raise for a value that cannot be right."""
        return DamageError("TR-MANIFEST-FORMAT", f"bad value of {key!r}", self._place, expected)

    def count(self, key: str, most: int = (1 << 62), least: int = 0) -> int:
        """A whole number in ``least`` .. ``most``."""
        value = self._value.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fail(key, f"a whole number in {least}..{most}")
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self._value.get(key)
        if not isinstance(value, str):
            raise self.fail(key, "text")
        return value

    def share(self, key: str) -> float:
        """A number from 0 to 1."""
        value = self._value.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise self.fail(key, "a number in 0..1")
        return float(value)

    def object(self, key: str, kind: type = object) -> dict[str, Any]:
        """An object whose values are all of ``kind``."""
        value = self._value.get(key)
        if not isinstance(value, dict) or not all(isinstance(v, kind) for v in value.values()):
            raise self.fail(key, "an object")
        return value

    def list(self, key: str) -> list[Any]:
        """A list."""
        value = self._value.get(key)
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return value
