"""Budgets of DESIGN 3, one test a rule; the tail is what goes bad, so the tail is what is measured."""

from __future__ import annotations

import ast
import collections
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("loader", "dataprep", "train")
ENVIRONMENT_FILES = {"loader/settings.py", "dataprep/settings.py", "train/launch.py"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CLASS_LINES = 250
MAX_PARAMETERS = 6

FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Parsed when the first test runs: each test process collects this file, and one runs it."""
    return {name: ast.parse((ROOT / name).read_text(encoding="utf-8")) for name in NAMES}


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    return [(name, node) for name, tree in trees().items() for node in ast.walk(tree)]


def size_of(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_click_command(node: Function) -> bool:
    """A verb's parameters are its options: click fixes their number, not a design."""
    return any(ast.unparse(decorator).startswith("click.") for decorator in node.decorator_list)


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Public top-level classes and functions, and the public methods of public classes."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, Function) and not member.name.startswith("_"):
                        yield f"{node.name}.{member.name}", member


def test_there_is_something_to_measure() -> None:
    assert len(FILES) > 30
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)


def test_files_are_short() -> None:
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in NAMES}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    found = {f"{name}:{node.name}": size_of(node) for name, node in nodes() if isinstance(node, Function)}
    assert {key: size for key, size in found.items() if size > MAX_FUNCTION_LINES} == {}


def test_classes_are_short() -> None:
    found = {f"{name}:{node.name}": size_of(node) for name, node in nodes() if isinstance(node, ast.ClassDef)}
    assert {key: size for key, size in found.items() if size > MAX_CLASS_LINES} == {}


def test_functions_take_few_parameters() -> None:
    found = {}
    for name, node in nodes():
        if isinstance(node, Function) and not is_click_command(node):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found[f"{name}:{node.name}"] = sum(argument.arg not in ("self", "cls") for argument in arguments)
    assert {key: count for key, count in found.items() if count > MAX_PARAMETERS} == {}


def test_public_names_are_documented() -> None:
    missing = [name for name, tree in trees().items() if tree.body and ast.get_docstring(tree) is None]
    missing += [
        f"{name}:{what}"
        for name, tree in trees().items()
        for what, node in public_definitions(tree)
        if ast.get_docstring(node) is None
    ]
    assert missing == []


def test_no_globals_and_no_environment_outside_three_files() -> None:
    found = []
    for name, node in nodes():
        if isinstance(node, ast.Global):
            found.append(f"{name}:{node.lineno}: global {', '.join(node.names)}")
        if name in ENVIRONMENT_FILES:
            continue
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv"):
            found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [
                f"{name}:{node.lineno}: {a.name}" for a in node.names if a.name in ("environ", "getenv", "putenv")
            ]
    assert found == []


def test_nothing_is_unpickled_or_evaluated() -> None:
    forbidden = {
        "eval",
        "exec",
        "pickle.load",
        "pickle.loads",
        "yaml.load",
        "yaml.unsafe_load",
        "marshal.loads",
        "dill.loads",
    }
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node.func)}"
        for name, node in nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in forbidden
    ]
    for name, node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            safe = any(k.arg == "weights_only" and getattr(k.value, "value", None) is True for k in node.keywords)
            found += [] if safe else [f"{name}:{node.lineno}: torch.load without weights_only=True"]
    assert found == []


def declared_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def sort_key(name: str) -> tuple[int, str]:
    """The order that ruff keeps (RUF022): CONSTANTS, Classes, functions."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


@pytest.mark.parametrize("name", NAMES)
def test_all_is_sorted_and_true(name: str) -> None:
    tree = trees()[name]
    definitions = {
        node.name for node in tree.body if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
    }
    declared = declared_names(tree)
    if declared is None:
        assert definitions == set(), f"{name} defines public names and has no __all__"
        return
    assert declared == sorted(declared, key=sort_key)
    assert len(set(declared)) == len(declared)
    assert definitions <= set(declared), f"{name}: not in __all__: {sorted(definitions - set(declared))}"
    module_name = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = importlib.import_module(module_name)
    assert [missing for missing in declared if not hasattr(module, missing)] == []


def test_test_files_are_found_by_every_import_mode() -> None:
    names = collections.Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name: count for name, count in names.items() if count > 1} == {}
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_relative_imports_inside_a_package_and_absolute_ones_across() -> None:
    found = []
    for name, node in nodes():
        if isinstance(node, ast.ImportFrom):
            package = name.split("/", 1)[0]
            inside = node.level == 0 and (node.module or "").split(".", 1)[0] == package
            climbs = node.level >= len(name.split("/"))
            if inside or climbs:
                found.append(f"{name}:{node.lineno}: from {'.' * node.level}{node.module or ''}")
    assert found == []
