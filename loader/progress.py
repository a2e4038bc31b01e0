"""Progress on stderr: bars on a terminal, otherwise a line now and then; never on stdout, which belongs to results."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

__all__ = ["LINE_INTERVAL_S", "Progress", "format_rate"]

LINE_INTERVAL_S = 30.0
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_rate(count: float, elapsed_s: float, unit: str) -> str:
    """``"1.2 Mtokens/s"``; unit is the plural noun."""
    rate = count / elapsed_s if elapsed_s > 0 else 0.0
    for scale, prefix in _SCALES:
        if rate >= scale:
            return f"{rate / scale:.1f} {prefix}{unit}/s"
    return f"{rate:.1f} {unit}/s"


class Progress:
    """One task with a total in one unit, and counters beside it; use as a context manager.

    Args:
        label: what is being done.
        total: how many units that is, or None when nobody knows.
        unit: plural noun of the unit (``bytes``, ``steps``).
        quiet: say nothing.
        stream: where to write; stderr by default.
    """

    def __init__(
        self, label: str, total: float | None, unit: str, *, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._done = 0.0
        self._counts: dict[str, float] = {}
        self._started_s = time.monotonic()
        self._last_line_s = self._started_s
        self._bar: Any = None

    def __enter__(self) -> Self:
        self._started_s = self._last_line_s = time.monotonic()
        if not self._quiet and self._stream.isatty():
            self._bar = _rich_bar(self._stream)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, rates="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet and kind is None and time.monotonic() - self._started_s >= LINE_INTERVAL_S:
            self._write_line("done")

    def advance(self, amount: float, **counts: float) -> None:
        """Count ``amount`` units done, and add to further counters (``documents=120``), which are shown as rates."""
        self._done += amount
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0.0) + count
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, rates=self._rates())
        elif time.monotonic() - self._last_line_s >= LINE_INTERVAL_S and not self._at_end():
            self._write_line(self._remaining())

    def _at_end(self) -> bool:
        """Whether all is done: the last line says so."""
        return self._total is not None and self._done >= self._total

    def _rates(self) -> str:
        elapsed_s = time.monotonic() - self._started_s
        counts = {self._unit: self._done, **self._counts}
        shown = {name: count for name, count in counts.items() if count >= 0.05 * elapsed_s}
        return ", ".join(format_rate(count, elapsed_s, name) for name, count in shown.items())

    def _remaining(self) -> str:
        if not self._total or not self._done:
            return f"{self._done:,.0f} {self._unit}"
        elapsed_s = time.monotonic() - self._started_s
        left_s = elapsed_s * max(self._total - self._done, 0) / self._done
        return f"{100 * self._done / self._total:.0f} %, about {left_s:,.0f} s left"

    def _write_line(self, state: str) -> None:
        self._last_line_s = time.monotonic()
        rates = self._rates()
        self._stream.write(f"{self._label}: {state}" + (f" ({rates})\n" if rates else "\n"))
        self._stream.flush()


def _rich_bar(stream: TextIO) -> Any:
    """A rich progress display with rates and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(),
    )
    return RichProgress(*columns, console=Console(file=stream), transient=True)
