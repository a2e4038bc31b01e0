"""What differs between A and B: two Datasets, two manifests, or two runs; each comparison is a JSON-able dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .path_kind import path_kind

__all__ = ["changed_keys", "compare", "to_text"]

_SHOWN_KEYS = 40
_LONG = ("accounting",)  # follows from the rest: last, and short


def compare(left: Path | str, right: Path | str, examples: int = 5) -> dict[str, Any]:
    """Compare two Datasets (folders or URLs), two manifests (``manifest.json`` files on their own), or two runs.

    The result has ``kind``, ``same``, ``left`` and ``right``, and what differs; ``examples`` bounds the lists of
    documents and files, never the counts.

    Raises:
        ConfigError: A and B are not of one kind.
        DamageError: something read is damaged.
    """
    kinds = (_kind(left), _kind(right))
    if "run" in kinds and kinds != ("run", "run"):
        place = f"{left} is a {kinds[0]}, {right} a {kinds[1]}"
        raise ConfigError("TR-DIFF-KIND", "a run and a Dataset cannot be compared", place, "two of one kind")
    if kinds == ("run", "run"):
        from .run_diff import compare_runs

        return compare_runs(Path(left), Path(right), examples)
    from .dataset_diff import compare_datasets

    return compare_datasets(str(left), str(right), examples)


def _kind(location: Path | str) -> str:
    from .stream.store import folder_of

    path = folder_of(str(location))
    if path is None:
        return "dataset"
    return "dataset" if path.is_file() else path_kind(str(path))  # a manifest.json on its own


def changed_keys(left: Any, right: Any) -> list[dict[str, Any]]:
    """Where two JSON values differ: ``key`` (dotted), ``left`` and ``right``; a side that has no such key lacks it.

    Lists of objects that have a ``name`` are compared by name, other lists by place.
    """
    one, other = _leaves(left, ""), _leaves(right, "")
    changes = []
    for key in [*one, *(key for key in other if key not in one)]:
        if key not in one or key not in other or one[key] != other[key] or type(one[key]) is not type(other[key]):
            sides = (("left", one), ("right", other))
            changes.append({"key": key, **{side: leaves[key] for side, leaves in sides if key in leaves}})
    return changes


def _leaves(value: Any, key: str) -> dict[str, Any]:
    """Dotted key -> what is neither an object nor a list, or is an empty one."""
    if not isinstance(value, Mapping | list) or not value:
        return {key: value}
    leaves: dict[str, Any] = {}
    for name, item in _items(value):
        leaves.update(_leaves(item, f"{key}.{name}" if key else name))
    return leaves


def _items(value: Mapping[str, Any] | list[Any]) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    names = [item.get("name") if isinstance(item, Mapping) else None for item in value]
    if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        order = ", ".join(str(name) for name in names)
        return [("(order)", order), *((str(name), item) for name, item in zip(names, value, strict=True))]
    return [(str(number), item) for number, item in enumerate(value)]


def to_text(value: Mapping[str, Any]) -> str:
    """A comparison for people."""
    if value["same"]:
        return f"the same: {value['kind']} {value['left']['digest']}"
    lines = [f"{name} {value[side]['path']}  {value[side]['digest']}" for name, side in (("A", "left"), ("B", "right"))]
    for title, changes in value["changes"].items():
        if title not in _LONG:
            lines += _change_lines(title, changes, _SHOWN_KEYS)
    for title in ("inputs", "documents"):
        part = value.get(title)
        if part:
            lines.append(f"{title}:")
            lines += _part(part, "  ")
    for title in _LONG:
        lines += _change_lines(title, value["changes"].get(title, []), _SHOWN_KEYS // 4)
    lines += [f"note: {note}" for note in value.get("notes", ())]
    return "\n".join(lines)


def _change_lines(title: str, changes: list[dict[str, Any]], most: int) -> list[str]:
    if not changes:
        return []
    lines = [f"{title}:", *(f"  {_change(change)}" for change in changes[:most])]
    if len(changes) > most:
        lines.append(f"  and {len(changes) - most} more (--json lists all)")
    return lines


def _change(change: Mapping[str, Any]) -> str:
    left, right = (repr(change[side]) if side in change else "(not there)" for side in ("left", "right"))
    return f"{change['key']}: {left} -> {right}"


def _part(value: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for name, item in value.items():
        if isinstance(item, Mapping):
            lines += [f"{indent}{name}:", *_part(item, indent + "  ")] if item else []
        elif isinstance(item, list):
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  {_words(one)}" for one in item]
        else:
            lines.append(f"{indent}{name}: {item:,}" if isinstance(item, int) else f"{indent}{name}: {item}")
    return lines


def _words(value: Any) -> str:
    return " ".join(str(item) for item in value.values()) if isinstance(value, Mapping) else str(value)
