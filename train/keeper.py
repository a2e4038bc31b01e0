"""What happens to a checkpoint once it is complete: older ones go, and a copy goes to the object store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loader.files import digest_bytes
from loader.run_folder import RunPaths, read_events

from .checkpoint import COMMIT_NAME, Checkpoint
from .checkpoint_config import CheckpointConfig
from .retention import for_window, newest_of_days, remove_older

if TYPE_CHECKING:
    from .upload import Uploader

__all__ = ["Keeper"]

_POLL_S = 0.1


class Keeper:
    """Retention and upload of one attempt; only the leading process's does anything.

    Args:
        paths: of the run. config: what to keep and where to copy. say: where remarks go. leads: this process leads.
    """

    def __init__(self, paths: RunPaths, config: CheckpointConfig, say: Callable[[str], None], *, leads: bool) -> None:
        self._paths, self._config, self._say = paths, config, say
        self._uploader: Uploader | None = None
        self._passed_over: set[str] = set()
        if leads and config.upload is not None:
            from .upload import Uploader

            self._uploader = Uploader(config.upload, paths, config, say)

    def pass_over(self, names: set[str]) -> None:
        """Folders known to be damaged, now or later: they take no intact checkpoint's place among those that stay."""
        self._passed_over = names

    def follow(self, own: Sequence[Checkpoint], window_start: int | None = None) -> None:
        """Called with the checkpoints of the branch, oldest first, the last of them new and proven intact.

        Args:
            window_start: where the window of an alarm at the next step would begin; None: no alarm is raised.
        """
        self._passed_over.discard(own[-1].path.name)  # a name that retention had set free
        own = [one for one in own if one.path.name not in self._passed_over]
        latest = own[-self._config.keep_last :]
        needed = [] if self._uploader is None else self._uploader.needed()
        try:
            kept = [*newest_of_days(own, self._config.keep_daily), *needed]
            if window_start is not None:
                kept += [own[index] for index in for_window([one.facts.step for one in own], window_start)]
            remove_older(self._paths.checkpoints, latest, kept)
        except OSError as error:  # an old checkpoint too many is no reason to end
            self._say(f"cannot remove an old checkpoint: {error.strerror}: {error.filename}")
        if self._uploader is not None:
            self._uploader.begin(own[-1], window_start)

    def events(self) -> list[dict[str, Any]]:
        """What uploads have come to since the last call, as keyword arguments of ``Session.event``."""
        return [] if self._uploader is None else self._uploader.take_events()

    def catch_up(self, newest: Checkpoint, window_start: int | None) -> None:
        """Upload a checkpoint that an earlier start saved, unless the run's events say that it is there, at this URL;
        ``window_start`` as for :meth:`follow`."""
        if self._uploader is None:
            return
        digest, url = digest_bytes((newest.path / COMMIT_NAME).read_bytes())[:12], self._uploader.url
        events = [event for event in read_events(self._paths) if event["kind"] == "checkpoint_uploaded"]
        if not any(event["checkpoint"].endswith(digest) and event.get("url") == url for event in events):
            self._uploader.begin(newest, window_start)

    def finish(self, *, wait: bool, stop_requested: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
        """End the upload in flight: ``wait`` for its end until a stop is requested; else, and then, give it a few
        seconds, as a grace time runs."""
        if self._uploader is not None:
            needed = self._uploader.needed() if wait and not stop_requested() else []
            if needed:
                self._say(f"waiting for the upload of step {needed[-1].facts.step}; Ctrl-C ends the wait")
            while needed and self._uploader.needed() and not stop_requested():
                time.sleep(_POLL_S)
            self._uploader.finish(5.0)
        return self.events()

    def close(self) -> None:
        """Give up an upload that is still in flight; the next save, or the next start, makes up for it."""
        if self._uploader is not None:
            self._uploader.finish(0.0)
