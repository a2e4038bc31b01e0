"""Check a tree of configuration values against frozen dataclasses, and build them; problems are collected."""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple

from .errors import TokenreelError
from .yaml_tree import Node, did_you_mean

__all__ = ["Invalid", "Where", "check"]


class Invalid:
    """What ``check`` returns in place of a value that has problems."""


class Where(NamedTuple):
    """The keys above a value, and the place where its own key stands (shown for keys that are missing below it)."""

    path: tuple[str, ...]
    place: str

    def child(self, key: str, place: str) -> Where:
        """The same for the value of ``key``."""
        return Where((*self.path, key), place)


_INVALID = Invalid()


def check(node: Node, annotation: Any, problems: list[str]) -> Any:
    """``node`` as a value of type ``annotation``; or ``Invalid``, and a ``place: key.path: message`` line a problem.

    Understands dataclasses (unknown and missing keys), ``dict[str, T]``, ``tuple[T, ...]``, ``tuple[A, B]``,
    ``list[T]``, ``Optional`` and unions: of several dataclasses the one that knows the present keys is meant.
    Every other type is pydantic's, in strict mode: a string is no number, 1 no boolean, an integer a valid float.
    """
    return _Checker(problems).value(node, annotation, Where((), node.place))


class _Field(NamedTuple):
    annotation: Any
    required: bool


@functools.cache
def _fields(cls: Hashable) -> dict[str, _Field]:
    """The keys of a configuration dataclass."""
    kind = typing.cast(type[Any], cls)
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: _Field(hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
        if field.init
    }


@functools.cache
def _adapter(annotation: Any) -> Any:
    """pydantic's validator of a leaf type."""
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


def _is_class(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _key_list(cls: Any) -> str:
    return ", ".join(_fields(cls))


def _shown(node: Node) -> str:
    """What a value is called in a message."""
    value = node.value
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    shown = repr(value) if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _type_name(annotation: Any) -> str:
    """What a type is called in a message."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(annotation))
    if origin in (tuple, list, Sequence):
        return "a list"
    if origin in (dict, Mapping) or _is_class(annotation):
        return "a mapping"
    names = {type(None): "null", bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    return names.get(annotation) or str(getattr(annotation, "__name__", annotation))


class _Checker:
    """One check of one file; ``problems`` is the only state."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems

    def say(self, place: str, path: tuple[str, ...], message: str) -> Invalid:
        """Add a problem."""
        self.problems.append(f"{place}: {'.'.join(path)}: {message}" if path else f"{place}: {message}")
        return _INVALID

    def value(self, node: Node, annotation: Any, where: Where) -> Any:
        """Any value."""
        if annotation is Any:
            return self.anything(node, where)
        origin = typing.get_origin(annotation)
        if origin in (typing.Union, types.UnionType):
            return self.union(node, typing.get_args(annotation), where)
        if _is_class(annotation):
            return self.dataclass(node, annotation, where)
        if origin in (dict, Mapping):
            return self.mapping(node, typing.get_args(annotation)[1], where)
        if origin in (tuple, list, Sequence):
            return self.sequence(node, annotation, where)
        return self.leaf(node, annotation, where)

    def dataclass(self, node: Node, cls: Any, where: Where) -> Any:
        """A mapping with known keys."""
        path, known = where.path, _fields(cls)
        if not isinstance(node.value, dict):
            return self.say(node.place, path, f"expected a mapping with keys {_key_list(cls)}, got {_shown(node)}")
        start = len(self.problems)
        for key in node.value:
            if key not in known:
                hint = did_you_mean(key, known) or f"; known keys: {_key_list(cls)}"
                self.say(node.key_places[key], (*path, key), f"unknown key{hint}")
        values: dict[str, Any] = {}
        for name, field in known.items():
            if name in node.value:
                values[name] = self.value(node.value[name], field.annotation, where.child(name, node.key_places[name]))
            elif field.required:
                self.say(where.place, (*path, name), "missing; this key has no default")
        if len(self.problems) > start:
            return _INVALID
        try:
            return cls(**values)
        except (ValueError, TokenreelError) as error:
            message = error.message if isinstance(error, TokenreelError) else str(error)
            return self.own_message(message, node, where)

    def own_message(self, message: str, node: Node, where: Where) -> Invalid:
        """What ``__post_init__`` said: each line a problem, at the key that starts it if one does."""
        children = node.value if isinstance(node.value, dict) else {}
        for line in message.splitlines() or ["invalid"]:
            key, colon, rest = line.partition(": ")
            child, _, _ = key.partition(".")
            if colon and child in children:
                self.say(children[child].place, (*where.path, *key.split(".")), rest)
            else:
                self.say(where.place, where.path, line)
        return _INVALID

    def union(self, node: Node, members: tuple[Any, ...], where: Where) -> Any:
        """One of several types."""
        if node.value is None and type(None) in members:
            return None
        choices = [member for member in members if member is not type(None)]
        classes = [member for member in choices if _is_class(member)]
        if classes and isinstance(node.value, dict):
            return self.class_union(node, classes, where)
        attempts: list[list[str]] = []
        for member in choices:
            found: list[str] = []
            value = _Checker(found).value(node, member, where)
            if not found:
                return value
            attempts.append(found)
        if len(attempts) == 1:
            self.problems.extend(attempts[0])
            return _INVALID
        expected = " or ".join(dict.fromkeys(_type_name(member) for member in members))
        return self.say(node.place, where.path, f"expected {expected}, got {_shown(node)}")

    def class_union(self, node: Node, classes: list[Any], where: Where) -> Any:
        """Of the dataclasses that know all keys that any of them knows, the one that lacks the fewest was meant."""
        keys = set(node.value) if isinstance(node.value, dict) else set()
        offered = " | ".join(_key_list(cls) for cls in classes)
        understood = keys & {name for cls in classes for name in _fields(cls)}
        if len(classes) > 1 and not understood:
            unknown = f", got {', '.join(sorted(keys))}" if keys else ""
            hints = [did_you_mean(key, [name for cls in classes for name in _fields(cls)]) for key in sorted(keys)]
            return self.say(where.place, where.path, f"expected one of the keys {offered}{unknown}{''.join(hints)}")
        fitting = [cls for cls in classes if understood <= set(_fields(cls))]
        if not fitting:
            excluding = ", ".join(sorted(understood))
            return self.say(where.place, where.path, f"{excluding} exclude each other; choose from {offered}")

        def num_missing(cls: Any) -> int:
            return sum(field.required and name not in keys for name, field in _fields(cls).items())

        return self.dataclass(node, min(fitting, key=num_missing), where)

    def anything(self, node: Node, where: Where) -> Any:
        """A value that someone else checks: scalars, lists and mappings of them, at any depth."""
        if isinstance(node.value, dict):
            return self.mapping(node, Any, where)
        if isinstance(node.value, list):
            return self.sequence(node, list[Any], where)
        return node.value

    def mapping(self, node: Node, annotation: Any, where: Where) -> Any:
        """A mapping whose keys are the user's."""
        if not isinstance(node.value, dict):
            return self.say(node.place, where.path, f"expected a mapping, got {_shown(node)}")
        start = len(self.problems)
        values = {
            key: self.value(child, annotation, where.child(key, node.key_places[key]))
            for key, child in node.value.items()
        }
        return values if len(self.problems) == start else _INVALID

    def sequence(self, node: Node, annotation: Any, where: Where) -> Any:
        """A list; a tuple of fixed length checks its length."""
        origin, members = typing.get_origin(annotation), typing.get_args(annotation)
        if not isinstance(node.value, list):
            return self.say(node.place, where.path, f"expected a list, got {_shown(node)}")
        start = len(self.problems)
        kinds = (members[0],) * len(node.value)
        if origin is tuple and members[-1] is not Ellipsis:
            if len(node.value) != len(members):
                message = f"expected {len(members)} items, got {len(node.value)}"
                return self.say(node.place, where.path, message)
            kinds = members
        values = [
            self.value(child, kind, where.child(str(number), child.place))
            for number, (child, kind) in enumerate(zip(node.value, kinds, strict=True))
        ]
        if len(self.problems) > start:
            return _INVALID
        return values if origin is list else tuple(values)

    def leaf(self, node: Node, annotation: Any, where: Where) -> Any:
        """Everything else: scalars, enumerations, paths, with pydantic's constraints."""
        from pydantic import ValidationError

        expected = f"expected {_type_name(annotation)}, got {_shown(node)}"
        if isinstance(node.value, dict | list):
            return self.say(node.place, where.path, expected)
        try:
            # JSON mode: strict about types, and yet paths and enumerations are written as strings.
            return _adapter(annotation).validate_json(json.dumps(node.value), strict=True)
        except ValidationError as error:
            if typing.get_origin(annotation) is typing.Literal:
                allowed = [value for value in typing.get_args(annotation) if isinstance(value, str)]
                hint = did_you_mean(node.value, allowed) if isinstance(node.value, str) else ""
                return self.say(node.place, where.path, expected + hint)
            for detail in error.errors(include_url=False):
                wrong_type = str(detail["type"]).endswith(("_type", "_parsing"))
                self.say(node.place, where.path, expected if wrong_type else f"{detail['msg']}, got {_shown(node)}")
            return _INVALID
