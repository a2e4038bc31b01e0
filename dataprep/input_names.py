"""Names of input files: what one may look like, and lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loader.errors import ConfigError

__all__ = ["duplicate_names", "name_problem", "read_file_list"]

MAX_LIST_BYTES = 1 << 30
_MAX_PART_BYTES = 255


def name_problem(name: str) -> str | None:
    """Why ``name`` cannot be the path of an input file below its root; None if it can."""
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        return "holds control characters or is not UTF-8"
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        return "must stay below root"
    if any(part in ("", ".") for part in parts):
        return "has empty parts or '.'"
    if any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        return f"has a part of more than {_MAX_PART_BYTES} bytes, which file systems refuse"
    return None


def duplicate_names(names: Sequence[str]) -> list[str]:
    """Names that stand in ``names`` more than once, sorted."""
    seen: set[str] = set()
    twice: set[str] = set()
    for name in names:
        (twice if name in seen else seen).add(name)
    return sorted(twice)


def read_file_list(path: Path, source: str) -> list[str]:
    """The names in a list of files: UTF-8, one a line; blank lines and lines that start with ``#`` are passed over,
    white space around a name is no part of it.

    Raises:
        ConfigError: ``TR-SOURCE-LIST``: the list cannot be read, is too large, names nothing, or names a file twice or
            badly; with the line.
    """
    try:
        if path.exists() and not path.is_file():
            raise _list_error(source, "is no file", str(path))
        if path.stat().st_size > MAX_LIST_BYTES:
            raise _list_error(source, f"is larger than {MAX_LIST_BYTES:,} bytes", str(path))
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise _list_error(source, f"cannot be read: {error.strerror}", str(path)) from error
    except UnicodeDecodeError as error:
        raise _list_error(source, f"is not UTF-8 at byte {error.start}", str(path)) from error
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        problem = name_problem(name)
        if problem is not None:
            raise _list_error(source, f"{name!r} {problem}", f"{path}:{number}")
        if name in line_of:
            raise _list_error(source, f"{name!r} stands in line {line_of[name]} already", f"{path}:{number}")
        line_of[name] = number
    if not line_of:
        raise _list_error(source, "names no file", str(path))
    return list(line_of)


def _list_error(source: str, what: str, place: str) -> ConfigError:
    message = f"source {source!r}: its list of files: {what}"
    return ConfigError("TR-SOURCE-LIST", message, place, "one file a line, relative to the source's root")
