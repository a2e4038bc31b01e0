"""What the fork server imports once, so that each task's process starts with it: nothing here may start a thread."""

from __future__ import annotations

import importlib

_MODULES = (
    "datatrove.executor.base",
    "numpy",
    "pyarrow",
    "pyarrow.parquet",
    "dataprep.dedup.steps",
    "dataprep.tokenize",
    "dataprep.build",
)

for _name in _MODULES:
    try:
        importlib.import_module(_name)
    except ImportError:  # a task that needs it will say so
        continue
