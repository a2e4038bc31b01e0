"""What happens to a checkpoint once it is complete: older ones go, and a copy goes to the object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loader.run_folder import RunPaths

from .checkpoint import Checkpoint
from .checkpoint_config import CheckpointConfig
from .retention import newest_of_days, remove_older

if TYPE_CHECKING:
    from .upload import Uploader

__all__ = ["Keeper"]


class Keeper:
    """Retention and upload of one attempt; only the leading process's does anything.

    Args:
        paths: of the run. config: what to keep and where to copy. say: where remarks go. leads: this process leads.
    """

    def __init__(self, paths: RunPaths, config: CheckpointConfig, say: Callable[[str], None], *, leads: bool) -> None:
        self._paths, self._config, self._say = paths, config, say
        self._uploader: Uploader | None = None
        if leads and config.upload is not None:
            from .upload import Uploader

            self._uploader = Uploader(config.upload, paths, config, say)

    def follow(self, own: Sequence[Checkpoint]) -> None:
        """Called with the checkpoints of the branch, oldest first, the last of them new and proven intact."""
        latest = own[-self._config.keep_last :]
        needed = [] if self._uploader is None else self._uploader.needed()
        try:
            kept = [*newest_of_days(own, self._config.keep_daily), *needed]
            remove_older(self._paths.checkpoints, latest, kept)
        except OSError as error:  # an old checkpoint too many is no reason to end
            self._say(f"cannot remove an old checkpoint: {error.strerror}: {error.filename}")
        if self._uploader is not None:
            self._uploader.begin(own[-1])

    def events(self) -> list[dict[str, Any]]:
        """What uploads have come to since the last call, as keyword arguments of ``Session.event``."""
        return [] if self._uploader is None else self._uploader.take_events()

    def finish(self, *, wait: bool) -> list[dict[str, Any]]:
        """End the upload in flight: ``wait`` for its end, or give it a few seconds where a grace time runs."""
        if self._uploader is not None:
            self._uploader.finish(None if wait else 5.0)
        return self.events()

    def close(self) -> None:
        """Give up an upload that is still in flight; the next save, or the next start, makes up for it."""
        if self._uploader is not None:
            self._uploader.finish(0.0)
