"""Every system call of a process tree that changes or syncs files, seen before and after, and failed at will.

The tracer forks, and the child installs a seccomp filter that stops at such calls only (``SECCOMP_RET_TRACE``), so all
else runs at full speed; threads and processes that it starts are traced too, whatever language their code is in. Linux
on x86-64 alone. Stores through a shared writable mapping are no calls: they are seen as the ``mmap`` that allows them.

``man 2 ptrace``, ``man 2 seccomp``; numbers from arch/x86/entry/syscalls/syscall_64.tbl.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["KILL", "SUPPORTED", "TORN", "Action", "Call", "Fail", "Observer", "kill_tree", "trace"]

SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"

_FD, _PATH, _AT_PATH, _PATHS, _AT_PATHS, _AT_LINK = range(6)
_CALLS: dict[int, tuple[str, int]] = {
    1: ("write", _FD),
    18: ("write", _FD),  # pwrite64
    20: ("write", _FD),  # writev
    296: ("write", _FD),  # pwritev
    328: ("write", _FD),  # pwritev2
    40: ("write", _FD),  # sendfile, to its first argument
    326: ("write", _FD),  # copy_file_range, to its third
    74: ("fsync", _FD),
    75: ("fsync", _FD),  # fdatasync
    77: ("truncate", _FD),
    285: ("fallocate", _FD),
    9: ("mmap", _FD),
    76: ("truncate", _PATH),
    82: ("rename", _PATHS),
    264: ("rename", _AT_PATHS),
    316: ("rename", _AT_PATHS),
    83: ("mkdir", _PATH),
    258: ("mkdir", _AT_PATH),
    84: ("rmdir", _PATH),
    87: ("unlink", _PATH),
    263: ("unlink", _AT_PATH),
    86: ("link", _PATHS),
    265: ("link", _AT_LINK),
    2: ("open", _PATH),
    257: ("open", _AT_PATH),
    85: ("open", _PATH),  # creat
}
_UNKNOWN = (88, 266, 275, 437, 425, 162, 306, 277)
"""symlink, symlinkat, splice, openat2, io_uring_setup, sync, syncfs, sync_file_range: calls that the job does not make
and the models know nothing of. They stop the test rather than pass unseen."""
_COUNTED_FD = {326: 2, 9: 4}  # where the descriptor of the file that changes stands
_SHORTENED = {1, 18}
_AT_FDCWD = -100
_AT_REMOVEDIR = 0x200
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000
_CONT, _GETREGS, _SETREGS, _SYSCALL, _SEIZE, _LISTEN, _GETEVENTMSG = 7, 12, 13, 24, 0x4206, 0x4208, 0x4201
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000  # sysgood, fork, vfork, clone, exec, seccomp, exitkill
_EVENT_SECCOMP, _EVENT_STOP, _EVENTS_BIRTH = 7, 128, (1, 2, 3)
_WALL = 0x40000000
_NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
    "fs_base gs_base ds es fs gs"
)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@dataclass(frozen=True)
class Fail:
    """The call is not made and returns this error number."""

    number: int


KILL = "kill"
"""SIGKILL for the whole tree instead of the call."""
TORN = "torn"
"""Of a write its first half, of anything else nothing, then SIGKILL for the whole tree."""
Action = str | Fail | None


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        name: ``write``, ``fsync``, ``truncate``, ``fallocate``, ``mmap``, ``rename``, ``mkdir``, ``rmdir``, ``unlink``,
            ``link`` or ``open`` (only one that may create or truncate).
        path: the file or folder, absolute; of ``rename`` and ``link`` the old name.
        target: the new name of ``rename`` and ``link``.
        pid: thread that makes it.
        fd: of calls on a descriptor, else -1.
        flags: of ``open``.
    """

    name: str
    path: str
    target: str
    pid: int
    fd: int = -1
    flags: int = 0


class Observer(Protocol):
    """What looks on and decides."""

    def before(self, call: Call) -> Action:
        """The call is about to be made."""

    def after(self, call: Call, result: int) -> None:
        """It was made and returned ``result`` (an error is its negative number)."""


class _Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in _NAMES.split()]

    def arguments(self) -> list[int]:
        return [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _filter_program() -> bytes:
    """BPF: stop at the calls of the tables; at ``open`` that may create or truncate, at ``mmap`` that shares."""
    program = [(0x20, 0, 0, 0)]  # load the number of the call
    conditions = {2: (1, os.O_CREAT | os.O_TRUNC), 257: (2, os.O_CREAT | os.O_TRUNC), 9: (3, 1)}
    for number in [*_CALLS, *_UNKNOWN]:
        if number in conditions:
            argument, mask = conditions[number]
            program += [(0x15, 0, 4, number), (0x20, 0, 0, 16 + 8 * argument), (0x45, 0, 1, mask)]
            program += [(0x06, 0, 0, _TRACE), (0x06, 0, 0, _ALLOW)]
        else:
            program += [(0x15, 0, 1, number), (0x06, 0, 0, _TRACE)]
    program.append((0x06, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _install_filter() -> None:
    code = ctypes.create_string_buffer(_filter_program())
    program = struct.pack("HxxxxxxQ", (len(code) - 1) // 8, ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(program)
    if _libc.prctl(38, 1, 0, 0, 0) or _libc.prctl(22, 2, buffer, 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def _string_at(pid: int, address: int) -> str:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        data = b""
        while b"\0" not in data:
            memory.seek(address + len(data))
            data += memory.read(min(256, 4096 - (address + len(data)) % 4096))
    return os.fsdecode(data[: data.index(b"\0")])


def _signed(value: int) -> int:
    return ctypes.c_int(value & 0xFFFFFFFF).value


def _absolute(pid: int, folder: int, address: int) -> str:
    path = _string_at(pid, address)
    if not path.startswith("/"):
        base = f"/proc/{pid}/cwd" if folder == _AT_FDCWD else f"/proc/{pid}/fd/{folder}"
        path = os.path.join(os.readlink(base), path)
    return os.path.normpath(path)


def _read_call(pid: int, registers: _Registers) -> Call | None:
    """What the call is about; None if it is none of files."""
    number = registers.orig_rax
    if number in _UNKNOWN:
        raise AssertionError(f"system call {number} is not modelled")
    name, form = _CALLS[number]
    args = registers.arguments()
    if form == _FD:
        fd = _signed(args[_COUNTED_FD.get(number, 0)])
        if name == "mmap" and (fd < 0 or not args[2] & 2):
            return None
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return None
        return Call(name, path, "", pid, fd) if path.startswith("/") else None
    if form in (_PATH, _AT_PATH):
        shift = int(form == _AT_PATH)
        folder = _signed(args[0]) if shift else _AT_FDCWD
        path = _absolute(pid, folder, args[shift])
        if number == 263 and args[2] & _AT_REMOVEDIR:
            name = "rmdir"
        flags = args[1 + shift] if name == "open" else 0
        return Call(name, path, "", pid, flags=flags if number != 85 else os.O_CREAT | os.O_TRUNC)
    if form == _PATHS:
        return Call(name, _absolute(pid, _AT_FDCWD, args[0]), _absolute(pid, _AT_FDCWD, args[1]), pid)
    paths = _absolute(pid, _signed(args[0]), args[1]), _absolute(pid, _signed(args[2]), args[3])
    return Call(name, *paths, pid)


@dataclass
class _Tree:
    """Tracees alive, calls that are under way, and whether the tree has been killed."""

    root: int
    live: set[int] = field(default_factory=set)
    open_calls: dict[int, tuple[Call, bool]] = field(default_factory=dict)
    killed: bool = False
    status: int | None = None
    gone: set[int] = field(default_factory=set)

    def began(self, pid: int) -> None:
        """A tracee is there, unless its end was seen before its beginning."""
        if pid not in self.gone:
            self.live.add(pid)

    def ended(self, pid: int, status: int) -> None:
        """It is no more."""
        self.gone.add(pid)
        self.live.discard(pid)
        if pid == self.root:
            self.status = status


def kill_tree(pids: set[int]) -> None:
    """SIGKILL for each."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def trace(body: Callable[[], int], root: str, observer: Observer, limit_s: float = 120) -> int | None:
    """Run ``body`` in a forked process under the eyes of ``observer``, which sees the calls on files below ``root``.

    Returns the exit code; None if the observer had the tree killed. Returns only when every process of it is gone. The
    ends of other children of the calling process are lost.

    Raises:
        TimeoutError: it did not end.
        AssertionError: it was ended by a signal that nobody asked for.
    """
    _libc.prctl(36, 1, 0, 0, 0)  # orphans come to this process
    reader, writer = os.pipe()
    root_pid = os.fork()
    if root_pid == 0:
        code = 111
        try:
            os.close(writer)
            os.read(reader, 1)
            os.close(reader)
            _install_filter()
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(reader)
    tree = _Tree(root_pid, {root_pid})
    try:
        _ptrace(_SEIZE, root_pid, 0, _OPTIONS)
        os.close(writer)
        _follow(tree, root, observer, time.monotonic() + limit_s)
    except BaseException:
        _end(tree)
        raise
    if tree.killed:
        return None
    assert tree.status is not None
    code = os.waitstatus_to_exitcode(tree.status)
    assert code >= 0, f"ended by signal {-code}"
    return code


def _follow(tree: _Tree, root: str, observer: Observer, deadline: float) -> None:
    while tree.live:
        pid, status = os.waitpid(-1, _WALL | (os.WNOHANG if tree.killed else 0))
        if pid == 0:
            time.sleep(0.0005)
            kill_tree(tree.live)
            continue
        if time.monotonic() > deadline:
            raise TimeoutError("the traced processes do not end")
        if not os.WIFSTOPPED(status):
            tree.ended(pid, status)
            continue
        tree.began(pid)
        if tree.killed:
            kill_tree({pid})
            continue
        try:
            _stopped(tree, pid, status, root, observer)
        except ProcessLookupError:
            continue  # it was killed meanwhile
    _bury()


def _end(tree: _Tree) -> None:
    """Kill everything and wait for it."""
    while tree.live:
        kill_tree(tree.live)
        pid, status = os.waitpid(-1, _WALL)
        if os.WIFSTOPPED(status):
            tree.began(pid)
        else:
            tree.ended(pid, status)
    _bury()


def _bury() -> None:
    """Take note of orphans' deaths: a process that nobody waited for still seems to live."""
    try:
        while os.waitpid(-1, _WALL | os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _stopped(tree: _Tree, pid: int, status: int, root: str, observer: Observer) -> None:
    event, number = status >> 16, os.WSTOPSIG(status)
    if event == _EVENT_SECCOMP:
        _entered(tree, pid, root, observer)
    elif number == signal.SIGTRAP | 0x80:
        if pid in tree.open_calls:
            registers = _Registers()
            _ptrace(_GETREGS, pid, 0, ctypes.addressof(registers))
            call, last = tree.open_calls.pop(pid)
            observer.after(call, ctypes.c_longlong(registers.rax).value)
            if last:
                tree.killed = True
                kill_tree(tree.live)
                return
        _ptrace(_CONT, pid)
    elif event in _EVENTS_BIRTH:
        child = ctypes.c_ulong()
        _ptrace(_GETEVENTMSG, pid, 0, ctypes.addressof(child))
        tree.began(child.value)
        _ptrace(_CONT, pid)
    elif event == _EVENT_STOP:
        _ptrace(_CONT if number == signal.SIGTRAP else _LISTEN, pid)
    else:
        _ptrace(_CONT, pid, 0, 0 if event else number)


def _entered(tree: _Tree, pid: int, root: str, observer: Observer) -> None:
    """A call is about to be made: let it, fail it, or end everything."""
    registers = _Registers()
    _ptrace(_GETREGS, pid, 0, ctypes.addressof(registers))
    try:
        call = _read_call(pid, registers)
    except (FileNotFoundError, ProcessLookupError):
        call = None
    if call is None or not any(path == root or path.startswith(root + "/") for path in (call.path, call.target)):
        _ptrace(_CONT, pid)
        return
    action = observer.before(call)
    torn = action == TORN and registers.orig_rax in _SHORTENED and registers.rdx > 1
    if isinstance(action, Fail):
        registers.orig_rax = 0xFFFFFFFFFFFFFFFF
        registers.rax = (-action.number) & 0xFFFFFFFFFFFFFFFF
        _ptrace(_SETREGS, pid, 0, ctypes.addressof(registers))
        _ptrace(_CONT, pid)
        return
    if action is not None and not torn:
        tree.killed = True
        kill_tree(tree.live)
        return
    if torn:
        registers.rdx //= 2
        _ptrace(_SETREGS, pid, 0, ctypes.addressof(registers))
    tree.open_calls[pid] = (call, torn)
    _ptrace(_SYSCALL, pid)


ERRNO = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
"""What a file system says when it is full, and when its disk is broken."""
