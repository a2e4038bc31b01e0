"""The process in which a program that a model wrote is run: ``python -I limited_child.py LIMITS PROGRAM``.

It needs the standard library alone, gives up what it can (network, other identities, new privileges), sets limits and
then becomes the program. See ``execute``, which starts it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import sys

__all__ = ["give_up", "limit"]

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # sched.h
_KEEP_CAPABILITIES, _NO_NEW_PRIVILEGES = 8, 38  # prctl.h
_CAPABILITY_VERSION, _READ_ANYTHING = 0x20080522, 1 << 2  # capability.h
_NOBODY = 65534  # the customary user without rights


def give_up() -> None:
    """No new privileges; no network, where the kernel lets an ordinary process leave it; never as root."""
    libc = ctypes.CDLL(None, use_errno=True)
    linux = sys.platform == "linux"
    if os.geteuid() == 0:
        if linux:
            libc.unshare(_NEW_NET)
        _become_nobody(libc if linux else None)
    elif linux:
        libc.unshare(_NEW_USER | _NEW_NET)
    if linux:
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _become_nobody(libc: ctypes.CDLL | None) -> None:
    """Leave root for good. Where only root can read the standard library, reading is what is kept of its rights."""
    os.seteuid(_NOBODY)
    readable = os.access(os.__file__, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    os.seteuid(0)
    if libc is not None and not readable:
        libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    if libc is not None and not readable:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        sets = (ctypes.c_uint32 * 6)(_READ_ANYTHING, _READ_ANYTHING)  # effective, permitted; none to inherit
        libc.capset(header, sets)


def limit(limits: dict[str, int]) -> None:
    """Set each limit, hard and soft: names are those of ``resource``."""
    for name, wanted in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    give_up()
    limit(json.loads(sys.argv[1]))
    program = sys.argv[2]
    sys.argv[:] = [program]
    runpy.run_path(program, run_name="__main__")
