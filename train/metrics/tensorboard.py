"""TensorBoard event files: one folder a branch, so that what a rollback left stays beside what replaced it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .sinks import SinkPlace, numbers_of

__all__ = ["TensorboardSink"]

_FLUSH_S = 30


class TensorboardSink:
    """Writes ``RUN/tensorboard/branch_<n>``; one event a step holds all its numbers, as float32.

    Each attempt begins with the record that makes TensorBoard forget the steps from its first one on: they are done
    again. A killed process loses what it wrote in the last half minute, but nothing from before a checkpoint.
    """

    def __init__(self, place: SinkPlace) -> None:
        event, writer = import_module("tensorboard.compat.proto.event_pb2"), _writer_module()
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._event: Any = event.Event
        folder = place.root / "tensorboard" / f"branch_{place.branch}"
        self._writer: Any = writer.EventFileWriter(
            str(folder), flush_secs=_FLUSH_S, filename_suffix=f".{place.attempt}"
        )
        start = event.SessionLog(status=event.SessionLog.START)
        self._add(place.first_step, session_log=start)

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **what))

    def write(self, line: Mapping[str, Any]) -> None:
        """See ``Sink``."""
        value = self._summary.Value
        values = [value(tag=name, simple_value=number) for name, number in numbers_of(line)]
        self._add(int(line["step"]), summary=self._summary(value=values))

    def flush(self) -> None:
        """See ``Sink``."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """See ``Sink``."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _writer_module() -> Any:
    """tensorboard's own writer; its import takes a second, so only a run that wants it pays."""
    return import_module("tensorboard.summary.writer.event_file_writer")
