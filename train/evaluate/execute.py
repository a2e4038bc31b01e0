"""Run a program that a model wrote, in a process of its own with little to do harm with.

It has next to no environment, an empty folder, no standard streams, no rights of root (root's program becomes
``nobody``), and limits on time, memory, files and processes. The kernel holds it, whoever started it, with nothing to
install: no system call that reaches another process, a socket, another program, or rights and owners of files is let
through (seccomp); of files it reads those of Python and the system and writes in its folder alone (Landlock, Linux
5.13). On a kernel without Landlock it writes no file at all, and can read what its user can. Where calls cannot be
filtered (not Linux, or neither x86_64 nor aarch64) nothing is run: :func:`need_limits` refuses.

Not held: size and times of a path that it guesses, Python's packages and what lies in ``/usr`` are seen; its folder may
fill the disk for as long as it runs; it may say "passed" without having passed; and the kernel may have holes. It is a
barrier against accidents and common harm, not a virtual machine. So it is off by default.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loader.errors import RefusedError

from .clear_folder import clear_folder

__all__ = ["ROOT", "Limits", "need_limits", "passes"]

ROOT = Path(__file__).parents[2]
"""The folder of the package ``train``."""
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from train.evaluate.limited_child import run; "
    "del sys.path[0]; run(*sys.argv[2:])"
)
_HARMLESS = (
    "import bisect, collections, copy, datetime, hashlib, heapq, itertools, json, math, random, re, string, typing"
)
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}  # no thread may be started, and numpy gives up where it would
_PASSED = b"passed"


@dataclass(frozen=True)
class Limits:
    """Of one program: seconds by the clock and of the processor, bytes of memory and of a file, open files, files and
    folders left behind.
    """

    clock_s: float = 20.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    open_files: int = 32
    entries: int = 1000

    def to_json(self) -> str:
        """As ``limited_child`` takes them. No further process may be started."""
        return json.dumps(
            {
                "RLIMIT_CPU": self.cpu_s,
                "RLIMIT_AS": self.memory_bytes,
                "RLIMIT_FSIZE": self.file_bytes,
                "RLIMIT_NOFILE": self.open_files,
                "RLIMIT_NPROC": 0,
                "RLIMIT_CORE": 0,
            }
        )


_PATIENT = Limits(clock_s=120.0)  # many processes begin at once, from a cold disk
_UNENDED = f"a harmless one did not end in {_PATIENT.clock_s:.0f} s"


def passes(program: str, limits: Limits | None = None) -> bool:
    """Whether a program runs to its last line within the limits; leaving early in any way counts as failed, and so does
    a program that could not be held, which is not run.
    """
    return _run(program, limits or Limits(), subprocess.DEVNULL)


def need_limits() -> None:
    """Find out with a harmless program whether programs can be run and held on this machine.

    Raises:
        RefusedError: ``TR-EVALUATE-CODE``: they cannot; it says why.
    """
    with tempfile.TemporaryFile() as told:
        if _run(_HARMLESS, _PATIENT, told.fileno()):
            return
        told.seek(0)
        lines = told.read().decode("utf-8", "replace").strip().splitlines()
    raise RefusedError(
        "TR-EVALUATE-CODE", f"programs that a model writes cannot be held here: {lines[-1] if lines else _UNENDED}",
        "evaluate.execute_code", "Linux on x86_64 or aarch64, with filters of system calls (seccomp)",
        "the same without execute_code: the task is then not scored",
    )  # fmt: skip


def _run(program: str, limits: Limits, errors: int) -> bool:
    top = Path(tempfile.mkdtemp(prefix="tokenreel-code-"))
    folder = top / "work"
    folder.mkdir()
    if os.geteuid() == 0:  # the child is somebody else
        top.chmod(0o711)
        folder.chmod(0o777)
    try:
        passed = _run_in(folder, program, limits, errors)
    finally:
        try:
            left = clear_folder(top, folder.name)
            top.rmdir()
        except OSError:  # the program's doing: its own loss, not the evaluation's
            left = limits.entries + 1
    return passed and left <= limits.entries


def _run_in(folder: Path, program: str, limits: Limits, errors: int) -> bool:
    reading, writing = os.pipe()
    path = folder / "program.py"
    try:
        path.write_text(f"{program}\n\nimport os as _os\n_os.write({writing}, {_PASSED!r})\n", encoding="utf-8")
        path.chmod(0o644)
        child = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _START, str(ROOT), limits.to_json(), str(path)],
            env=_ENVIRONMENT, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            pass_fds=(writing,), start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(limits.clock_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
    finally:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
    return code == 0 and said == _PASSED


def _end(child: subprocess.Popen[bytes]) -> None:
    """End whatever of the child's session is left."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()
