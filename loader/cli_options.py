"""What the verbs share: common options, the form of results, and where a configuration is read."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from .progress import Progress

__all__ = ["CommonOptions", "Output", "common_options", "output_options"]

_R = TypeVar("_R")


@dataclass(frozen=True)
class Output:
    """How a verb speaks: results on stdout (one JSON document with ``--json``), everything else on stderr.

    Attributes:
        json: results as JSON.
        quiet: no progress and no remarks.
    """

    json: bool = False
    quiet: bool = False

    def result(self, value: object, text: str | Callable[[], str]) -> None:
        """Print the verb's one result: ``value`` with ``--json``, otherwise ``text``."""
        if self.json:
            sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
        else:
            shown = text if isinstance(text, str) else text()
            sys.stdout.write(shown if shown.endswith("\n") or not shown else shown + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A remark on stderr, unless ``--quiet``."""
        if not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def progress(self, label: str, total: float | None, unit: str) -> Progress:
        """A progress display on stderr; a context manager with ``advance``."""
        return Progress(label, total, unit, quiet=self.quiet)


@dataclass(frozen=True)
class CommonOptions:
    """The common options of a verb that takes a configuration.

    Attributes:
        plan: say what would be done, write nothing.
        overrides: ``a.b=c`` strings for ``load_config``.
        workers: process count, or None for the configuration's own.
        output: how to print.
    """

    plan: bool
    overrides: tuple[str, ...]
    workers: int | None
    output: Output

    def all_overrides(self, workers_key: str = "run.workers") -> tuple[str, ...]:
        """``overrides`` with ``--workers`` as one more, so that it is validated like everything else."""
        return self.overrides if self.workers is None else (*self.overrides, f"{workers_key}={self.workers}")


def output_options(function: Callable[..., _R]) -> Callable[..., _R]:
    """Add ``--json`` and ``--quiet``; the verb receives an ``Output`` as its first argument."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    @click.option("--quiet", is_flag=True, help="No progress and no remarks on stderr.")
    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> _R:
        return function(Output(as_json, quiet), *args, **kwargs)

    return wrapper


def common_options(function: Callable[..., _R]) -> Callable[..., _R]:
    """Add ``--plan --set --workers --json --quiet``; the verb receives ``CommonOptions`` as its first argument."""

    @click.option("--plan", is_flag=True, help="Print partitions, bytes, outputs and the digest; write nothing.")
    @click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key: --set a.b=c.")
    @click.option("--workers", type=click.IntRange(min=1), help="Processes to use; never changes a result.")
    @output_options
    @functools.wraps(function)
    def wrapper(
        output: Output, *args: Any, plan: bool, overrides: tuple[str, ...], workers: int | None, **kwargs: Any
    ) -> _R:
        return function(CommonOptions(plan, tuple(overrides), workers, output), *args, **kwargs)

    return wrapper
