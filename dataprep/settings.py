"""The only place where dataprep reads the environment: where compiled kernels are kept, what task processes inherit.

``NUMBA_CACHE_DIR`` is respected when set; else ``$XDG_CACHE_HOME/tokenreel`` (``~/.cache/tokenreel``). Below it lies
one
folder per state of the kernel sources: numba notices a change of the file that holds a kernel, but not of the files it
calls into, and would go on with stale machine code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

__all__ = ["child_environment_set", "kernel_cache_folder", "use_kernel_cache"]

_SOURCES = ("kernels/*.py", "formats/scanner.py", "formats/json_values.py", "normalize.py")


def kernel_cache_folder() -> Path:
    """Folder of this version's compiled kernels; not created here."""
    package = Path(__file__).parent
    digest = xxhash.xxh3_64()
    for pattern in _SOURCES:
        for path in sorted(package.glob(pattern)):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR")
    if base:
        return Path(base) / f"tokenreel-{digest.hexdigest()}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "tokenreel" / f"kernels-{digest.hexdigest()}"


def use_kernel_cache() -> None:
    """Point numba at the cache folder; must run before the first kernel is declared."""
    import numba

    numba.config.CACHE_DIR = str(kernel_cache_folder())  # type: ignore[attr-defined]


@contextmanager
def child_environment_set() -> Iterator[None]:
    """Start processes with the environment of ``loader.settings.child_environment``, one thread each unless told
    otherwise, and with logs of errors that hold no values: loguru would print the local variables of a failed task,
    which are documents.

    ``multiprocessing`` hands on this process's own environment, so it is changed for the moment of the start.
    """
    from loader.settings import child_environment

    before = dict(os.environ)
    wanted = child_environment()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        wanted.setdefault(name, "1")
    wanted.setdefault("LOGURU_DIAGNOSE", "NO")
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)
