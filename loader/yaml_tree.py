"""YAML text to a tree of values that remember where they stand; bounded, strict, and free of YAML 1.1's surprises.

The scalars follow YAML 1.2's core schema, with underscores in integers: ``yes``, ``no``, ``on`` and ``off`` are
strings, ``3e-4`` is a number, ``1:30`` and ``2024-01-01`` are strings, and so is ``010`` (octal for some readers).
Anchors and aliases work; merge keys (``<<``) and explicit tags outside the core schema are refused.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

    _At = Callable[[Any], str]

__all__ = ["MAX_DEPTH", "MAX_NODES", "Node", "apply_override", "did_you_mean", "parse_yaml"]

MAX_DEPTH = 64
MAX_NODES = 20_000
_TAG = "tag:yaml.org,2002:"
_PATTERNS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), "~nN\0"),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)$|^0x[0-9a-fA-F]+$|^0o[0-7]+$"), "-+0123456789"),
    (
        "float",
        re.compile(
            r"^[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"
            r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
        ),
        "-+0123456789.",
    ),
)
_CORE = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}


@dataclass
class Node:
    """One value of a configuration: a scalar, a list of nodes or a mapping of nodes, with the place where it stands.

    Attributes:
        value: ``str | int | float | bool | None``, a list of nodes, or a dictionary of nodes.
        place: ``file:line:column`` (both from 1), or ``--set a.b``.
        key_places: for a mapping, the place of each key.
    """

    value: str | int | float | bool | list[Node] | dict[str, Node] | None
    place: str
    key_places: dict[str, str] = field(default_factory=dict)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest of ``choices``, or an empty string."""
    close = difflib.get_close_matches(word, sorted(choices), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def parse_yaml(text: str, label: str, problems: list[str], fixed_place: str | None = None) -> Node | None:
    """The single document of ``text`` as a tree; None when it cannot be read at all.

    Args:
        text: the YAML text.
        label: the file's name, which starts every place.
        problems: receives one ``place: message`` line a problem; duplicate keys and bad tags leave the rest readable.
        fixed_place: place of every node when the text is no file (an override).
    """
    import yaml

    def at(mark: Any) -> str:
        if fixed_place is not None:
            return fixed_place
        return f"{label}:{mark.line + 1}:{mark.column + 1}" if mark is not None else f"{label}:1:1"

    try:
        loader_class = _core_loader()
        if not _is_bounded(text, loader_class, at, problems):
            return None
        root = yaml.compose(text, Loader=loader_class)
    except yaml.MarkedYAMLError as error:
        context = f" {error.context}" if error.context else ""
        problems.append(f"{at(error.problem_mark or error.context_mark)}: not YAML: {error.problem}{context}")
        return None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        place = fixed_place if fixed_place is not None else f"{label}:{line}:{column}"
        problems.append(f"{place}: not YAML: character {error.character!r} is not allowed")
        return None
    if root is None:
        return Node(None, at(None))
    return _Builder(at, problems).build(root)


@functools.cache
def _core_loader() -> type[yaml.SafeLoader]:
    """A SafeLoader whose plain scalars resolve by YAML 1.2's core schema."""
    import yaml

    class CoreLoader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    for name, pattern, first in _PATTERNS:
        CoreLoader.add_implicit_resolver(_TAG + name, pattern, ["" if c == "\0" else c for c in first])
    return CoreLoader


def _is_bounded(text: str, loader_class: type[yaml.SafeLoader], at: _At, problems: list[str]) -> bool:
    """Walk the parser's events, which never recurse, before anything that does."""
    import yaml

    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=loader_class)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            problems.append(f"{at(event.start_mark)}: nested deeper than {MAX_DEPTH} levels")
            return False
        if number > MAX_NODES:
            problems.append(f"{at(event.start_mark)}: more than {MAX_NODES} values")
            return False
    return True


class _Builder:
    """Turns YAML nodes into ``Node``; counts what aliases expand to: a small file cannot become a large tree."""

    def __init__(self, at: _At, problems: list[str]) -> None:
        self.at = at
        self.problems = problems
        self.num_nodes = 0
        self.open: set[int] = set()

    def build(self, node: yaml.Node) -> Node | None:
        """The tree below ``node``, or None when its aliases recurse or expand too far."""
        try:
            return self._node(node)
        except _TooLargeError as error:
            self.problems.append(str(error))
            return None

    def _node(self, node: yaml.Node) -> Node:
        import yaml

        place = self.at(node.start_mark)
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            raise _TooLargeError(f"{place}: aliases expand to more than {MAX_NODES} values")
        if id(node) in self.open:
            raise _TooLargeError(f"{place}: an alias stands inside the value that it names")
        if node.tag not in _CORE:
            tag = node.tag.replace(_TAG, "!!")
            self.problems.append(f"{place}: tag {tag!r} is not allowed")
            return Node(None, place)
        if isinstance(node, yaml.ScalarNode):
            return Node(self._scalar(node, place), place)
        self.open.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            built = Node([self._node(child) for child in node.value], place)
        else:
            built = self._mapping(node, place)
        self.open.discard(id(node))
        return built

    def _mapping(self, node: yaml.Node, place: str) -> Node:
        import yaml

        children: dict[str, Node] = {}
        key_places: dict[str, str] = {}
        for key_node, value_node in node.value:
            key_place = self.at(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                shown = repr(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "a collection"
                self.problems.append(f"{key_place}: a key must be a string, got {shown} (quote it)")
                continue
            key = str(key_node.value)
            if key == "<<":
                self.problems.append(
                    f"{key_place}: merge keys are not supported; write them out or alias the whole value"
                )
                continue
            value = self._node(value_node)
            if key in children:
                self.problems.append(f"{key_place}: duplicate key '{key}'; first at {key_places[key]}")
                continue
            children[key] = value
            key_places[key] = key_place
        return Node(children, place, key_places)

    def _scalar(self, node: yaml.Node, place: str) -> str | int | float | bool | None:
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        try:
            return _SCALARS[kind](text)
        except (ValueError, KeyError) as error:
            shown = text if len(text) <= 40 else text[:40] + "..."
            self.problems.append(f"{place}: {shown!r} is no {kind}: {error}")
            return None


class _TooLargeError(Exception):
    """The tree would be unbounded."""


def _read_null(text: str) -> None:
    if not _PATTERNS[0][1].match(text):
        raise ValueError("write null")


def _read_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _read_int(text: str) -> int:
    if len(text) > 40:
        raise ValueError("more than 40 digits")
    return int(text.replace("_", ""), 0)


def _read_float(text: str) -> float:
    number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise ValueError("numbers must be finite")
    return number


def _read_str(text: str) -> str:
    """Escaped surrogate pairs, as JSON prints them, become the characters that they mean; lone ones are no text."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


_SCALARS: dict[str, Callable[[str], str | int | float | bool | None]] = {
    "null": _read_null,
    "bool": _read_bool,
    "int": _read_int,
    "float": _read_float,
    "str": _read_str,
}


def apply_override(root: Node, override: str, problems: list[str]) -> None:
    """Set one ``a.b=value`` in the tree ``root``; the value is YAML, and a number in the path indexes a list.

    Problems go to ``problems`` with the place ``--set a.b``; unknown keys are found later, together with the file's.
    """
    path, equals, text = override.partition("=")
    keys = path.split(".")
    place = f"--set {path}"
    if not equals or not all(key.strip() for key in keys):
        problems.append(f"--set {override}: expected key.path=value")
        return
    value = parse_yaml(text, place, problems, fixed_place=place)
    if value is None:
        return
    node = root
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if node.value is None:
            node.value = {}
        if isinstance(node.value, dict):
            child = value if last else node.value.get(key, Node({}, place))
            node.value[key] = child
            if last or key not in node.key_places:
                node.key_places[key] = place
        elif isinstance(node.value, list) and key.isdigit() and int(key) < len(node.value):
            child = value if last else node.value[int(key)]
            node.value[int(key)] = child
        else:
            above = ".".join(keys[:depth])
            problems.append(f"{place}: '{above}' has nothing called '{key}' that could be set")
            return
        node = child
