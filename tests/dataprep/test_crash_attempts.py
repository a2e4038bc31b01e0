"""Two attempts at once, orphans, and what must not shape a Dataset: workers, orders, folders, environments."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import memory_folder, run_plan
from support.syscalls_jobs import job_files, left_overs, make_job

from loader.files import is_running
from loader.settings import child_environment

_COMMAND = """
import os, random, sys
scandir = os.scandir
class shuffled:
    def __init__(self, path="."):
        with scandir(path) as entries:
            found = list(entries)
        random.shuffle(found)
        self.found = iter(found)
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def __iter__(self): return self
    def __next__(self): return next(self.found)
    def close(self): pass
os.scandir = shuffled
from loader.cli import main
sys.exit(main())
"""
"""The command line, with folders listed in any order."""
_LIMIT_S = 300


def start(config: Path, umask: int = 0o022, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", _COMMAND, "build", str(config), "--json", "--quiet"]
    given = child_environment(OMP_NUM_THREADS="1", **environment)
    return subprocess.Popen(arguments, env=given, cwd=cwd, umask=umask, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0, out


@pytest.mark.slow
@pytest.mark.skipif(not SUPPORTED, reason="runs in the process that traces")
@pytest.mark.parametrize("mode", ["twins", "orphans"])
def test_a_second_attempt_is_harmless(tmp_path: Path, mode: str) -> None:
    report = run_plan(tmp_path, mode=mode, share=12, seed=5)
    assert report["problems"] == []


def descendants(pid: int) -> set[int]:
    """Processes below ``pid``."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below.setdefault(int(fields[1]), []).append(int(place.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        children = below.get(waiting.pop(), [])
        found.update(children)
        waiting += children
    return found


def test_tasks_end_with_their_supervisor(tmp_path: Path) -> None:
    """The real command with its fork server: kill -9 of the one process leaves none of the others running, and none of
    them holds the work folder's lock."""
    config = make_job(tmp_path / "job", tmp_path / "corpus", run={"workers": 2})
    process = start(config)
    below: set[int] = set()
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not any((tmp_path / "job" / "out.work").glob("*/datatrove/logs/task_*.log")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        below = descendants(process.pid)
        assert len(below) >= 2
        process.kill()
        process.wait()
        with open(tmp_path / "job" / "out.work" / "lock", "rb") as lock:  # a task may live on for a moment
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_nothing_but_data_and_configuration_shapes_a_dataset(tmp_path: Path) -> None:
    first = make_job(tmp_path / "first", tmp_path / "corpus", whole=True)
    finish(start(first, PYTHONHASHSEED="0", TZ="UTC", LC_ALL="C"))
    expected = job_files(tmp_path / "first")
    assert len(expected) > 20
    assert "job.json" in {Path(name).name for name in expected}
    other = memory_folder(tmp_path)
    with tempfile.TemporaryDirectory(prefix="tr-") as short:  # sockets of the fork server have at most 107 letters
        scratch = Path(short)
        for number, workers in enumerate((2, 7)):
            root = tmp_path / f"other{number}"
            sources = {
                "web": {"root": str(tmp_path / "corpus" / "web"), "files": ["deep/b.jsonl", "a.jsonl"]},
                "code": {"root": str(tmp_path / "corpus" / "code"), "files": ["y.jsonl.gz", "x.jsonl"]},
            }
            config = make_job(root, tmp_path / "corpus", whole=True, run={"workers": workers}, sources=sources)
            changes = {
                "PYTHONHASHSEED": str(workers),
                "TZ": "Asia/Kathmandu",
                "LC_ALL": "C.UTF-8",
                "TMPDIR": str(scratch),
            }
            finish(start(config, umask=0o077 if number else 0o002, cwd=other if number else scratch, **changes))
            assert job_files(root) == expected
            assert left_overs(root) == []
            assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_work_on_a_real_other_file_system(tmp_path: Path) -> None:
    shared = memory_folder(tmp_path)
    if shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system to write on")
    finish(start(make_job(tmp_path / "one", tmp_path / "corpus")))
    work = shared / f"crash-{os.getpid()}"
    try:
        finish(start(make_job(tmp_path / "two", tmp_path / "corpus", run={"workers": 2, "work": str(work)})))
        assert job_files(tmp_path / "two") == job_files(tmp_path / "one")
        assert left_overs(tmp_path / "two") == left_overs(work) == []
        assert not list(work.glob("write-*"))
    finally:
        subprocess.run(["rm", "-rf", str(work)], check=True)
