"""Signals that ask a training process to save and end: heard at once, also while a step keeps the interpreter busy.

Python runs signal handlers between two of its instructions, and on a CPU one backward pass of a large batch is a single
instruction that takes minutes. So a thread hears of signals too (``signal.set_wakeup_fd``): it says what will happen,
and ends the process where the main thread cannot.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

__all__ = ["GIVEN_UP_THREAD", "SAVING_THREAD", "StopFlag", "end_process"]

SAVING_THREAD = "checkpoint"
"""Name of the threads that write checkpoints: while one lives, nobody ends the process around it."""
GIVEN_UP_THREAD = "checkpoint, given up"
"""Name of one that took longer than a save may: nobody waits for it any more."""

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_S = 10.0
"""How long the main thread may take to answer a second Ctrl-C; then the process ends without it."""
_POLL_S = 0.05
_OVER = 0
"""No signal has this number: the thread ends."""


class StopFlag:
    """Remembers that a signal asked the process to save and end; a second SIGINT ends it at once.

    SIGINT is Ctrl-C, SIGTERM comes from schedulers and torchrun, SIGUSR1 is Slurm's warning ahead of the time limit.
    While the last save runs every signal is ignored, and a save beside the training ends before the process does: what
    is nearly safe shall not be lost to an impatient key.

    Args:
        say: takes what is said about a signal; called from another thread.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.signal: int | None = None
        self._say = say
        self._saving = False
        self._answered = threading.Event()
        self._calls = 0

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        self._calls += 1
        if self._saving:
            return
        if number == signal.SIGINT and self.signal is not None:
            self._answered.set()
            raise KeyboardInterrupt
        self.signal = number

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Ignore signals inside the block."""
        self._saving = True
        self._answered.set()  # a save is the best answer that there is
        try:
            yield
        finally:
            self._saving = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside the block (main thread only)."""
        heard, hears = os.pipe()
        os.set_blocking(hears, False)
        listener = threading.Thread(target=self._listen, args=(heard,), name="signals", daemon=True)
        listener.start()
        woken = signal.set_wakeup_fd(hears, warn_on_full_buffer=False)
        _WOKEN.add(hears)
        before = {number: signal.signal(number, self.handle) for number in _STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(woken)
            _WOKEN.discard(hears)
            os.write(hears, bytes([_OVER]))
            listener.join()
            os.close(hears)
            os.close(heard)

    def _listen(self, heard: int) -> None:
        """Until the block ends: say what a signal does, and end the process if nobody else can."""
        asked = False
        while (number := os.read(heard, 1)[0]) != _OVER:
            if number not in _STOPPING or self._saving:
                continue
            if not asked:
                name = signal.Signals(number).name
                self._tell(f"{name}: the run is saved and ends once the step is done; Ctrl-C ends it now")
            elif number == signal.SIGINT and not self._is_answered():
                _let_a_save_end()
                if not self._answered.is_set():  # the last save may be over by now
                    self._tell("ended inside a step; the same command goes on from the last save")
                    os._exit(128 + signal.SIGINT)
            asked = True

    def _is_answered(self) -> bool:
        """Whether the main thread takes up a second Ctrl-C: it may have raised it already, or see two as one."""
        calls, until_s = self._calls, time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            if self._answered.wait(_POLL_S) or self._calls != calls:
                return True
        return False

    def _tell(self, line: str) -> None:
        with suppress(OSError, ValueError):  # nobody may be left to tell; the signal counts all the same
            self._say(line)


def end_process(code: int) -> NoReturn:
    """End the process with its exit code once it has said everything. A save that was given up, as on a mount that
    hangs, keeps Python itself from ending, for good maybe: then without Python."""
    if not any(thread.name == GIVEN_UP_THREAD for thread in threading.enumerate()):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _let_a_save_end() -> None:
    for thread in threading.enumerate():
        if thread.name == SAVING_THREAD:
            thread.join()


_WOKEN: set[int] = set()
"""Descriptors in use: a forked child would tell its parent of its own signals."""


def _leave_to_parent() -> None:
    if _WOKEN:
        signal.set_wakeup_fd(-1)
        _WOKEN.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
