"""Arguments of a filter as a configuration gives them, checked against its signature before it is made."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from loader.yaml_tree import did_you_mean

__all__ = ["argument_problems", "as_arguments", "takes_code"]

_MISSING = inspect.Parameter.empty
_SEQUENCES = (list, tuple, set, frozenset, collections.abc.Iterable, collections.abc.Sequence)


def _parameters(target: type) -> dict[str, tuple[Any, Any]]:
    """Argument -> (annotation, default), both ``Parameter.empty`` where there is none."""
    try:
        hints = typing.get_type_hints(inspect.getattr_static(target, "__init__"))
    except (NameError, TypeError):
        hints = {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [one for one in inspect.signature(target).parameters.values() if one.kind in named]
    return {one.name: (hints.get(one.name, one.annotation), one.default) for one in found}


def _choices(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _is_code(hint: Any) -> bool:
    return any(choice is Callable or typing.get_origin(choice) is collections.abc.Callable for choice in _choices(hint))


def _accepts_sequence(hint: Any, value: Any, *, strict: bool) -> bool:
    members = typing.get_args(hint)
    if not isinstance(value, list | tuple):
        return False
    if not strict or not members:
        return True
    if typing.get_origin(hint) is tuple and members[-1] is not Ellipsis:
        pairs = zip(value, members, strict=False)
        return len(value) == len(members) and all(_accepts(member, one, strict=True) for one, member in pairs)
    return all(_accepts(members[0], one, strict=True) for one in value)


def _accepts(hint: Any, value: Any, *, strict: bool) -> bool:
    """Whether an annotation allows a value of a configuration. Not ``strict``: any number where one is annotated, and
    any members of sequences, as datatrove's annotations are narrower than what its filters take."""
    for choice in _choices(hint):
        origin = typing.get_origin(choice) or choice
        if choice is Any or choice is _MISSING or isinstance(choice, str):
            return True
        if choice is types.NoneType or choice is None:
            fits = value is None
        elif choice in (int, float):
            number = isinstance(value, int if strict and choice is int else (int, float))
            fits = number and not isinstance(value, bool)
        elif choice in (bool, str):
            fits = isinstance(value, choice)
        elif origin is typing.Literal:
            fits = value in typing.get_args(choice)
        elif origin in _SEQUENCES:
            fits = _accepts_sequence(choice, value, strict=strict)
        else:
            fits = origin in (dict, collections.abc.Mapping) and isinstance(value, Mapping)
        if fits:
            return True
    return False


def _name_of(hint: Any) -> str:
    return " or ".join(
        getattr(one, "__name__", str(one)) if not typing.get_args(one) else str(one) for one in _choices(hint)
    )


def takes_code(target: type) -> str | None:
    """The first argument without default that wants a function, which no configuration can give."""
    for name, (hint, default) in _parameters(target).items():
        if default is _MISSING and _is_code(hint):
            return name
    return None


def argument_problems(target: type, options: Mapping[str, Any], *, strict: bool) -> list[str]:
    """What is wrong with ``options`` as arguments of ``target``: one ``name: message`` each."""
    parameters = _parameters(target)
    problems = []
    for name, value in options.items():
        hint, default = parameters.get(name, (_MISSING, _MISSING))
        if name not in parameters:
            problems.append(f"{name}: no such argument{did_you_mean(name, parameters)}")
        elif value is None and default is None:
            continue
        elif not _accepts(hint, value, strict=strict):
            problems.append(f"{name}: {value!r} is no {_name_of(hint)}")
    required = [name for name, (_, default) in parameters.items() if default is _MISSING]
    return problems + [f"{name}: missing" for name in required if name not in options]


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(one) for one in value) if isinstance(value, list | tuple) else value


def as_arguments(target: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with lists as tuples where the signature says tuple and not list."""
    parameters = _parameters(target)
    arguments = {}
    for name, value in options.items():
        origins = {typing.get_origin(choice) or choice for choice in _choices(parameters[name][0])}
        arguments[name] = _as_tuples(value) if tuple in origins and list not in origins else value
    return arguments
