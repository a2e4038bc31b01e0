"""The process in which a program that a model wrote is run. See ``execute``, which starts it.

It needs the standard library alone, gives up what it can for good, sets limits and then becomes the program. Where it
cannot give up what it must, it runs nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import shutil
import subprocess
import sys

from .libc import call
from .limited_calls import keep_calls
from .limited_files import keep_files

__all__ = ["give_up", "limit", "run", "unname"]

_KEEP_CAPABILITIES, _NO_NEW_PRIVILEGES = 8, 38  # prctl.h
_CAPABILITY_VERSION, _READ_ANYTHING = 0x20080522, 1 << 2  # capability.h
_NOBODY = 65534  # the customary user without rights
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom",
)  # fmt: skip
_UNNAMED = {
    os: (
        "chflags chmod chown chroot execl execle execlp execlpe execv execve execvp execvpe fchmod fchown fork forkpty "
        "kill killpg lchflags lchmod lchown link mkfifo mknod popen posix_spawn posix_spawnp removexattr setxattr "
        "spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe symlink system truncate utime"
    ),
    shutil: "chown",
    subprocess: "Popen call check_call check_output run",
}
_REMOVING = {os: "remove removedirs rename renames replace rmdir unlink", shutil: "move rmtree"}
"""Where Landlock confines them to the program's folder a program may use them there, as ``tempfile`` does."""


def give_up(folder: str) -> bool:
    """No new privileges, none of root; of files only those of Python and the system, to read, and ``folder``; no system
    call that reaches beyond this process. Where the kernel has no Landlock, no file at all may be written, and whatever
    the user may read can be read.

    Returns:
        whether files are written in ``folder`` alone.

    Raises:
        OSError: the kernel does not let it.
    """
    if sys.platform == "linux":
        call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _become_harmless()
        library = os.path.dirname(os.path.realpath(os.__file__))
        kept = keep_files((sys.prefix, sys.base_prefix, library, *_SYSTEM), (folder, os.devnull))
    else:
        kept = False
    keep_calls(writes=kept)
    return kept


def _become_harmless() -> None:
    """Leave root, and all capabilities. Where only root can read the standard library, reading is what is kept."""
    kept = 0
    if os.geteuid() == 0:
        os.seteuid(_NOBODY)
        readable = os.access(os.__file__, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
        os.seteuid(0)
        if not readable:
            kept = _READ_ANYTHING
            call("prctl", _KEEP_CAPABILITIES, 1, 0, 0, 0)
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept)  # effective, permitted; none to inherit
    call("capset", header, sets)


def limit(limits: dict[str, int]) -> None:
    """Set each limit, hard and soft: names are those of ``resource``."""
    for name, wanted in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def unname(*, removes: bool) -> None:
    """Take away the names of functions that do harm, so that an accident ends in an exception before the kernel is
    asked at all. It is no barrier to a program that wants to get past it.

    Args:
        removes: those that remove and rename files stay.
    """
    for table in (_UNNAMED,) if removes else (_UNNAMED, _REMOVING):
        for module, names in table.items():
            for name in names.split():
                if hasattr(module, name):
                    setattr(module, name, None)


def run(limits: str, program: str) -> None:
    """Become the program at a path, in the present folder. ``limits``: JSON, as ``execute.Limits.to_json``."""
    limit(json.loads(limits))
    try:
        kept = give_up(os.getcwd())
    except OSError as error:
        sys.exit(str(error))
    unname(removes=kept)
    sys.argv[:] = [program]
    runpy.run_path(program, run_name="__main__")
