"""A test in a process of its own, forked from the one that has everything imported: what it leaves behind in libraries
(torch keeps worlds, meshes and random states for good) meets no other test."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import pytest
import torch

__all__ = ["apart"]

_P = ParamSpec("_P")
_SKIPPED = 77


def apart(test: Callable[_P, None]) -> Callable[_P, None]:
    """The same test; it fails with the child's traceback and is skipped for the child's reason."""

    @wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _run(lambda: test(*args, **kwargs), writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read().decode("utf-8", "replace")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == _SKIPPED:
            pytest.skip(told)
        assert code == 0, told or f"ended with {code}"

    return run


def _run(test: Callable[[], None], writing: int) -> None:
    gc.freeze()
    torch.set_num_threads(1)
    code, told = 0, ""
    try:
        test()
    except pytest.skip.Exception as skipped:
        code, told = _SKIPPED, str(skipped)
    except BaseException:
        code, told = 1, traceback.format_exc()
    finally:
        os.write(writing, told.encode())
        os._exit(code)
