"""Where a step's numbers go: an explicit table. Every row takes the same lines, and a contract test reads them back.

``jsonl`` is always written and may fail the run (a disk that is full also stops ledger and checkpoints); the others are
a convenience, so whatever goes wrong in them is said once and ends only them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..wandb_config import WandbConfig

__all__ = ["SINKS", "Sink", "SinkKind", "SinkPlace", "numbers_of", "open_sinks"]


class Sink(Protocol):
    """What takes lines; ``line["step"]`` goes up by one within an attempt, but for lines of an evaluation."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Take one line: numbers, names and mappings of them."""

    def flush(self) -> None:
        """Bring what was taken to the disk; a checkpoint follows."""

    def close(self) -> None:
        """Flush and close; a second call does nothing."""


@dataclass(frozen=True)
class SinkPlace:
    """Where and as what an attempt writes.

    Attributes:
        root: the RUN folder. run_id: from run.json.
        branch, attempt: stamps. first_step: whatever lies there of this branch from it on is done again.
        tensorboard: write event files. wandb: the ``run.wandb`` block, or None.
        facts: JSON-able, what the run is (no paths, no addresses), for W&B's page.
        warn: where a remark goes.
    """

    root: Path
    run_id: str
    branch: int
    attempt: int
    first_step: int
    tensorboard: bool = False
    wandb: WandbConfig | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    warn: Callable[[str], None] = lambda text: None


def numbers_of(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """(``name`` or ``name/key``, number) of all finite numbers but the step; for sinks that know only scalars."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from numbers_of(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value) and (prefix or name != "step"):
            yield f"{prefix}{name}", float(value)


def _jsonl(place: SinkPlace) -> Sink:
    from .jsonl import JsonlSink

    return JsonlSink(place)


def _tensorboard(place: SinkPlace) -> Sink:
    from .tensorboard import TensorboardSink

    return TensorboardSink(place)


def _wandb(place: SinkPlace) -> Sink:
    from .weights_biases import WandbSink

    return WandbSink(place)


@dataclass(frozen=True)
class SinkKind:
    """A row of the table.

    Attributes:
        wanted: whether the configuration asks for it. open: starts it. vital: its failure is the run's.
    """

    wanted: Callable[[SinkPlace], bool]
    open: Callable[[SinkPlace], Sink]
    vital: bool = False


SINKS: dict[str, SinkKind] = {
    "jsonl": SinkKind(lambda place: True, _jsonl, vital=True),
    "tensorboard": SinkKind(lambda place: place.tensorboard, _tensorboard),
    "wandb": SinkKind(lambda place: place.wandb is not None, _wandb),
}
"""Name -> sink."""


class _Guarded:
    """A sink whose first failure is said once and is its end."""

    def __init__(self, name: str, kind: SinkKind, place: SinkPlace) -> None:
        self._name, self._warn = name, place.warn
        self._sink: Sink | None = None
        self._try(lambda: setattr(self, "_sink", kind.open(place)))

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever a client library may raise
            self._sink = None
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._warn(f"metrics no longer go to {self._name}: {reason}")

    def write(self, line: Mapping[str, Any]) -> None:
        """See ``Sink``."""
        if (sink := self._sink) is not None:
            self._try(lambda: sink.write(line))

    def flush(self) -> None:
        """See ``Sink``."""
        if (sink := self._sink) is not None:
            self._try(sink.flush)

    def close(self) -> None:
        """See ``Sink``."""
        if (sink := self._sink) is not None:
            self._try(sink.close)
        self._sink = None


def open_sinks(place: SinkPlace) -> Sequence[Sink]:
    """All sinks that are wanted, in the table's order.

    Raises:
        OSError: metrics.jsonl cannot be written.
    """
    return [
        kind.open(place) if kind.vital else _Guarded(name, kind, place)
        for name, kind in SINKS.items()
        if kind.wanted(place)
    ]
