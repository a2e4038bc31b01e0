"""What a training run says on the console: a line now and then, and on a terminal a live line below it."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

__all__ = ["StepConsole", "step_text"]

_SILENCE_S = 30.0
_LIVE_S = 0.25


def _share(name: str, value: Any) -> str:
    return f"{name} {100 * value:.1f} %" if isinstance(value, float) else ""


def _left(seconds: float) -> str:
    """``1 d 2:03:04``; nothing where nobody knows."""
    if not math.isfinite(seconds):
        return ""
    days, rest = divmod(round(seconds), 86400)
    clock = str(datetime.timedelta(seconds=rest))
    return f"left {days} d {clock}" if days else f"left {clock}"


def step_text(line: Mapping[str, Any], total_steps: int) -> str:
    """A step in one line: loss and its average, gradient norm, lr, rate, utilisation, wait, time left."""
    parts = [
        f"step {line['step'] + 1}/{total_steps}",
        f"loss {line['loss']:.4f} (mean {line['loss_average']:.4f})",
        f"grad {line['grad_norm']:.3f}",
        f"lr {line['lr']:.3g}",
        f"{line['tokens_per_s']:,.0f} tokens/s",
        _share("mfu", line.get("mfu")),
        _share("wait", line["loader_wait_share"]),
        _left(line["left_s"]),
    ]
    return "  ".join(part for part in parts if part)


class StepConsole:
    """Says every ``log_every``-th step, and any step after half a minute of silence; on a terminal the newest one
    stands below, refreshed four times a second at most.

    Args:
        say: takes a line for good.
        log_every, total_steps: of the run.
        terminal: where a live line is drawn; None: nowhere. Whatever is printed meanwhile appears above it.
        now: a clock in seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        log_every: int,
        total_steps: int,
        terminal: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._log_every, self._total_steps, self._now = say, log_every, total_steps, now
        self._said_s = now()
        self._drawn_s = -math.inf
        self._live: Any = None if terminal is None else _live_line(terminal)

    def show(self, line: Mapping[str, Any]) -> None:
        """Take a step's line."""
        now_s = self._now()
        due = line["step"] % self._log_every == 0 or now_s - self._said_s >= _SILENCE_S
        draws = self._live is not None and now_s - self._drawn_s >= _LIVE_S
        if not due and not draws:
            return
        text = step_text(line, self._total_steps)
        if due:
            self._said_s = now_s
            self._say(text)
        if draws:
            self._drawn_s = now_s
            self._live.update(text, refresh=True)

    def close(self) -> None:
        """Take the live line away; a second call does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _live_line(terminal: TextIO) -> Any:
    """rich's live display without a thread of its own: a thread would take the interpreter from the step."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=terminal, highlight=False, soft_wrap=True)
    live = Live("", console=console, auto_refresh=False, transient=True, redirect_stdout=False)
    live.start()
    return live
