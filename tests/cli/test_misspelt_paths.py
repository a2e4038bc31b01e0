"""Paths that do not exist: each verb says so, with the closest name there is, and the command to type next works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.runs import make_run, train

from loader.cli import main
from loader.errors import ConfigError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with data/example, and the id of a document of it."""
    made = make_dataset(tmp_path / "made", DatasetSpec(documents={"web": 12}, seq_len=32))
    (tmp_path / "data").mkdir()
    made.path.rename(tmp_path / "data" / "example")
    (tmp_path / "document").write_text(f"{next(iter(made.documents)):016x}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == ConfigError.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def next_command(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("  next: ")]
    return shlex.split(line.removeprefix("  next: "))


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "data/exmaple", "--no-shards", "--json"],
        ["inspect", "dta/example"],
        ["verify", "data/exampel/", "--quiet"],
        ["diff", "data/exmaple", "data/example", "--examples", "2"],
        ["diff", "data/example", "data/exmaple"],
        ["locate", "data/exmaple", "--document", "DOCUMENT"],
    ],
)
def test_the_closest_name_is_shown_and_the_next_command_works(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    words = [(place / "document").read_text() if word == "DOCUMENT" else word for word in words]
    shown = told(capsys, *(word for word in words if word != "--json"))
    assert shown.startswith("TR-PATH-MISSING: this does not exist: ")
    assert "did you mean 'data/example'?" in shown
    command = next_command(shown)
    assert command[:2] == ["tokenreel", words[0]]
    assert {word for word in words if word.startswith("--")} - {"--json"} <= set(command)
    assert main(command[1:]) == 0


def test_the_verbs_of_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_dataset(place / "again", DatasetSpec(documents={"web": 12}, seq_len=32))
    paths = make_run(place / "again", [made])
    train(paths, 2)
    name = paths.root.name
    wrong = str(paths.root.parent / f"{name}x")
    for verb, *more in (
        ["history"],
        ["inspect"],
        ["verify"],
        ["report", "--out", "page.html"],
        ["skip", "--source", "web", "--plan"],
        ["locate", "--step", "1"],
    ):
        shown = told(capsys, verb, wrong, *more)
        assert shown.startswith("TR-PATH-MISSING: ")
        assert f"did you mean {str(paths.root)!r}?" in shown
        assert main(next_command(shown)[1:]) == 0
        capsys.readouterr()
    assert not Path(wrong).exists()


def test_without_a_close_name_the_folder_is_listed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "inspect", "data/zebra")
    assert "'data' holds no 'zebra'\n" in shown
    assert next_command(shown) == ["ls", "data"]
    shown = told(capsys, "verify", "/nowhere-at-all/of/this")
    assert ("'/' holds no 'nowhere-at-all'" in shown, next_command(shown)) == (True, ["ls", "/"])
    assert "TR-PATH-KIND" in told(capsys, "inspect", "data"), "it is there, and neither"


@pytest.mark.parametrize(("verb", "name"), [("build", "build.yaml"), ("train", "train.yaml")])
def test_configurations(place: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str) -> None:
    (place / "my jobs").mkdir()
    (place / "my jobs" / name).write_text("nothing: 1\n")
    wrong = name.replace("il", "li").replace("ain", "ian")
    shown = told(capsys, verb, f"./my jobs/{wrong}", "--set", "seed=3")
    assert shown.startswith("TR-CONFIG-UNREADABLE: ")
    assert f"did you mean 'my jobs/{name}'?" in shown
    assert next_command(shown) == ["tokenreel", verb, f"my jobs/{name}", "--set", "seed=3"]
    assert next_command(told(capsys, verb, f"my jobs/zebra{wrong[-5:]}.toml")) == ["ls", "my jobs"]


@pytest.mark.parametrize("verb", ["inspect", "verify", "report", "diff"])
def test_a_url_with_one_slash_is_told_without_being_repeated(
    place: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    shown = told(capsys, verb, "http:/user:hunter22@host/data", *(["data/example"] if verb == "diff" else []))
    assert shown.startswith("TR-STORE-URL: a URL with one slash")
    assert "hunter22" not in shown


def test_a_report_makes_no_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(make_run(place, [make_dataset(place / "again", DatasetSpec(documents={"web": 12}, seq_len=32))]).root)
    shown = told(capsys, "report", run, "--out", "no such/x.html")
    assert "TR-REPORT-TARGET: no folder 'no such'" in shown
    assert next_command(shown) == ["mkdir", "-p", "no such"]
    assert not (place / "no such").exists()
    (place / "no such").mkdir()
    assert main(["report", run, "--out", "no such/x.html"]) == 0
    assert (place / "no such" / "x.html").is_file()


def test_samples_want_a_source(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_dataset(place / "again", DatasetSpec(documents={"web": 12}, seq_len=32))
    paths = make_run(place / "again", [made])
    shown = told(capsys, "skip", str(paths.root), "--samples", "0:3")
    assert "TR-SKIP-QUESTION: --samples without --source" in shown
    assert "given: nothing" not in shown
    assert "given: --steps, --source" in told(capsys, "skip", str(paths.root), "--steps", "1:2", "--source", "web")
