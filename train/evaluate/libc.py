"""Functions of the C library that Python has no name for. The standard library alone is needed."""

from __future__ import annotations

import ctypes
import os
from typing import Any

__all__ = ["call"]


def call(name: str, *arguments: Any) -> int:
    """What a C function returns.

    Args:
        arguments: whole numbers go as C's ``long``, all else as ctypes has it.

    Raises:
        OSError: it returned -1; or the library has no such function.
    """
    library = ctypes.CDLL(None, use_errno=True)
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise OSError(f"no function {name} here") from error
    found: int = function(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if found == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return found
