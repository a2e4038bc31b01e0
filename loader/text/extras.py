"""Packages that only some inputs want."""

from __future__ import annotations

import importlib
from pathlib import Path

from ..errors import ConfigError

__all__ = ["need_extra"]

_EXTRAS = {"warc": ("warcio", "cchardet", "magic"), "hf": ("datasets",)}


def need_extra(extra: str, path: Path) -> None:
    """Make sure that what reads ``path`` is installed.

    Raises:
        ConfigError: ``TR-INPUT-EXTRA``: it is not; names what is missing and what installs it.
    """
    for name in _EXTRAS[extra]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                "TR-INPUT-EXTRA",
                f"reading this file takes a package that is not installed: {name} ({error})",
                str(path),
                f"the extra {extra!r}",
                f"pip install 'tokenreel[{extra}]'",
            ) from error
