"""The kinds of job configurations, told apart by a key that only one of them has."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from .errors import ConfigError

__all__ = ["ConfigKind", "kind_of", "refuse_other_kind"]

ConfigKind = Literal["build", "train"]
"""Also the verb that takes it."""

_NAMES: dict[ConfigKind, str] = {"build": "a build configuration", "train": "a training configuration"}
_KEYS: dict[ConfigKind, str] = {"build": "sources", "train": "data"}


def kind_of(keys: Collection[str]) -> ConfigKind | None:
    """``build`` where there are ``sources``, ``train`` where there are ``data``; None with neither, or both."""
    found = [kind for kind, key in _KEYS.items() if key in keys]
    return found[0] if len(found) == 1 else None


def refuse_other_kind(path: Path, keys: Collection[str], wanted: ConfigKind | None) -> None:
    """One error in place of a problem for every key of the other kind.

    Args:
        keys: of the file ``path``. wanted: what the verb takes; None: something else, which is not judged.

    Raises:
        ConfigError: ``TR-CONFIG-KIND``: the file is of the other kind; the next command is the verb that takes it.
    """
    kind = kind_of(keys)
    if kind is None or wanted is None or kind == wanted:
        return
    expected = f"{_NAMES[wanted]} (`{_KEYS[wanted]}:`)"
    raise ConfigError("TR-CONFIG-KIND", f"this is {_NAMES[kind]}", str(path), expected, f"tokenreel {kind} {path}")
