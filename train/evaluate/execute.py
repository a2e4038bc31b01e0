"""Run a program that a model wrote, in a process of its own with little to do harm with.

It has no environment, an empty folder, no standard streams, no network (Linux, where user namespaces are allowed), no
rights of root, and limits on time, memory, written files, open files and processes. It can still read what the user
``nobody``, or the one who started it, can read: this holds off accidents, not an attacker. So it is off by default.
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

__all__ = ["Limits", "passes"]

_CHILD = Path(__file__).with_name("limited_child.py")
_PASSED = b"passed"


@dataclass(frozen=True)
class Limits:
    """Of one program: seconds by the clock and of the processor, bytes of memory and of a file, open files."""

    clock_s: float = 20.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    open_files: int = 32

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


def passes(program: str, limits: Limits | None = None) -> bool:
    """Whether a program runs to its last line within the limits; leaving early in any way counts as failed."""
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="tokenreel-code-") as folder:
        path = Path(folder) / "program.py"
        reading, writing = os.pipe()
        path.write_text(f"{program}\n\nimport os as _os\n_os.write({writing}, {_PASSED!r})\n", encoding="utf-8")
        if os.geteuid() == 0:  # the child is somebody else
            os.chmod(folder, 0o777)  # noqa: S103 - an empty folder for one program
            os.chmod(path, 0o644)
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", str(_CHILD), limits.to_json(), str(path)],
                env={}, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
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
