"""One accident at each kind of system call of each stage; the whole sweeps are in the files beside this one.

The points are the job's own calls as the kernel sees them: what an undisturbed traced run makes is the list.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.syscalls import SUPPORTED
from support.syscalls_driver import run_plan
from support.syscalls_jobs import make_job

from loader.settings import child_environment

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone")

ALL_FAULTS = ("kill", "torn", "ENOSPC", "EIO", "full", "least", "some")


def test_an_accident_at_each_kind_of_call_of_each_stage(tmp_path: Path) -> None:
    report = run_plan(tmp_path, mode="chain", faults=ALL_FAULTS, share="each")
    assert report["problems"] == []
    assert report["missed"] == {"each": []}
    assert report["visited_kinds"] == report["kinds"]
    assert {stage for stage, _ in report["kinds"]} == set(report["stages"])
    assert len(report["stages"]) == 19
    assert {"write", "fsync", "rename", "open", "mkdir", "unlink", "link"} <= set(report["points"])
    assert min(report["visited"].values()) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["torn", "full", "kill"])
def test_accidents_from_scratch(tmp_path: Path, fault: str) -> None:
    report = run_plan(tmp_path, mode="single", faults=[fault], share=10, seed=3)
    assert report["problems"] == []
    assert report["missed"] == {"some": []}


@pytest.mark.slow
def test_random_accidents_with_two_workers(tmp_path: Path) -> None:
    report = run_plan(tmp_path, mode="random", faults=ALL_FAULTS, share=10, seed=4)
    assert report["problems"] == []
    assert sum(report["visited"].values()) >= 15


@pytest.mark.slow
def test_publishing_to_another_file_system(tmp_path: Path) -> None:
    """Renames from the work folder to the outputs fail with EXDEV, so Datasets and Index are copied."""
    faults = ["kill", "torn", "ENOSPC", "EIO", "least"]
    report = run_plan(tmp_path, mode="other_device", faults=faults, share=100, seed=5)
    assert report["problems"] == []
    assert report["missed"] == {"some": []}
    assert sum(report["visited"].values()) >= 100


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_counts_the_same_points(tmp_path: Path) -> None:
    """The real command with its fork server, seen by strace: the same syncs, renames and writes on the same paths."""
    report = run_plan(tmp_path, mode="chain", faults=["kill"], share=0)
    config = make_job(tmp_path / "job", tmp_path / "corpus")
    log = tmp_path / "strace"
    calls = "trace=write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir"
    command = [sys.executable, "-c", "import sys; from loader.cli import main; sys.exit(main())"]
    subprocess.run(
        ["strace", "-f", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-e", calls, "-o", log, *command, "build", config],
        env=child_environment(OMP_NUM_THREADS="1"),
        check=True,
        capture_output=True,
        timeout=300,
    )
    names = {"pwrite64": "write", "writev": "write", "fdatasync": "fsync", "renameat": "rename", "renameat2": "rename"}
    names |= {"linkat": "link", "unlinkat": "unlink"}
    found: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"\d+ +(\w+)\(", line)
        if match and re.search(rf"{re.escape(str(tmp_path / 'job'))}[/>]", line):
            name = "rmdir" if "AT_REMOVEDIR" in line else names.get(match.group(1), match.group(1))
            found[name] += 1
    wanted = {name: count for name, count in report["points"].items() if name not in ("open", "mkdir")}
    assert dict(found) == wanted
