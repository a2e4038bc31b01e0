"""A program that a model wrote does no harm to what else its user has: run by an ordinary user and by root, on a kernel
with all that holds it, without Landlock and without anything. Every harm is first done by the same program, not held.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ordinary_user import as_ordinary_user, kernel_without, kernel_without_filters

from loader.errors import RefusedError
from train.evaluate import limited_files
from train.evaluate.execute import need_limits, passes
from train.evaluate.libc import call
from train.evaluate.limited_calls import CALLS, MACHINES, install, start
from train.evaluate.limited_files import keep_files

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in MACHINES, reason="programs are run where they can be held"
)
LIBC = "import ctypes, posix\nlibc = ctypes.CDLL(None, use_errno=True)\ndef c(found):\n    assert found != -1\n"
FILES = {
    "remove": "posix.unlink('{file}')",
    "remove, by its folder": "import os\nd = posix.open('{home}', 0)\nposix.unlink('precious', dir_fd=d)",
    "write": "open('{file}', 'w').write('gone')",
    "write, without Python": "fd = libc.open(b'{file}', 2)\nc(fd)\nposix.write(fd, b'gone')",
    "append": "open('{file}', 'a').write('more')",
    "cut": "c(libc.truncate(b'{file}', 0))",
    "rename": "posix.rename('{file}', '{file}2')",
    "replace": "open('own', 'w').close()\nposix.rename('own', '{file}')",
    "move here": "posix.rename('{file}', 'own')",
    "link": "posix.link('{file}', '{file}2')",
    "point at": "posix.symlink('{file}', '{file}2')",
    "make": "open('{file}2', 'w')",
    "make a folder": "posix.mkdir('{file}2')",
    "make a pipe": "posix.mkfifo('{file}2')",
    "remove a folder": "posix.rmdir('{home}/empty')",
    "rights": "posix.chmod('{file}', 0)",
    "rights of a folder": "posix.chmod('{home}', 0)",
    "rights, newest call": "c(libc.syscall(452, -100, b'{file}', 0, 0))",
    "times": "posix.utime('{file}', (0, 0))",
    "attribute": "posix.setxattr('{file}', 'user.x', b'1')",
}
OTHERS = {
    "kill": "posix.kill({pid}, 9)",
    "kill its group": "posix.killpg({pid}, 9)",
    "kill, without Python": "c(libc.kill({pid}, 9))",
    "kill a thread": "c(libc.syscall({tgkill}, {pid}, {pid}, 9))",
    "kill by a handle": "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
    "kill everybody": "libc.kill(-1, 0)\nc(libc.kill({pid}, 9))",
    "signal by a pipe": (
        "import fcntl, os, time\nr, w = os.pipe()\nfcntl.fcntl(r, 8, {pid})\nfcntl.fcntl(r, 10, 9)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)\nos.write(w, b'x')"
    ),
    "limit": "import resource\nresource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))",
    "priority": "posix.setpriority(0, {pid}, 20)",
    "schedule": "posix.sched_setscheduler({pid}, posix.SCHED_BATCH, posix.sched_param(0))",
    "trace": "c(libc.ptrace(16, {pid}, 0, 0))",
}
REACHING = {
    "read": "assert open('{file}').read() == 'x'",
    "list": "posix.listdir('{home}')",
    "process": "assert posix.fork() or posix._exit(0)",
    "program": "posix.execv('/bin/true', ['true'])",
    "socket": "import socket\nsocket.socket()",
    "socket of a file": "import socket\nsocket.socket(socket.AF_UNIX)",
    "shared memory": "c(libc.shmget(0, 4096, 0o1600))",
    "own namespace": "c(libc.unshare(0x10000000))",
}
ONLY_LANDLOCK = {"read", "list"}
_EXITING = 0x4  # PF_EXITING of linux/sched.h


def file_facts(path: Path) -> Any:
    """Of a file or folder that is left readable."""
    status = path.lstat()
    path.chmod(0o700)
    content = [path.read_text(), os.listxattr(path)] if path.is_file() else []
    return [status.st_mode, status.st_mtime, status.st_nlink, content]


def is_struck(pid: int) -> bool:
    """Whether a process has ended, is about to, or has a signal waiting for it, however slow the machine is."""
    pending = re.findall(r"(?:Sig|Shd)Pnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state in "ZX" or bool(int(fields[5]) & _EXITING) or any(int(mask, 16) for mask in pending)


def facts(home: Path, victim: subprocess.Popen[bytes]) -> Any:
    """What a harm would change: files with rights, times and attributes, and another process."""
    home_rights = home.stat().st_mode
    home.chmod(0o700)
    files = {name: file_facts(home / name) for name in ("precious", "empty") if (home / name).exists()}
    others = [name for name in os.listdir(home) if name == "precious2"]
    pid = victim.pid
    if not is_struck(pid):
        status = Path(f"/proc/{pid}/status").read_text()
        traced = re.findall(r"TracerPid:.*", status)
        limits = Path(f"/proc/{pid}/limits").read_text()
        turns = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
        return [home_rights, files, others, traced, limits, turns]
    return [home_rights, files, others, victim.wait(60)]


def prepare(home: Path) -> subprocess.Popen[bytes]:
    subprocess.run(["rm", "-rf", *(str(home / name) for name in ("precious", "precious2", "empty"))], check=True)
    (home / "precious").write_text("x")
    (home / "precious").chmod(0o700)
    (home / "empty").mkdir(0o700)
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


def harm(home: Path, program: str, do: Callable[[str], object]) -> bool:
    """Whether a program that is run by ``do`` changes anything."""
    victim = prepare(home)
    try:
        before = facts(home, victim)
        numbers = {name: row[MACHINES[platform.machine()][0]] for name, row in CALLS["processes"].items()}
        places = {"file": home / "precious", "home": home, "pid": victim.pid, "tgkill": numbers["tgkill"]}
        do(LIBC + program.format(**places))
        return bool(facts(home, victim) != before)
    finally:
        victim.kill()
        victim.wait()


def unheld(program: str) -> bool:
    """Whether it runs to its end when nothing holds it."""
    words = [sys.executable, "-I", "-c", program]
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False, cwd=os.environ["PWD"]).returncode == 0


LANDLOCK = 444


def test_what_an_ordinary_user_runs_harms_neither_files_nor_processes_of_that_user() -> None:
    def work(home: Path) -> Any:
        os.environ["PWD"] = str(home)
        harms = {**FILES, **OTHERS}
        can = {name: harm(home, program, unheld) for name, program in harms.items()}
        done = {name: harm(home, program, passes) for name, program in harms.items()}
        return can, done

    can, done = as_ordinary_user(work)
    assert [name for name, harmed in done.items() if harmed] == []
    harmless = {name for name, harmed in can.items() if not harmed}
    assert harmless <= {"rights, newest call", "trace", "attribute", "priority"}  # not on each kernel; low already


def test_without_landlock_the_same_harms_are_held_and_no_file_is_written() -> None:
    def work(home: Path) -> Any:
        kernel_without([LANDLOCK], errno.ENOSYS)
        need_limits()
        writes = passes("open('here', 'w').write('x')")
        return writes, passes("x = 1"), {n: harm(home, p, passes) for n, p in {**FILES, **OTHERS}.items()}

    writes, runs, done = as_ordinary_user(work)
    assert [name for name, harmed in done.items() if harmed] == []
    assert (writes, runs) == (False, True)


@pytest.mark.parametrize("landlock", [True, False])
def test_what_an_ordinary_user_runs_reaches_nothing(landlock: bool) -> None:
    def work(home: Path) -> Any:
        os.environ["PWD"] = str(home)
        (home / "precious").write_text("x")
        programs = {name: LIBC + p.format(file=home / "precious", home=home) for name, p in REACHING.items()}
        can = [name for name, program in programs.items() if not unheld(program)]
        if not landlock:
            kernel_without([LANDLOCK], errno.ENOSYS)
        return can, [name for name, program in programs.items() if passes(program)]

    cannot, reached = as_ordinary_user(work)
    assert set(cannot) <= {"own namespace"}
    assert set(reached) == (set() if landlock else ONLY_LANDLOCK)


def test_where_calls_cannot_be_filtered_nothing_is_run_and_it_is_said() -> None:
    def work(home: Path) -> Any:
        marker = home / "ran"
        kernel_without_filters(errno.EINVAL)
        try:
            need_limits()
        except RefusedError as error:
            return error.code, str(error), passes(f"open({str(marker)!r}, 'w')"), passes("x = 1"), marker.exists()
        return "nothing was said"

    code, text, *rest = as_ordinary_user(work)
    assert (code, rest) == ("TR-EVALUATE-CODE", [False, False, False])
    assert "prctl: Invalid argument" in text
    assert "execute_code" in text


def test_an_ordinary_user_needs_no_more_than_this_kernel() -> None:
    assert as_ordinary_user(lambda home: [need_limits(), passes("open('here', 'w').write('x')")]) == [None, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's programs are another user's")
def test_what_root_runs_has_no_capability_and_reads_no_secret() -> None:
    header = "h, s = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\nc(libc.capget(h, s))\n"
    assert passes(LIBC + header + "assert s[0] & ~4 == s[1] & ~4 == s[2] == 0 and posix.getuid() == 65534")
    assert not passes("open('/etc/shadow').read()")
    assert Path("/etc/shadow").read_text()


def _caught(harm: str) -> str:
    return f"import os, shutil\ntry:\n    {harm}\nexcept TypeError:\n    pass\nelse:\n    1 / 0"


@pytest.mark.parametrize("harm", ["os.kill(os.getpid(), 0)", "os.chmod('f', 0)", "os.system('true')", "os.fork()"])
def test_names_of_harmful_functions_are_gone_before_the_kernel_is_asked(harm: str) -> None:
    assert passes(_caught(harm))


def test_names_that_remove_files_are_gone_where_nothing_confines_them_to_a_folder() -> None:
    def work(home: Path) -> Any:
        kernel_without([LANDLOCK], errno.ENOSYS)
        return [passes(_caught(harm)) for harm in ("os.remove('f')", "shutil.rmtree('f')", "os.rename('f', 'g')")]

    assert as_ordinary_user(work) == [True] * 3


@pytest.mark.parametrize(
    ("machine", "file"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_numbers_of_calls_are_those_of_the_kernels_headers(machine: str, file: str) -> None:
    path = Path("/usr/include") / file
    if not path.exists():
        pytest.skip("no kernel headers here")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    ours = {name: row[MACHINES[machine][0]] for group in CALLS.values() for name, row in group.items()}
    assert len(ours) > 100
    assert len(found) > 300
    for name, number in ours.items():
        if name in found or name != "fchmodat2":  # younger than some headers
            assert (None if number is None else str(number)) == found.get(name), name


def test_a_filter_of_another_machine_ends_the_process() -> None:
    def work(home: Path) -> Any:
        del home
        child = os.fork()
        if not child:
            audit = next(audit for name, (_, audit) in MACHINES.items() if name != platform.machine())
            install(start(audit))
            ctypes.CDLL(None).getppid()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert as_ordinary_user(work) == -signal.SIGSYS


@pytest.mark.parametrize("abi", range(1, 8))
def test_every_landlock_there_was_keeps_files(abi: int) -> None:
    def work(home: Path) -> Any:
        if call("syscall", LANDLOCK, None, 0, 1) < abi:
            return "newer than this kernel"
        (home / "own").mkdir()
        (home / "closed/within").mkdir(parents=True)
        (home / "closed").chmod(0)
        (home / "precious").write_text("x")
        limited_files._abi = lambda: abi  # in this forked process alone
        call("prctl", 38, 1, 0, 0, 0)
        assert keep_files(("/usr", str(home / "closed/within"), str(home / "nowhere")), (str(home / "own"),))
        (home / "own/file").write_text("y")
        assert (home / "own/file").read_text() == "y"
        assert os.listdir("/usr")
        refused = []
        for name, do in (
            ("read", (home / "precious").read_text),
            ("write", lambda: (home / "precious").write_text("z")),
            ("remove", (home / "precious").unlink),
            ("move", lambda: (home / "own/file").rename(home / "own2")),
            ("make", (home / "new").mkdir),
            ("program", lambda: os.execv("/usr/bin/true", ["true"])),
        ):
            try:
                do()
            except OSError:
                refused.append(name)
        return refused

    assert as_ordinary_user(work) in (
        ["read", "write", "remove", "move", "make", "program"],
        "newer than this kernel",
    )
