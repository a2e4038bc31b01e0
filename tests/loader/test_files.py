"""Files of writers that were killed go, those of a writer that lives stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from loader.files import TEMPORARY_PREFIX, remove_stale_temporaries


def left_by(folder: Path, pid: int) -> Path:
    path = folder / f"{TEMPORARY_PREFIX}{pid}-found.json"
    path.touch()
    return path


def test_what_a_process_left_that_ended_goes_though_nobody_waited_for_it(tmp_path: Path) -> None:
    """An orphan's parent may take minutes to wait for it: /proc still has it."""
    lives = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{ended.pid}").exists()
        theirs, own, gone = left_by(tmp_path, lives.pid), left_by(tmp_path, os.getpid()), left_by(tmp_path, ended.pid)
        assert remove_stale_temporaries(tmp_path) == sorted([own, gone])
        assert theirs.exists()
    finally:
        lives.communicate(b"\n")
        ended.wait()
