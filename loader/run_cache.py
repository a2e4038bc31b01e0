"""Which cache folder a run was trained with. ``job.json`` says it, a file for people that no checksum covers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from .run_folder import RunPaths

if TYPE_CHECKING:
    from .stream.store import StoreOptions

__all__ = ["store_options"]


def store_options(paths: RunPaths) -> StoreOptions:
    """How the Datasets of a run are reached by who looks into them: in the cache of its ``run:`` block where that is
    there and can be written, else, as on another machine, in the user's own."""
    from .stream.store import StoreOptions

    try:
        value = json.loads((paths.root / "job.json").read_bytes())
    except (OSError, ValueError):
        return StoreOptions()
    run = value.get("run") if isinstance(value, dict) else None
    block: dict[str, Any] = run if isinstance(run, dict) else {}
    cache, limit = block.get("cache"), block.get("cache_bytes")
    if not isinstance(cache, str) or not os.path.isabs(cache):
        return StoreOptions()
    if not (os.path.isdir(cache) and os.access(cache, os.W_OK | os.X_OK)):
        return StoreOptions()
    return StoreOptions(cache, limit if type(limit) is int and limit > 0 else None)
