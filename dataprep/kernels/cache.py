"""Where compiled kernels go when the usual folder cannot be written (a read-only installation or home).

Without care numba would fall back to ``__pycache__`` beside the sources, where it does not notice that a called file
changed, or refuse to declare a kernel at all.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["temporary_folders", "writable_folder"]


def temporary_folders(wanted: Path) -> tuple[Path, ...]:
    """Places to try after ``wanted``: one of this user and this state of the kernels below the system's temporary
    folder, so that the processes of a job compile once; none if there is no temporary folder."""
    try:
        return (Path(tempfile.gettempdir()) / f"tokenreel-{os.getuid()}-{wanted.name}",)
    except FileNotFoundError:
        return ()


def _is_ours(folder: Path) -> bool:
    """Machine code is loaded from here, so nobody else may have made the folder or be able to write into it."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def writable_folder(wanted: Path, others: Sequence[Path]) -> Path | None:
    """``wanted`` or the first of ``others`` that can be made and written; of the others only those that belong to
    this user alone. None: keep machine code in memory."""
    for folder in (wanted, *others):
        try:
            folder.mkdir(mode=0o777 if folder == wanted else 0o700, parents=True, exist_ok=True)
            if folder != wanted and not _is_ours(folder):
                continue
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None
