"""Work of a test as an ordinary user, also where the tests run as root, and on kernels that can less."""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from train.evaluate import execute
from train.evaluate.limited_calls import MACHINES, install, refuse, start

__all__ = ["as_ordinary_user", "kernel_without", "kernel_without_filters"]

_USER = 1234
_FILES = (
    "train/__init__.py", "train/evaluate/__init__.py", "train/evaluate/libc.py", "train/evaluate/limited_calls.py",
    "train/evaluate/limited_child.py", "train/evaluate/limited_files.py",
)  # fmt: skip


@functools.cache
def _python() -> str:
    """An interpreter that an ordinary user can start: root's own may lie where nobody else can read."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        words = [path, "-I", "-c", "import sys, ctypes, runpy; assert sys.version_info >= (3, 11)"]
        try:
            if subprocess.run(words, user=_USER, group=_USER, extra_groups=[], cwd="/", check=False).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("no Python 3.11 that an ordinary user could start")


def as_ordinary_user(work: Callable[[Path], Any]) -> Any:
    """What ``work`` returns in a forked process of a user without any rights, JSON-able.

    Args:
        work: called with a folder of that user's own.
    """
    root = os.geteuid() == 0
    python = _python() if root else sys.executable
    with tempfile.TemporaryDirectory(prefix="tokenreel-user-") as name:
        folder = Path(name)
        package, home = folder / "package", folder / "home"
        for file in _FILES:
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(execute.ROOT / file, package / file)
        home.mkdir(mode=0o700)
        if root:
            folder.chmod(0o755)
            os.chown(home, _USER, _USER)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _in_child(work, home, (python, package if root else execute.ROOT), writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = json.loads(pipe.read() or '{"error": "it said nothing"}')
        os.waitpid(child, 0)
    assert "error" not in said, said["error"]
    return said["value"]


def _in_child(work: Callable[[Path], Any], home: Path, python: tuple[str, Path], writing: int) -> None:
    try:
        os.chdir(home)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(_USER)
            os.setuid(_USER)
        assert os.geteuid() != 0
        sys.executable, execute.ROOT = python
        tempfile.tempdir = str(home)
        said = {"value": work(home)}
    except BaseException:
        said = {"error": traceback.format_exc()}
    with os.fdopen(writing, "w") as pipe:
        json.dump(said, pipe)
    os._exit(0)


def kernel_without(calls: Sequence[int], error: int) -> None:
    """From now on this process and its children are on a kernel that answers these system calls with an error."""
    install([*start(MACHINES[platform.machine()][1]), *refuse(calls, error)])


def kernel_without_filters(error: int) -> None:
    """From now on this process and its children are on a kernel that has no seccomp."""
    prctl = {"x86_64": 157, "aarch64": 167}[platform.machine()]
    option_is_seccomp = [(0x15, 0, 3, prctl), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (0x06, 0, 0, 0x50000 | error)]
    install([*start(MACHINES[platform.machine()][1]), *option_is_seccomp])
