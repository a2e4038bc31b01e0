"""Engines: who runs the tasks of a stage. One entry = one file here, one line in the table, one row of the contract
test.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from loader.errors import ConfigError, RefusedError
from loader.files import remove_folder

from ..stages import Stage, check_unchanged, close_stage, open_stage

__all__ = ["ENGINES", "Engine", "EngineOptions", "check_engine", "make_engine", "run_stage"]

ENGINES: Mapping[str, str] = {
    "local": "dataprep.engines.local:LocalEngine",
}
"""name -> "module:class"; imported when used, because each pulls its own machinery in."""


@dataclass(frozen=True)
class EngineOptions:
    """How to run, never what comes out. ``retries``: further attempts at a task whose process was killed."""

    workers: int = 1
    retries: int = 3


class Engine(Protocol):
    """Runs the incomplete tasks of a stage to completion markers, or raises naming the ranks."""

    def __init__(self, options: EngineOptions) -> None:
        """Take the options; start nothing."""

    def run(self, stage: Stage, done: Callable[[int], None]) -> None:
        """Run every incomplete rank; ``done(rank)`` is called as each one completes.

        Raises:
            TokenreelError: the error of the lowest failed rank, with its own code; other failed ranks are named.
        """


def check_engine(name: str) -> None:
    """Refuse an unknown engine without importing any.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in ENGINES:
        raise ConfigError("TR-ENGINE-UNKNOWN", f"no engine {name!r}", "run.engine", f"one of {', '.join(ENGINES)}")


def make_engine(name: str, options: EngineOptions) -> Engine:
    """The engine called ``name``.

    Raises:
        ConfigError: there is none of that name.
    """
    check_engine(name)
    module_name, _, class_name = ENGINES[name].partition(":")
    kind = cast(Callable[[EngineOptions], Engine], getattr(importlib.import_module(module_name), class_name))
    return kind(options)


def run_stage(stage: Stage, engine: Engine, done: Callable[[int], None] = lambda rank: None) -> bool:
    """Run ``stage`` unless it is finished; True when anything was run. One whose last task had ended when the job was
    killed is only tidied up.

    Raises:
        RefusedError: a raw input changed before or while the stage ran.
        TokenreelError: what its tasks raised.
    """
    if not stage.incomplete_ranks() and (stage.logging_folder / "stats.json").is_file():
        close_stage(stage)
        return False
    open_stage(stage)
    try:
        check_unchanged(stage.inputs)
        engine.run(stage, done)
        check_unchanged(stage.inputs)
    except RefusedError as error:
        if (
            error.code == "TR-INPUT-CHANGED"
        ):  # what was read is not what the stage's digest says: it must not be found again
            remove_folder(stage.folder)
        raise
    close_stage(stage)
    return True
