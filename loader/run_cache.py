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
    one already and can be written, else, as on another machine, in the user's own. The run's limit is not taken over:
    what others fetched there since would be removed for a look."""
    from .stream.store import StoreOptions

    try:
        value = json.loads((paths.root / "job.json").read_bytes())
    except (OSError, ValueError):
        return StoreOptions()
    run = value.get("run") if isinstance(value, dict) else None
    block: dict[str, Any] = run if isinstance(run, dict) else {}
    cache = block.get("cache")
    if not isinstance(cache, str) or not os.path.isabs(cache):
        return StoreOptions()
    # Opening a cache clears away what dead processes left there: a folder that is none holds what is somebody's.
    is_cache = os.path.isdir(os.path.join(cache, "datasets", ".leases"))
    return StoreOptions(cache) if is_cache and os.access(cache, os.W_OK | os.X_OK) else StoreOptions()
