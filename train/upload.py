"""Copies of complete checkpoints in an object store, made beside the training.

``URL/<run id>/<number>-<day>-<step>-<digest>/`` holds a checkpoint's files, the run's own small files (``RUN.bin``,
``RUN.json``), and ``COMMIT.json``, which is put last and only where there is none. The name holds a digest of
COMMIT.json: nothing that is there is ever changed, and an upload that broke off is taken up where it was. A failure
never stops the training: it is told, and the next save uploads again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from loader.block_hashes import BlockDigest
from loader.errors import DamageError, TokenreelError
from loader.files import digest_bytes
from loader.remote.store import RemoteFile
from loader.remote.store_failures import StoreError, Transfer, with_retries
from loader.remote.writing import open_writable_store
from loader.run_folder import RunPaths, read_identity
from loader.sealed import seal

from .checkpoint import COMMIT_NAME, Checkpoint, pinned_steps
from .checkpoint_config import CheckpointConfig
from .remote_checkpoints import RemoteCheckpoint, hash_object, list_remote
from .retention import day_of, for_window
from .run_record import pack_record

__all__ = ["Uploader"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Waiting:
    """A checkpoint to upload, and where the window of an alarm behind it would begin."""

    checkpoint: Checkpoint
    window_start: int | None


class Uploader:
    """Uploads to ``URL/<run id>``, one checkpoint at a time; of several that wait the newest.

    Args:
        url: where to. paths: of the run. config: what to keep there. say: where remarks go, from another thread too.
        transfer: sizes and attempts.

    Attributes:
        url: without a slash at its end; events of uploads name it.
    """

    def __init__(
        self,
        url: str,
        paths: RunPaths,
        config: CheckpointConfig,
        say: Callable[[str], None],
        transfer: Transfer | None = None,
    ) -> None:
        self._transfer = transfer or Transfer(ranges=4)
        self.url, self._paths, self._config, self._say = url.rstrip("/"), paths, config, say
        self._store = open_writable_store(self.url, self._transfer)
        self._next: _Waiting | None = None
        self._current: _Waiting | None = None
        self._told = False
        self._thread: threading.Thread | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._events: list[dict[str, Any]] = []

    def begin(self, checkpoint: Checkpoint, window_start: int | None = None) -> None:
        """Upload ``checkpoint`` in a thread, after the one that is on its way.

        Args:
            window_start: what an alarm may need whose window begins at this step stays there; None: no alarm is raised.
        """
        with self._lock:
            self._next = _Waiting(checkpoint, window_start)
            if self._thread is None or not self._thread.is_alive():
                self._stop.clear()
                # A daemon: a store that stalls must not keep the process from ending.
                self._thread = threading.Thread(target=self._work, name="upload", daemon=True)
                self._thread.start()

    def needed(self) -> list[Checkpoint]:
        """What is on its way, or waits: retention that removed it would break the upload off."""
        with self._lock:
            return [one.checkpoint for one in (self._current, self._next) if one is not None]

    def finish(self, timeout_s: float | None) -> None:
        """Wait for the end of the upload, or give it up after ``timeout_s``."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            self._stop.set()
            if thread.is_alive() and timeout_s:
                self._say("an upload did not end in time: the next save, or the next start, makes up for it")

    def take_events(self) -> list[dict[str, Any]]:
        """What was uploaded, or failed, since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def _work(self) -> None:
        while True:
            with self._lock:
                waiting, self._next = self._next, None
                self._current = waiting
                if waiting is None or self._stop.is_set():
                    self._thread = self._current = None
                    return
            step = waiting.checkpoint.facts.step
            try:
                name = self._upload(waiting.checkpoint, waiting.window_start)
                event = {"kind": "checkpoint_uploaded", "step": step, "checkpoint": name, "url": self.url}
            except Exception as error:  # whatever it is, the training goes on
                told = error if isinstance(error, TokenreelError) else None
                code = told.code if told is not None else type(error).__name__
                self._say(f"checkpoint of step {step} not uploaded, the next save tries again: {error}")
                event = {"kind": "upload_failed", "step": step, "code": code}
            with self._lock:
                self._events.append(event)

    def _upload(self, checkpoint: Checkpoint, window_start: int | None) -> str:
        commit = (checkpoint.path / COMMIT_NAME).read_bytes()
        run_id = str(read_identity(self._paths)["run_id"])
        facts = checkpoint.facts
        day = day_of(checkpoint) or "unknown"
        label = f"{facts.number:08d}-{day}-step_{facts.step:06d}-{digest_bytes(commit)[:12]}"
        folder = f"{run_id}/{label}"
        there = {file.path: file for file in self._list(folder)}
        if f"{folder}/{COMMIT_NAME}" not in there:
            for name, (size_bytes, digest) in checkpoint.files.items():
                self._put(f"{folder}/{name}", checkpoint.path / name, (size_bytes, digest), there)
            names, data = pack_record(self._paths)
            record = seal({"run": names, "commit": digest_bytes(commit)})
            for name, content in (("RUN.bin", data), ("RUN.json", record)):
                self._put(f"{folder}/{name}", content, (len(content), BlockDigest([content]).hexdigest()), {})
            self._commit(f"{folder}/{COMMIT_NAME}", commit)
        self._retain(run_id, label, window_start)
        return label

    def _list(self, folder: str) -> list[RemoteFile]:
        return self._retried(lambda: list(self._store.list(folder)), folder)

    def _retried(self, attempt: Callable[[], _T], path: str) -> _T:
        return with_retries(attempt, f"{self.url}/{path}", self._transfer, self._store.renew, self._stop)

    def _put(self, path: str, content: bytes | Path, wanted: tuple[int, str], there: dict[str, RemoteFile]) -> None:
        """Put one object unless it is there, and read back what cannot be told from the store's answer."""

        def attempt() -> None:
            if there.pop(path, None) is None:
                self._store.put(path, content)
            found = self._store.head(path)
            if found.size_bytes != wanted[0] or hash_object(self._store, found, self._transfer) != wanted[1]:
                self._store.delete(path)
                raise StoreError("again", f"{found.size_bytes} bytes are there that are not those uploaded")

        self._retried(attempt, path)

    def _commit(self, path: str, content: bytes) -> None:
        def attempt() -> None:
            try:
                self._store.put(path, content, create=True)
            except StoreError as failure:
                if failure.kind not in ("exists", "changed"):
                    raise
            found = self._store.head(path)
            if bytes(self._store.read(found, 0, found.size_bytes)) != content:
                raise DamageError("TR-UPLOAD-COMMIT", "another record has the name", path, "what was put")

        self._retried(attempt, path)

    def _retain(self, run_id: str, label: str, window_start: int | None) -> None:
        """Remove what retention does not keep, once the new one is complete there; COMMIT.json first.

        What another machine uploaded of this run meanwhile has greater numbers: which of the two histories goes on is
        not for a retention to say, and the next start here asks the store.
        """
        found = list_remote(self._list(run_id), run_id)
        complete = [one for one in found if one.complete]
        own = next((one for one in complete if one.label == label), None)
        if own is None:
            raise DamageError("TR-UPLOAD-LOST", "the checkpoint is not complete", f"{self.url}/{run_id}/{label}")
        greater = sum(one.number >= own.number for one in complete if one is not own)
        if greater:
            if not self._told:
                self._say(
                    f"{self.url}/{run_id} holds {greater} checkpoints with greater numbers than {label}, damaged ones "
                    "or those of another machine that trains this run: nothing is removed there"
                )
            self._told = True
            return
        for one in self._doomed(found, complete, window_start):
            for file in sorted(one.files, key=lambda file: not file.path.endswith(COMMIT_NAME)):
                self._retried(partial(self._store.delete, file.path), file.path)

    def _doomed(
        self, found: Iterable[RemoteCheckpoint], complete: list[RemoteCheckpoint], window_start: int | None
    ) -> list[RemoteCheckpoint]:
        """``complete``: the greatest number, which is the new one's, first."""
        oldest = complete[: self._config.keep_last][-1].number
        days: dict[str, str] = {}
        for one in complete:
            if one.day in days or len(days) < self._config.keep_daily:
                days.setdefault(one.day, one.label)
        kept = set(days.values())
        if window_start is not None:
            made = complete[::-1]
            kept |= {made[index].label for index in for_window([one.step for one in made], window_start)}
        pinned = pinned_steps(self._paths.checkpoints)
        return [one for one in found if one.number < oldest and one.label not in kept and one.step not in pinned]
