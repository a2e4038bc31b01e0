"""Pipeline steps for engine tests; apart from the tests, so that task processes need not import pytest."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from loader.errors import DamageError
from loader.files import write_atomic

__all__ = ["Work"]


class Work(PipelineStep):
    """One file a rank. ``fault``: (rank, kind) of what goes wrong; ``log`` gets one line an attempt."""

    name = "work"
    type = "test"

    def __init__(self, folder: Path, fault: tuple[int, str] | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.fault = fault

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        attempts = self.folder / f"attempts-{rank}"
        with open(attempts, "a", encoding="ascii") as file:
            file.write("x")
        kind = self.fault[1] if self.fault and self.fault[0] == rank else ""
        first = attempts.stat().st_size == 1
        if kind == "kill once" and first:
            (self.folder / f".tmp-{os.getpid()}-torn").touch()
        if kind == "kill always" or (kind == "kill once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            os._exit(77)
        if kind == "leave":
            os._exit(0)
        if kind == "damage":
            raise DamageError("TR-TEST-DAMAGED", "a broken record", "file.jsonl", "a whole one", "look")
        if kind == "full":
            raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/out")
        if kind == "long":
            raise DamageError("TR-TEST-DAMAGED", "a model that quotes itself: " + "\x00\xb5" * 1_000_000)
        if kind == "value":
            raise ValueError("seven is no colour")
        write_atomic(self.folder / f"out-{rank}", f"{rank} of {world_size}".encode())
        self.stat_update("records", value=3)
        return iter(())
