"""Checks of what a caller's program hands over: every wrong value by its name.

By hand, because importing a library that validates costs more than opening a stream.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence

from ..errors import ConfigError

__all__ = ["integer_problems", "number_problems", "refuse", "weight_problems"]


def integer_problems(name: str, value: object, low: int, high: int) -> list[str]:
    """What is wrong with a value that must be an ``int`` in ``low .. high``; nothing, or one sentence."""
    if type(value) is int and low <= value <= high:
        return []
    return [f"{name} is {reprlib.repr(value)}, not an int in {low} .. {high}"]


def number_problems(name: str, value: object, high: float) -> list[str]:
    """What is wrong with a value that must be a number above 0, at most ``high``; nothing, or one sentence."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= high:
        return []
    return [f"{name} is {reprlib.repr(value)}, not a number above 0, at most {high:g}"]


def weight_problems(name: str, weights: object) -> list[str]:
    """What is wrong with a value that must map source names to finite weights >= 0, one of them above 0."""
    if not isinstance(weights, Mapping):
        return [f"{name} is {reprlib.repr(weights)}, not a mapping of source names to weights"]
    wrong = [
        f"{name} gives {reprlib.repr(source)} the weight {reprlib.repr(weight)}, not a finite number >= 0"
        for source, weight in weights.items()
        if not (isinstance(source, str) and isinstance(weight, int | float) and 0 <= weight < math.inf)
    ]
    return wrong or ([] if any(weights.values()) else [f"{name} has no weight above 0"])


def refuse(place: str, problems: Sequence[str]) -> None:
    """Raise if there are problems.

    Raises:
        ConfigError: ``TR-STREAM-CONFIG``, with all of them.
    """
    if problems:
        raise ConfigError("TR-STREAM-CONFIG", f"arguments that do not fit: {'; '.join(problems)}", place)
