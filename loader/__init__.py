"""Streaming loader: shards, order, stream, look-up. Importing it costs numpy and xxhash only.

The names below are the public ones; each is imported from its module when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError
    from .order import BatchStage, Cursor, MixtureStage, Plan, PlanConfig, SkipEntry, SkipList, SourceShape
    from .run_view import RunView, open_run
    from .shards import Dataset, open_dataset
    from .stream.batch import Batch, read_batch
    from .stream.open import open_stream
    from .stream.store import fetch_dataset
    from .stream.stream import Stream

__all__ = [
    "Batch",
    "BatchStage",
    "ConfigError",
    "Cursor",
    "DamageError",
    "Dataset",
    "JobError",
    "MixtureStage",
    "Plan",
    "PlanConfig",
    "RefusedError",
    "RunView",
    "SkipEntry",
    "SkipList",
    "SourceShape",
    "Stream",
    "TokenreelError",
    "fetch_dataset",
    "open_dataset",
    "open_run",
    "open_stream",
    "read_batch",
]

_MODULES = {
    ".errors": ("ConfigError", "DamageError", "JobError", "RefusedError", "TokenreelError"),
    ".order": ("BatchStage", "Cursor", "MixtureStage", "Plan", "PlanConfig", "SkipEntry", "SkipList", "SourceShape"),
    ".run_view": ("RunView", "open_run"),
    ".shards": ("Dataset", "open_dataset"),
    ".stream.batch": ("Batch", "read_batch"),
    ".stream.open": ("open_stream",),
    ".stream.store": ("fetch_dataset",),
    ".stream.stream": ("Stream",),
}


def __getattr__(name: str) -> Any:
    """A public name, from its module."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
