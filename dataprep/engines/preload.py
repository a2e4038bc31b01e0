"""What the fork server does once, so that each task's process starts with it: imports, and compiled kernels loaded.

Loading the machine code of all kernels takes the better part of a second, compiling it many; a process forked
afterwards has it
already. Nothing here may leave a thread behind. Failures are left to the task that needs the thing: it will say so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import tempfile
from pathlib import Path

import numpy as np

__all__ = ["warm_kernels"]

_MODULES = (
    "datatrove.executor.base",
    "pyarrow",
    "pyarrow.parquet",
    "dataprep.dedup.steps",
    "dataprep.tokenizer_stage",
    "dataprep.tokenize",
    "dataprep.mix_stage",
    "dataprep.build",
)


def warm_kernels() -> None:
    """Call the kernels that many tasks share once, with the types they will see: reading, signing, packing."""
    from ..dedup.config import SignConfig
    from ..dedup.signatures import sign_file
    from ..documents import InputFile
    from ..kernels.pack import gather_tokens
    from ..pack import pack_window

    with tempfile.TemporaryDirectory() as folder:
        text = "one two three four five six seven eight nine ten \u4f60\u597d"
        (Path(folder) / "warm.jsonl").write_bytes(json.dumps({"text": text}).encode() + b"\n")
        sign_file(InputFile("warm", 0, folder, "warm.jsonl"), 0, SignConfig(), Path(folder))
    pack_window(np.array([3, 5, 9], np.int64), 8, 0)
    pieces = np.array([[0, 0, 3, 0, 3]], np.int64)
    gather_tokens(np.zeros((1, 4), np.uint16), pieces, np.zeros(4, np.uint16), np.zeros(2, np.int64))


def _prepare() -> None:
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        warm_kernels()
    gc.collect()
    gc.freeze()  # or each child's first collection would touch, and so copy, every page of this process


_prepare()
