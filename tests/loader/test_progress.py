"""Progress off a terminal: a line now and then, and nothing when quiet."""

from __future__ import annotations

import io

import pytest

from loader import progress as module
from loader.progress import LINE_INTERVAL_S, Progress, format_rate


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_line_every_interval_and_one_at_the_end(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("reading", 1000, "bytes", stream=stream) as progress:
        progress.advance(100, documents=5)
        assert stream.getvalue() == ""
        clock.now_s += LINE_INTERVAL_S
        progress.advance(150, documents=5)
        assert stream.getvalue() == "reading: 25 %, about 90 s left (8.3 bytes/s, 0.3 documents/s)\n"
        progress.advance(1)
        clock.now_s += LINE_INTERVAL_S - 1
        progress.advance(1)
    assert stream.getvalue().splitlines()[1:] == ["reading: done (4.3 bytes/s, 0.2 documents/s)"]


def test_a_short_job_and_a_quiet_one_say_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("reading", 10, "bytes", stream=stream) as progress:
        progress.advance(10)
    with Progress("reading", 10, "bytes", quiet=True, stream=stream) as progress:
        clock.now_s += 1000
        progress.advance(10)
    assert stream.getvalue() == ""


def test_an_unknown_total_shows_the_count(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("reading", None, "records", stream=stream) as progress:
        clock.now_s += LINE_INTERVAL_S
        progress.advance(1234)
    assert stream.getvalue().startswith("reading: 1,234 records (41.1 records/s)\n")


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Progress("reading", 10, "bytes", stream=stream) as progress:
        progress.advance(10, documents=1)
    assert "reading" in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "elapsed_s", "shown"),
    [
        (0, 0, "0.0 x/s"),
        (999, 1, "999.0 x/s"),
        (1500, 1, "1.5 kx/s"),
        (2.5e6, 1, "2.5 Mx/s"),
        (3e9, 1, "3.0 Gx/s"),
    ],
)
def test_rates_are_scaled(count: float, elapsed_s: float, shown: str) -> None:
    assert format_rate(count, elapsed_s, "x") == shown
