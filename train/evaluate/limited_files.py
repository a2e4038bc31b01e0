"""Which files a process may still open, by the kernel's Landlock (Linux 5.13 and later): no rights are needed for it.

Landlock is asked for all that the running kernel knows of; see ``linux/landlock.h`` for the numbers.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from .libc import call

__all__ = ["keep_files"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, alike on every machine
_VERSION, _BENEATH = 1, 1  # LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_ALL_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights to files that are handled, hence refused unless a rule gives them, from an ABI on."""
_DEVICES = 1 << 6 | 1 << 11  # nobody makes these
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
_TCP = 0b11  # bind, connect; from ABI 4
_SCOPED = 0b11  # abstract sockets and signals of processes outside; from ABI 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _abi() -> int:
    """0 where the kernel has no Landlock, or has it switched off."""
    try:
        return call("syscall", _CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def keep_files(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """From now on this process reads files beneath ``readable`` and writes those beneath ``writable``, and can do
    nothing else to a file; nor can it signal processes outside where the kernel is new enough (6.12). For good.

    The process must have given up new privileges. Paths that it does not reach are left out. Rights, owners, times and
    attributes of files are none of Landlock's business, see ``limited_calls``.

    Returns:
        False: nothing was done, since this kernel has no Landlock.

    Raises:
        OSError: it has, but refuses.
    """
    abi = _abi()
    if abi < 1:
        return False
    handled = _ALL_OF_ABI[max(known for known in _ALL_OF_ABI if known <= abi)]
    ruleset = _Ruleset(handled, _TCP, _SCOPED)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = call("syscall", _CREATE, ctypes.byref(ruleset), size, 0)
    try:
        for path in readable:
            _allow(rules, path, _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(rules, path, handled & ~_DEVICES & ~1)  # not to be executed
        call("syscall", _RESTRICT, rules, 0)
    finally:
        os.close(rules)
    return True


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        beneath = _Beneath(rights, place)
        call("syscall", _ADD, rules, _BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(place)
