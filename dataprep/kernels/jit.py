"""Typed fronts of the numba decorators, so that kernels stay ordinary annotated functions for the type checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic as _intrinsic

from ..settings import use_kernel_cache

__all__ = ["helper", "intrinsic", "kernel"]

use_kernel_cache()

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(function: _F) -> _F:
    """Compile at the first call, keep the machine code on disk, release the GIL. Wraparound indexing stays legal."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def helper(function: _F) -> _F:
    """A function that is compiled into the kernels which call it."""
    return cast(_F, numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that emits LLVM instructions for its call."""
    return cast(Callable[..., Any], _intrinsic(function))
