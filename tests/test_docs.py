"""Generated pages are current, links lead somewhere, sessions are true, every shipped configuration loads."""

from __future__ import annotations

import doctest
import importlib.util
import re
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep.config import BuildConfig
from loader.settings import load_config
from train.config import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


@pytest.fixture(scope="module")
def generate() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "config.md", "errors.md"])
def test_generated_pages_are_current(name: str, generate: types.ModuleType) -> None:
    stored = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert stored == generate.PAGES[name](), "run `make docs`"


@dataclass(frozen=True)
class _Broken:
    """A block.

    Attributes:
        patience: how long to wait, which is a long story that goes on
        source. and: ends here.
    """

    patience: int = 1


def test_a_bullet_that_begins_in_mid_sentence_is_refused(generate: types.ModuleType) -> None:
    with pytest.raises(ValueError, match=r"_Broken: indent 'source\. and: ends here"):
        generate._prose(_Broken)
    bullets = re.findall(r"^- (.*)", generate.configuration(), re.MULTILINE)
    assert len(bullets) > 100
    assert [bullet for bullet in bullets if not re.match(r"[a-z_0-9]+(, [a-z_0-9]+)*: ", bullet)] == []


def test_every_error_code_has_one_exit_code_and_the_right_form(generate: types.ModuleType) -> None:
    codes = re.findall(r"^\| `([^`]+)` \| (\d)", generate.errors(), re.MULTILINE)
    assert len(codes) > 50
    assert [code for code, _ in codes if not re.fullmatch(r"TR-[A-Z]+-[A-Z]+(-[A-Z]+)*", code)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
    for target in (first or second for first, second in targets):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sessions_in_the_docs_are_true(page: Path) -> None:
    results = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_every_benchmark_is_described() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    runnable = {
        path.name for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
    }
    assert set(re.findall(r"^\| `benchmarks/([a-z_]+\.py)`", page, re.MULTILINE)) == runnable


def test_configurations_are_shipped() -> None:
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_shipped_configuration_loads(path: Path) -> None:
    is_training = re.search(r"^data:", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
    loaded = load_config(path, TrainConfig) if is_training else load_config(path, BuildConfig)
    assert loaded.config.version == 1
