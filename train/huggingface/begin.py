"""``model.init_from``: a run's first weights from a folder of Llama- or Qwen3-style safetensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loader.errors import ConfigError
from loader.remote.store import is_url
from loader.run_folder import append_event

from ..job import Job
from ..state import TrainState

__all__ = ["begin_from_weights"]


def begin_from_weights(job: Job, state: TrainState, branch: int, say: Callable[[str], None]) -> None:
    """Fill a fresh state with the weights that ``model.init_from`` names; without the key nothing happens.

    Every rank reads the folder and keeps its parts. The event ``init_from`` holds the hash of every file; from the
    first checkpoint on the folder is not read again.

    Raises:
        ConfigError: no such folder. DamageError: a file of it is damaged. RefusedError: weights of another model.
    """
    given = job.config.model.init_from
    if given is None:
        return
    if is_url(given):
        raise ConfigError("TR-HF-FOLDER", "weights are read from a folder alone", given, "a path on this machine")
    from .weights import load_folder  # safetensors, which no other run needs

    leads = state.world.leads
    facts = load_folder(Path(job.paths.root / given), state.model.shape, state.named_parameters(), hashed=leads)
    if leads:
        append_event(job.paths, "init_from", branch, 0, path=given, **facts)
        say(f"weights of {given}, digest {facts['digest']}")
        for note in facts["notes"]:
            say(f"note: {note}")
