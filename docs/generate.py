"""Write the pages that are made from the code: `python docs/generate.py` (or `make docs`); a test compares them.

cli.md from every verb's own help, config.md from the configuration dataclasses, errors.md from the calls that raise.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
HEAD = "<!-- Made by docs/generate.py; edit the code, then run `make docs`. -->\n\n"
JOBS = {
    "build": ("Raw documents to a dataset: `tokenreel dedup | mix | build CONFIG`", "dataprep.config:BuildConfig"),
    "train": ("Training: `tokenreel train CONFIG`", "train.config:TrainConfig"),
}
ERROR_CLASSES = {"TokenreelError": 1, "JobError": 1, "ConfigError": 2, "DamageError": 3, "RefusedError": 4}

CONFIG_INTRO = """\
One YAML file a job. Every problem is reported at once as `file:line:column: key: message`; unknown and duplicate keys
are errors. `--set a.b=c` overrides a key (the value is YAML, a number in the path indexes a list). Plain scalars follow
YAML 1.2: `yes` and `on` are strings, `3e-4` is a number. Everything but the `run` block enters the configuration's
digest. Tested examples lie in [configs/](../configs).
"""
ERRORS_INTRO = """\
# Error codes

An error is a stable code, a sentence, the place, what was expected, and the next command to type; with `--json` it is
one document, `{"error": {...}}`. Scripts may match on the code and on the exit code: 1 failed, 2 usage or
configuration, 3 damage found, 4 refused (intact, but not what this command may work on).

"""


def command_line() -> str:
    """Every verb's help, as it is printed at a width of 100."""
    from loader import cli

    def help_of(command: click.Command, name: str, parent: click.Context | None) -> str:
        settings = {**cli.group.context_settings, "terminal_width": 100, "max_content_width": 100}
        context = click.Context(command, info_name=name, parent=parent, **settings)
        return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())

    top = click.Context(cli.group, info_name="tokenreel")
    parts = ["# Command line\n", _fenced(help_of(cli.group, "tokenreel", None))]
    parts.append(
        "Results go to stdout (one JSON document with `--json`), progress and remarks to stderr. Exit codes: 0 done or "
        "nothing to do, 1 failed, 2 usage or configuration, 3 damage found, 4 refused, 130 interrupted; "
        "[errors.md](errors.md) lists the error codes.\n"
    )
    for verb in cli.VERBS:
        command = cli.group.get_command(top, verb)
        assert command is not None
        parts += [f"## {verb}\n", _fenced(help_of(command, verb, top))]
    return HEAD + "\n".join(parts)


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def configuration() -> str:
    """Every key of every configuration file: type, default, and the dataclass's own words."""
    parts = [
        "# Configuration\n",
        CONFIG_INTRO,
    ]
    for heading, name in JOBS.values():
        module_name, _, class_name = name.partition(":")
        parts.append(f"## {heading}\n")
        for path, cls in _blocks(getattr(importlib.import_module(module_name), class_name), ""):
            parts += [f"### {path or 'the file'}\n", _prose(cls), _keys(cls)]
    return HEAD + "\n".join(parts)


def _blocks(cls: type[Any], path: str) -> Iterator[tuple[str, type[Any]]]:
    """(key path, dataclass) of a configuration, in the order of the file."""
    yield path, cls
    for name, annotation in typing.get_type_hints(cls).items():
        for found, suffix in _classes_in(annotation):
            yield from _blocks(found, f"{path}.{name}{suffix}".lstrip("."))


def _classes_in(annotation: Any) -> Iterator[tuple[type[Any], str]]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        yield annotation, ""
        return
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    suffix = (
        ""
        if origin in (typing.Union, types.UnionType)
        else ".NAME"
        if len(members) == 2 and members[0] is str
        else "[]"
    )
    for member in members:
        for found, inner in _classes_in(member):
            yield found, suffix + inner


def _prose(cls: type[Any]) -> str:
    """The class's docstring, its attribute section as a list.

    Raises:
        ValueError: a line of the section begins no attribute, and is not indented as what goes on with one.
    """
    text, _, attributes = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    lines = inspect.cleandoc(attributes.split("\n\n")[0]).splitlines() if attributes else []
    keys = {field.name for field in dataclasses.fields(cls)}
    for line in lines:
        names, colon, _ = line.partition(":")
        if not line.startswith(" ") and not (colon and keys.issuperset(names.split(", "))):
            raise ValueError(
                f"{cls.__module__}.{cls.__qualname__}: indent {line!r}, or begin it with a key and a colon"
            )
    items = [f"- {line}" if not line.startswith(" ") else f"  {line.strip()}" for line in lines]
    return "\n".join([text.strip(), "", *items, ""] if items else [text.strip(), ""])


def _keys(cls: type[Any]) -> str:
    hints = typing.get_type_hints(cls)
    rows = ["| key | type | default |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        rows.append(f"| `{field.name}` | {_type(hints[field.name])} | {_default(field)} |")
    return "\n".join([*rows, ""])


def _type(annotation: Any) -> str:
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " \\| ".join(f"`{member}`" for member in members)
    if origin in (typing.Union, types.UnionType):
        return " \\| ".join(_type(member) for member in members)
    if annotation is type(None):
        return "`null`"
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return "block"
    if origin in (tuple, list):
        inner = [_type(member) for member in members if member is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in members or origin is list else f"list ({', '.join(inner)})"
    if len(members) == 2:
        return f"mapping of name to {_type(members[1])}"
    return {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}.get(annotation.__name__, "any")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if dataclasses.is_dataclass(value):
        return "see below"
    if isinstance(value, list | tuple | dict):
        return f"`{list(value) if not isinstance(value, dict) else value}`"
    return "`null`" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def errors() -> str:
    """Every error code that the packages raise, with exit code, message and files."""
    found: dict[str, tuple[int, str, set[str]]] = {}
    for package in ("loader", "dataprep", "train"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for code, exit_code, message in _raised(ast.parse(path.read_text(encoding="utf-8"))):
                known = found.setdefault(code, (exit_code, message, set()))
                known[2].add(path.relative_to(ROOT).as_posix())
                if not known[1] and message:
                    found[code] = (exit_code, message, known[2])
    rows = ["| code | exit | says | raised in |", "|---|---|---|---|"]
    for code, (exit_code, message, files) in sorted(found.items()):
        rows.append(f"| `{code}` | {exit_code} | {message} | {', '.join(f'`{name}`' for name in sorted(files))} |")
    return HEAD + (ERRORS_INTRO) + "\n".join([*rows, ""])


def _raised(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """(code, exit code, message) of calls whose first argument is an error code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            code = node.args[0].value
            if isinstance(code, str) and code.startswith("TR-") and code.count("-") >= 2:
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                message = _message(node.args[1]) if len(node.args) > 1 else ""
                yield code, ERROR_CLASSES.get(name, 3), message


def _message(node: ast.expr) -> str:
    """A message with its fields as `…`."""
    if isinstance(node, ast.Constant):
        text = str(node.value)
    elif isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    else:
        return ""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


PAGES = {"cli.md": command_line, "config.md": configuration, "errors.md": errors}

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
