"""Which system calls a process may still make, by a filter of the kernel's (seccomp): no rights are needed for it.

The filter answers "not permitted" to whatever reaches beyond the process: others' signals, limits and memory, new
processes and programs, sockets (but pairs of them), shared memory, rights and owners of files, mounts; and to calls
newer than itself. Its numbers are those of ``asm/unistd_64.h`` (x86_64) and ``asm-generic/unistd.h`` (aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Sequence

from .libc import call

__all__ = ["CALLS", "MACHINES", "Instruction", "install", "keep_calls", "refuse", "start"]

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant: ``struct sock_filter``."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> column of the tables, ``AUDIT_ARCH_`` of ``linux/audit.h``."""
_FIRST_UNKNOWN = 463  # calls from here on are newer than these tables; x86_64's second set of numbers lies above too

_PROCESSES = """
fork 57 -, vfork 58 -, clone 56 220, clone3 435 435, execve 59 221, execveat 322 281, kill 62 129, tkill 200 130,
tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_open 434 434, pidfd_getfd 438 438,
pidfd_send_signal 424 424, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271,
process_madvise 440 440, process_mrelease 448 448, kcmp 312 272, migrate_pages 256 238, move_pages 279 239,
setpriority 141 140, ioprio_set 251 30, sched_setaffinity 203 122, sched_setattr 314 274, sched_setparam 142 118,
sched_setscheduler 144 119, setpgid 109 154, setsid 112 157
"""
_MACHINE = """
socket 41 198, shmget 29 194, shmctl 31 195, shmat 30 196, semget 64 190, semctl 66 191,
semop 65 193, semtimedop 220 192, msgget 68 186, msgctl 71 187, msgsnd 69 189, msgrcv 70 188, mq_open 240 180,
mq_unlink 241 181, mq_notify 244 184, io_uring_setup 425 425, add_key 248 217, request_key 249 218, keyctl 250 219,
bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, unshare 272 97, setns 308 268, mount 165 40, umount2 166 39,
pivot_root 155 41, chroot 161 51, move_mount 429 429, fsopen 430 430, fsmount 432 432, fspick 433 433,
open_tree 428 428, mount_setattr 442 442, name_to_handle_at 303 264, open_by_handle_at 304 265, fanotify_init 300 262
"""
_ATTRIBUTES = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54,
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16,
utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, truncate 76 45, mknod 133 -, mknodat 259 33, flock 73 32
"""
_FOLDERS = """
creat 85 -, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38,
renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, openat2 437 437
"""
_BY_ARGUMENT = "prlimit64 302 261, fcntl 72 25, ioctl 16 29, open 2 -, openat 257 56"


def _parsed(text: str) -> dict[str, tuple[int | None, int | None]]:
    rows = [row.split() for row in text.replace("\n", " ").split(",")]
    return {name: (int(first), None if second == "-" else int(second)) for name, first, second in rows}


CALLS = {
    "processes": _parsed(_PROCESSES),
    "machine": _parsed(_MACHINE),
    "attributes": _parsed(_ATTRIBUTES),
    "folders": _parsed(_FOLDERS),
    "by argument": _parsed(_BY_ARGUMENT),
}
"""Group -> name -> its number on x86_64 and on aarch64, None where there is no such call."""

_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)  # F_DUPFD, F_[GS]ETFD, F_[GS]ETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no signals
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIO[NREAD, NBIO, NCLEX, CLEX]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY

_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000  # linux/seccomp.h
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # linux/prctl.h
_NOT_PERMITTED: Instruction = (_RETURN, 0, 0, _ERROR | errno.EPERM)


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step)))


def start(audit: int) -> list[Instruction]:
    """The head of a filter: another machine's calls end the process, and the call's number is loaded."""
    return [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]


def refuse(numbers: Sequence[int], error: int = errno.EPERM) -> list[Instruction]:
    """Answer these calls with an error."""
    return [step for one in numbers for step in ((_EQUAL, 0, 1, one), (_RETURN, 0, 0, _ERROR | error))]


def install(steps: Sequence[Instruction]) -> None:
    """Put a filter upon this process, for good; all other calls are allowed. New privileges are given up, too.

    Raises:
        OSError: the kernel has no filters, or refuses.
    """
    steps = [*steps, (_RETURN, 0, 0, _ALLOW)]
    program = _Program(len(steps), (_Step * len(steps))(*(_Step(*step) for step in steps)))
    call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call("prctl", _SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)


def keep_calls(*, writes: bool) -> None:
    """From now on this process can make none of ``CALLS``, except with arguments that harm nobody. For good.

    Args:
        writes: files may be opened for writing, and folders changed: something else says which.

    Raises:
        OSError: not on this machine or system.
    """
    if sys.platform != "linux" or sys.byteorder != "little" or platform.machine() not in MACHINES:
        raise OSError(f"no filter of system calls for {sys.platform} on {platform.machine()}")
    column, audit = MACHINES[platform.machine()]
    groups = ("processes", "machine", "attributes", *(() if writes else ("folders",)))
    numbers = [row[column] for group in groups for row in CALLS[group].values()]
    steps = [*start(audit), (_AT_LEAST, 0, 1, _FIRST_UNKNOWN), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    steps += refuse([number for number in numbers if number is not None])
    number = {name: row[column] for name, row in CALLS["by argument"].items()}
    steps += _only(number["prlimit64"], 0, (0,))  # its own
    steps += _only(number["fcntl"], 1, _FCNTL)
    steps += _only(number["ioctl"], 1, _IOCTL)
    if not writes:
        steps += _without(number["open"], 1, _WRITES) + _without(number["openat"], 2, _WRITES)
    install(steps)


def _low_word(argument: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _only(number: int | None, argument: int, values: Sequence[int]) -> list[Instruction]:
    """Of one call, allow these values of an argument alone; all of them are 32 bits wide in the kernel."""
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]  # past the refusal
    return _of_call(number, [_low_word(argument), *tests, _NOT_PERMITTED])


def _without(number: int | None, argument: int, bits: int) -> list[Instruction]:
    """Of one call, refuse any of these bits in an argument."""
    return _of_call(number, [_low_word(argument), (_BITS, 0, 1, bits), _NOT_PERMITTED])


def _of_call(number: int | None, steps: Sequence[Instruction]) -> list[Instruction]:
    """Steps behind which the call is allowed; other calls pass them by, their number still loaded."""
    if number is None:
        return []
    return [(_EQUAL, 0, len(steps) + 1, number), *steps, (_RETURN, 0, 0, _ALLOW)]
