"""Settings of the whole suite: property tests draw the same examples every time and are never judged by the clock;
processes can be interrupted also where the suite itself was started in the background, with interrupts ignored."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings
from support.object_store import s3_server

__all__ = ["s3_server"]  # one server for all files of a test process: a start takes four seconds

settings.register_profile(
    "tokenreel",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("explore", parent=settings.get_profile("tokenreel"), derandomize=False, max_examples=1000)
settings.load_profile("tokenreel")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
