"""A pipeline step that notes which process did which rank; apart from the tests, so that processes need not import
pytest.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

__all__ = ["NoteProcess"]

_MOST_WAITED_S = 60


class NoteProcess(PipelineStep):
    """``pids-<rank>``: a line an attempt. ``fault``: (rank, "kill once" or "raise") of what goes wrong, once all of
    ``wait_for`` have begun; rank ``slow`` waits for the stage's error.
    """

    name = "note process"
    type = "test"

    def __init__(self, folder: Path, fault: tuple[int, str] = (-1, ""), slow: int = -1) -> None:
        super().__init__()
        self.folder = folder
        self.fault = fault
        self.slow = slow

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        noted = self.folder / f"pids-{rank}"
        first = not noted.exists()
        with open(noted, "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        if rank == self.slow:
            self._wait(self.folder / "errors")
            time.sleep(0.5)  # until the word to stop is there
        if rank == self.fault[0]:
            if self.fault[1] == "kill once" and first:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault[1] == "raise":
                self._wait(self.folder / f"pids-{self.slow}")
                raise ValueError("no")
        self.stat_update("records", value=1)
        return iter(())

    def _wait(self, path: Path) -> None:
        end_s = time.monotonic() + _MOST_WAITED_S
        while not path.exists() and time.monotonic() < end_s:
            time.sleep(0.01)
