"""The frame around the verbs: exit codes, forms of an error, shadowed packages, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from loader import cli
from loader.cli_options import CommonOptions, Output, common_options, output_options
from loader.errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError, file_system_error

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Put a function behind the verb `train` for one test."""

    def install(function: Callable[..., Any]) -> None:
        command = function if isinstance(function, click.Command) else click.command()(function)
        monkeypatch.setattr(cli._LazyGroup, "get_command", lambda self, ctx, name: command)

    return install


@pytest.mark.parametrize(("kind", "code"), [(JobError, 1), (ConfigError, 2), (DamageError, 3), (RefusedError, 4)])
def test_each_error_has_its_exit_code(
    kind: type[TokenreelError], code: int, verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise kind("TR-TEST-FAILED", "it broke", "here:1", "that it holds", "tokenreel verify x")

    verb(fail)
    assert cli.main(["train"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "TR-TEST-FAILED: it broke\n  at: here:1\n  expected: that it holds\n  next: tokenreel verify x\n"


def test_an_error_is_one_json_document_when_asked(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @output_options
    def fail(output: Output) -> None:
        assert output.json
        raise DamageError("TR-TEST-FAILED", "it broke", "here:1")

    verb(fail)
    assert cli.main(["train", "--json"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {
            "code": "TR-TEST-FAILED",
            "message": "it broke",
            "place": "here:1",
            "expected": None,
            "next_command": None,
            "exit_code": 3,
        }
    }


def test_an_unexpected_error_is_one_line_unless_debugged(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("so it goes")

    verb(fail)
    assert cli.main(["train"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("TR-INTERNAL: unexpected ZeroDivisionError: so it goes\n  at: test_command_line.py:")
    assert "Traceback" not in err
    assert cli.main(["--debug", "train"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [FileExistsError, NotADirectoryError, PermissionError, FileNotFoundError])
def test_what_the_file_system_refuses_is_named_by_its_place(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str], kind: type[OSError]
) -> None:
    number = {FileExistsError: 17, NotADirectoryError: 20, PermissionError: 13, FileNotFoundError: 2}[kind]

    def fail() -> None:
        raise kind(number, "refused", "/some/where")

    verb(fail)
    assert cli.main(["train"]) == 1
    assert capsys.readouterr().err.startswith("TR-FILE-SYSTEM: the file system refuses: refused\n  at: /some/where\n")


def test_an_error_of_a_connection_is_none_of_the_file_system() -> None:
    assert file_system_error(ConnectionResetError(104, "reset")) is None
    assert file_system_error(OSError("without a number")) is None


def test_results_go_to_stdout_and_remarks_to_stderr(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[CommonOptions] = []

    @click.command()
    @common_options
    def work(common: CommonOptions) -> None:
        seen.append(common)
        with common.output.progress("working", 2, "steps") as progress:
            progress.advance(1, tokens=5)
        common.output.note("a remark")
        common.output.result({"answer": "zwölf"}, lambda: "twelve")

    verb(work)
    assert cli.main(["train", "--set", "a=1", "--set", "b.c=2", "--workers", "3"]) == 0
    assert capsys.readouterr() == ("twelve\n", "a remark\n")
    assert cli.main(["train", "--json", "--quiet", "--plan"]) == 0
    assert capsys.readouterr() == ('{"answer": "zwölf"}\n', "")
    assert seen[0].all_overrides() == ("a=1", "b.c=2", "run.workers=3")
    assert (seen[0].plan, seen[1].plan, seen[1].all_overrides()) == (False, True, ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tran"], "no verb 'tran'; did you mean 'train'?"),
        (["frobnicate"], "no verb 'frobnicate'"),
        (["--nonsense"], "No such option"),
        ([], ""),
    ],
)
def test_wrong_usage_exits_with_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_help_lists_every_verb_and_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in cli.VERBS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tokenreel, version 0")


def test_every_verb_exists_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in cli.VERBS:
        assert cli.main([verb, "--help"]) == 0, verb
        assert f"Usage: tokenreel {verb} " in capsys.readouterr().out


def run_cli(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loader.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_users_own_train_py_is_named_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong file ran')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run_cli(tmp_path, "--help", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("TR-IMPORT-SHADOWED: `train` is not tokenreel's own package\n")
    assert str(tmp_path / "train.py") in done.stderr
    assert "unset PYTHONPATH" in done.stderr


def test_a_users_files_beside_the_command_do_no_harm(tmp_path: Path) -> None:
    for name in ("train.py", "loader.py", "dataprep.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file ran')")
    done = run_cli(tmp_path, "--help", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    code = (
        "import sys, time, click\nfrom loader import cli\n"
        "@click.command()\ndef wait() -> None:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "cli._LazyGroup.get_command = lambda self, ctx, name: wait\nsys.exit(cli.main(['train']))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -c \"import sys; from loader.cli import main; sys.exit(main(['--help']))\" | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
