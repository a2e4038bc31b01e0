"""Settings of the whole suite: property tests draw the same examples every time and are never judged by the clock;
processes can be interrupted also where the suite itself was started in the background, with interrupts ignored; the
files that take longest come first, so that no test process is left alone with one of them at the end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
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

_TESTS = Path(__file__).parent
_LONGEST_FIRST = [
    # whole sweeps, in the slow suite minutes each
    "train/test_spike_rollback.py", "train/test_rollback_crashes.py", "loader/test_stream_flat.py",
    "dataprep/test_crash_kill.py", "loader/test_remote_flat.py", "dataprep/test_crash_errors.py",
    "dataprep/test_crash_io_errors.py", "distributed/test_parity.py", "test_benchmarks_trainer.py",
    "dataprep/test_crash_verbs.py", "train/test_resume.py", "distributed/test_torchft.py",
    "distributed/test_launch_many.py", "dataprep/test_build_kill.py", "distributed/test_rollback_world.py",
    # ten seconds or more of the fast one
    "cli/test_demo_verb.py", "dataprep/test_crash_sweep.py", "train/test_detectors_real_runs.py",
    "train/test_evaluate_held.py", "train/test_stuck_save.py", "train/test_stopping.py",
    "train/test_wait_for_upload.py", "train/test_rollback_with_uploads.py", "train/test_several_spikes.py",
    "distributed/test_meeting.py", "distributed/test_spikes_world.py", "loader/test_verify_hostile.py",
    "dataprep/test_formats_bombs.py", "dataprep/test_decontaminate.py", "dataprep/test_repack.py",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file: the longest, then the others in the order in which they were found."""
    places = {_TESTS / name: place for place, name in enumerate(_LONGEST_FIRST)}
    if gone := [str(path) for path in places if not path.is_file()]:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {', '.join(gone)}")
    items.sort(key=lambda item: places.get(item.path, len(places)))
