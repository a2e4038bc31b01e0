"""Typed fronts of the numba decorators, so that kernels stay ordinary annotated functions for the type checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic as _intrinsic

from ..settings import kernel_cache_folder, use_kernel_cache
from .cache import temporary_folders, writable_folder

__all__ = ["helper", "intrinsic", "kernel"]


def _place_cache() -> bool:
    """Point numba at a folder that can be written; False without one: machine code then lives in memory alone, and
    every process compiles what it calls."""
    use_kernel_cache()
    wanted = kernel_cache_folder()
    folder = writable_folder(wanted, temporary_folders(wanted))
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder is not None


_ON_DISK = _place_cache()

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(function: _F) -> _F:
    """Compile at the first call, keep the machine code on disk (where that can be written), release the GIL. Wraparound
    indexing stays legal."""
    return cast(_F, numba.njit(cache=_ON_DISK, nogil=True, error_model="numpy")(function))


def helper(function: _F) -> _F:
    """A function that is compiled into the kernels which call it."""
    return cast(_F, numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that emits LLVM instructions for its call."""
    return cast(Callable[..., Any], _intrinsic(function))
