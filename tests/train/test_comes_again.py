"""What of a training process's failures its launcher is told to be final."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loader.errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError
from train.failure import comes_again

ROOT = Path(__file__).parents[2]


def _unwritten(number: int) -> JobError:
    """As the saver raises it."""
    error = JobError("TR-CHECKPOINT-WRITE", os.strerror(number))
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JobError("TR-SPIKE-GIVEN-UP", "it still spikes"), True),
        (_unwritten(errno.ENOSPC), True),
        (_unwritten(errno.EROFS), True),
        (_unwritten(errno.ESTALE), False),
        (_unwritten(errno.EIO), False),
        (ConfigError("TR-CONFIG-INVALID", "a key"), True),
        (DamageError("TR-CHECKPOINT-NONE", "none"), True),
        (RefusedError("TR-RUN-DIFFERS", "another"), True),
        (JobError("TR-WORLD-PEER", "gone"), False),
        (JobError("TR-CHECKPOINT-STUCK", "no end"), False),
    ],
)
def test_what_comes_again(error: TokenreelError, expected: bool) -> None:
    assert comes_again(error) is expected


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_launcher_that_started_it_is_told_and_no_other(tmp_path: Path, is_ours: bool) -> None:
    final = tmp_path / "final"
    launcher = str(os.getpid() if is_ours else 1)
    environment = {**os.environ, "TOKENREEL_FINAL": str(final), "TOKENREEL_LAUNCHER": launcher}
    command = [sys.executable, "-c", "from train.launch import tell_final; tell_final()"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=60)
    assert final.exists() is is_ours
