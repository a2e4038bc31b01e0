"""What lies at a path: a Dataset or a run; and where nothing lies, what may have been meant."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError

__all__ = ["PathKind", "path_kind", "refuse_missing", "what_was_meant"]

PathKind = Literal["dataset", "run"]

_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def path_kind(location: str) -> PathKind:
    """By the file that a folder holds; no URL.

    Raises:
        ConfigError: it is neither, or does not exist.
    """
    path = Path(location)
    refuse_missing(location)
    if (path / "manifest.json").exists():
        return "dataset"
    if (path / "run.json").exists():
        return "run"
    expected = "a folder with manifest.json or run.json"
    raise ConfigError("TR-PATH-KIND", "neither a Dataset nor a run", location, expected, _listing(path))


def refuse_missing(location: str, expected: str = "the folder of a Dataset or of a run") -> None:
    """Nothing where a Dataset or a run is asked for; a URL is left to the caller.

    Raises:
        ConfigError: ``TR-PATH-MISSING``, with the closest name there is; ``TR-STORE-URL``: a URL with one slash, which
            is not repeated, as it may hold a password.
    """
    path = Path(location)
    if os.path.lexists(path) or "://" in location:
        return  # whoever takes no URL says so by itself
    if _ONE_SLASH.match(location):
        raise ConfigError("TR-STORE-URL", "a URL with one slash behind its colon", None, "two, as in s3://bucket/data")
    message, command = what_was_meant(path)
    raise ConfigError("TR-PATH-MISSING", f"this does not exist: {message}", location, expected, command)


def what_was_meant(path: Path) -> tuple[str, str | None]:
    """Of a path that is missing: which name is missing where, with the closest one there is; and what to type next."""
    parent, name = _first_missing(path)
    close = _close_path(path)
    if close is None:
        return f"{str(parent)!r} holds no {name!r}", _listing(parent)
    return f"{str(parent)!r} holds no {name!r}; did you mean {str(close)!r}?", _command_again(path, close)


def _close_path(path: Path) -> Path | None:
    """The path that is there and differs from a missing one by the spelling of one name, the first that is missing."""
    parent, name = _first_missing(path)
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return None
    rest = path.relative_to(parent / name)
    found = (parent / close / rest for close in difflib.get_close_matches(name, names, n=3, cutoff=0.6))
    return next((one for one in found if one.exists()), None)


def _first_missing(path: Path) -> tuple[Path, str]:
    """The deepest folder on the way that is there, and the name that it lacks."""
    while path.parent != path and not path.parent.exists():
        path = path.parent
    return path.parent, path.name


def _listing(folder: Path) -> str:
    return f"ls {shlex.quote(str(folder))}"


def _command_again(wrong: Path, right: Path) -> str | None:
    """The command that is being run, as typed but for one argument; None outside of a command."""
    import click

    context = click.get_current_context(silent=True)
    if context is None:
        return None
    typed = click.core.ParameterSource.COMMANDLINE
    words = [context.command_path]
    for parameter in context.command.params:
        if parameter.name is not None and context.get_parameter_source(parameter.name) is typed:
            words += _words(parameter, context.params.get(parameter.name), wrong, right)
    return " ".join(words)


def _words(parameter: Any, value: Any, wrong: Path, right: Path) -> Iterator[str]:
    """A parameter as typed."""
    for one in value if isinstance(value, tuple) else (value,):
        if parameter.param_type_name == "argument":
            yield shlex.quote(str(right if Path(str(one)) == wrong else one))
        elif one is not False:
            yield parameter.opts[0] if one is True else f"{parameter.opts[0]} {shlex.quote(str(one))}"
