"""Weights & Biases: one W&B run a branch, whose id follows from the run's, so that a restarted process goes on in it.

Only metrics and a few facts of the model leave: no code, no machine data, no command line, no console output. The key
is wandb's own affair; nothing here reads, stores or prints it. In the ``online`` mode this was never run against the
service, only against a server that does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .sinks import SinkPlace, numbers_of

__all__ = ["WandbSink", "wandb_run_id"]

_TIMEOUT_S = 60


def wandb_run_id(run_id: str, branch: int) -> str:
    """The W&B id of a branch: that of the run for branch 0."""
    return run_id if branch == 0 else f"{run_id}-b{branch}"


class WandbSink:
    """Logs each line at its step.

    Steps that an earlier attempt already sent are done again to the same numbers and are left out: W&B takes steps only
    upwards. Offline, each attempt leaves a folder of its own below ``RUN/wandb``, all with the same id.
    """

    def __init__(self, place: SinkPlace) -> None:
        """Start or resume the branch's W&B run.

        Raises:
            ImportError: the package is not installed.
            Exception: what wandb raises (no key, no answer).
        """
        assert place.wandb is not None
        try:
            wandb = import_module("wandb")
        except ImportError as error:
            raise ImportError(f"pip install 'tokenreel[wandb]' ({error})") from error
        settings = wandb.Settings(
            console="off",
            host="-",
            silent=True,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            init_timeout=_TIMEOUT_S,
            login_timeout=_TIMEOUT_S,
            finish_timeout=_TIMEOUT_S,
            finish_timeout_raises=True,
        )
        config = place.wandb
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity,
            mode=config.mode,
            id=wandb_run_id(place.run_id, place.branch),
            group=place.run_id,
            name=f"{place.root.name} branch {place.branch}",
            resume="allow",
            reinit="create_new",
            dir=str(place.root),
            config=dict(place.facts),
            settings=settings,
        )
        self._stamp = {"branch": place.branch, "attempt": place.attempt}
        self._next_step = int(self._run.step or 0)

    def write(self, line: Mapping[str, Any]) -> None:
        """See ``Sink``."""
        step = int(line["step"])
        if step >= self._next_step:
            self._run.log(dict(numbers_of({**line, **self._stamp})), step=step)

    def flush(self) -> None:
        """Nothing: W&B's own process holds what it was given, and outlives a kill of this one."""

    def close(self) -> None:
        """See ``Sink``."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()
