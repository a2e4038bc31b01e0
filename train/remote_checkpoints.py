"""Uploaded checkpoints: which are there, and the newest valid one back onto a machine that has none, or older ones.

Nothing of a store is trusted: names are checked, COMMIT.json knows when it was touched, and every file is hashed before
it counts.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from loader.block_hashes import BlockDigest
from loader.errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError
from loader.files import TEMPORARY_PREFIX, fsync_folder, make_folder
from loader.remote.store import RemoteFile, Store, open_store
from loader.remote.store_failures import StoreError, Transfer, with_retries
from loader.run_folder import RunPaths, read_identity
from loader.runs import read_branches
from loader.sealed import unseal

from .checkpoint import COMMIT_NAME, free_path, list_checkpoints, open_checkpoint, verify_checkpoint
from .lineage import in_lineage
from .run_record import catch_up, is_half, refuse_fork, restore_record

__all__ = ["RemoteCheckpoint", "fetch_before", "fetch_instead", "fetch_newest", "hash_object", "list_remote"]

_LABEL = re.compile(r"(\d{8,})-(\d{4}-\d\d-\d\d|unknown)-(step_\d{6,})-[0-9a-f]{12}")
_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteCheckpoint:
    """One folder of an uploaded checkpoint.

    Attributes:
        label: its name below the run's folder. number, day, name: what the label says. files: its objects.
    """

    label: str
    number: int
    day: str
    name: str
    files: tuple[RemoteFile, ...]

    @property
    def step(self) -> int:
        """Steps done, as the label says it."""
        return int(self.name.removeprefix("step_"))

    @property
    def complete(self) -> bool:
        """Whether its COMMIT.json is there, which was put last."""
        return any(file.path.endswith(f"/{COMMIT_NAME}") for file in self.files)


def list_remote(files: Iterable[RemoteFile], run_id: str) -> list[RemoteCheckpoint]:
    """The checkpoints of a run among listed objects, the greatest number first; other objects are left alone."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in files:
        words = file.path.split("/")
        if len(words) == 3 and words[0] == run_id and _LABEL.fullmatch(words[1]):
            groups.setdefault(words[1], []).append(file)
    out = []
    for label, own in groups.items():
        found = _LABEL.fullmatch(label)
        assert found is not None
        out.append(RemoteCheckpoint(label, int(found[1]), found[2], found[3], tuple(own)))
    return sorted(out, key=lambda one: (one.number, one.label), reverse=True)


def hash_object(store: Store, file: RemoteFile, transfer: Transfer) -> str:
    """xxh3-128 of each 64 MiB of an object, as it lies in the store; read back in ranges.

    Limit: this costs the transfer of every byte a second time; an ETag would be enough only where it is known to be
    an MD5, and no store says whether it is.
    """
    step, stop = transfer.range_bytes, file.size_bytes
    ranges = ((start, min(stop, start + step)) for start in range(0, stop, step))
    return BlockDigest(store.read(file, *one) for one in ranges).hexdigest()


class _Fetcher:
    """Brings one run's checkpoints back.

    Args:
        why: what is told with each of them. follows: the run's own files follow the record that comes with them.
    """

    def __init__(self, url: str, paths: RunPaths, transfer: Transfer, why: str, *, follows: bool = False) -> None:
        self._url, self._paths, self._transfer = url.rstrip("/"), paths, transfer
        self._why, self._follows = why, follows
        self._store, self._stop = open_store(self._url, transfer), threading.Event()

    def _list(self, folder: str) -> list[RemoteFile]:
        return self._retried(lambda: list(self._store.list(folder)), folder)

    def _retried(self, attempt: Callable[[], _T], path: str) -> _T:
        return with_retries(attempt, f"{self._url}/{path}", self._transfer, self._store.renew, self._stop)

    def run_id(self) -> str | None:
        """Whose checkpoints to take: those of the run in the folder, or else of the one run at the URL.

        Raises:
            RefusedError: there are several.
        """
        if self._paths.identity.exists():
            return str(read_identity(self._paths)["run_id"])
        words = [file.path.split("/") for file in self._list("")]
        runs = sorted({word[0] for word in words if len(word) == 3 and _LABEL.fullmatch(word[1])})
        if len(runs) > 1:
            raise RefusedError(
                "TR-UPLOAD-RUNS", f"several runs are there: {', '.join(runs[:5])}", self._url, "one run below the URL",
                "checkpoint.upload with a URL of the run's own",
            )  # fmt: skip
        return runs[0] if runs else None

    def candidates(self, run_id: str) -> list[RemoteCheckpoint]:
        """Complete ones, the newest first."""
        return [one for one in list_remote(self._list(run_id), run_id) if one.complete]

    def first_of_branch(self, candidates: Iterable[RemoteCheckpoint], say: Callable[[str], None]) -> Path | None:
        """Brings checkpoints here until one is of the current branch, which is returned; None: none is."""
        for remote in candidates:
            try:
                found, aside = self.fetch(remote)
            except (DamageError, StoreError) as error:
                say(f"damaged upload {remote.label}, left alone: {error}")
                continue
            say(f"{self._why}: step {remote.step} taken up from {self._place(remote)}")
            if aside is not None:
                say(f"what this folder alone had recorded lies in {aside}")
            if in_lineage(open_checkpoint(found), read_branches(self._paths)):
                return found
        return None

    def _place(self, remote: RemoteCheckpoint) -> str:
        return f"{self._url}/{remote.files[0].path.rpartition('/')[0]}"

    def fetch(self, remote: RemoteCheckpoint) -> tuple[Path, Path | None]:
        """One checkpoint, verified, in its place; its folder, and that of what its record replaced.

        Raises:
            DamageError: it is not what was uploaded. JobError, ConfigError: the store does not give it.
            RefusedError: the run has gone another way here.
            OSError: the file system refused.
        """
        folder, place = self._paths.checkpoints, self._place(remote)
        make_folder(folder)
        temporary = folder / f"{TEMPORARY_PREFIX}{remote.number}-{secrets.token_hex(4)}-{remote.name}"
        temporary.mkdir()
        files = {file.path.rpartition("/")[2]: file for file in remote.files}
        try:
            self._download(files, COMMIT_NAME, temporary)
            found = open_checkpoint(temporary)
            record = unseal(self._bytes(files, "RUN.json", place), f"{place}/RUN.json")
            if self._follows and self._paths.identity.exists():
                refuse_fork(self._paths, record, self._bytes(files, "RUN.bin", place), f"{place}/RUN.bin")
            for name in found.files:
                self._download(files, name, temporary)
            verify_checkpoint(found)
            fsync_folder(temporary)
            aside = self._bring_record(record, files, place, found.facts.step)
            final = free_path(folder, found.facts.step)
            temporary.rename(final)
            fsync_folder(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return final, aside

    def _bring_record(
        self, record: Mapping[str, Any], files: Mapping[str, RemoteFile], place: str, step: int
    ) -> Path | None:
        """Before the checkpoint has its name: without the steps that led to it nobody may go on from it."""
        if not self._paths.identity.exists():
            restore_record(self._paths, record, self._bytes(files, "RUN.bin", place), f"{place}/RUN.bin")
        elif self._follows:
            return catch_up(self._paths, record, self._bytes(files, "RUN.bin", place), f"{place}/RUN.bin", step)
        return None

    def _known(self, files: Mapping[str, RemoteFile], name: str, place: str) -> RemoteFile:
        if name not in files:
            raise DamageError("TR-UPLOAD-MISSING", f"{name} is not there", place, "all files of the checkpoint")
        return files[name]

    def _bytes(self, files: Mapping[str, RemoteFile], name: str, place: str) -> bytes:
        file = self._known(files, name, place)
        return b"".join(bytes(part) for part in self._parts(file))

    def _parts(self, file: RemoteFile) -> Iterator[bytes | memoryview]:
        step = self._transfer.range_bytes
        for start in range(0, file.size_bytes, step):
            stop = min(file.size_bytes, start + step)
            yield self._retried(partial(self._store.read, file, start, stop), file.path)

    def _download(self, files: Mapping[str, RemoteFile], name: str, folder: Path) -> None:
        file = self._known(files, name, str(folder))
        with open(folder / name, "wb") as out:
            for part in self._parts(file):
                out.write(part)
            out.flush()
            os.fsync(out.fileno())


def fetch_before(
    url: str, paths: RunPaths, step: int, say: Callable[[str], None], transfer: Transfer | None = None
) -> None:
    """Bring the newest valid checkpoint with at most ``step`` steps of the current branch from ``url``, for a rollback.

    Nothing fails: where there is none, or the store does not answer, that is told, and the training goes on.
    """
    try:
        fetcher = _Fetcher(url, paths, transfer or Transfer(), f"no checkpoint at or before step {step} here")
        known = [one for one in fetcher.candidates(str(read_identity(paths)["run_id"])) if one.step <= step]
        fetcher.first_of_branch(sorted(known, key=lambda one: (one.step, one.number), reverse=True), say)
    except (TokenreelError, OSError) as error:
        say(f"no checkpoint at or before step {step} here, and none to be had: {error}")


def fetch_instead(
    url: str, paths: RunPaths, say: Callable[[str], None], transfer: Transfer | None = None
) -> Path | None:
    """Where checkpoints are here and none is valid, bring the newest valid one of the current branch from ``url``; its
    folder. None if there is none here at all, or none there.

    Raises:
        DamageError: there are some, and none is valid. JobError: the store does not answer.
    """
    if not any(list_checkpoints(paths.checkpoints)):
        return None
    fetcher = _Fetcher(url, paths, transfer or Transfer(), "no valid checkpoint here")
    return _first(fetcher, fetcher.candidates(str(read_identity(paths)["run_id"])), url, say)


def fetch_newest(
    url: str, paths: RunPaths, say: Callable[[str], None], transfer: Transfer | None = None
) -> Path | None:
    """Where a run's folder has no checkpoint, or another machine led the run further, bring back the newest valid one
    from ``url``, and the run's own files if they are gone or left behind; its folder. None if the newest is here
    already, or none there. An upload that ended behind a rollback brings a branch to which its checkpoint does not
    belong: then an older one comes too.

    A damaged one is told, left alone, and the next older one is taken. A store that does not answer holds up no folder
    that has checkpoints: that is told.

    Raises:
        RefusedError: several runs are there, or this folder has branches or cuts that the newest lacks.
        DamageError: there are some, and none is valid; or the folder's own branches are damaged.
        JobError: the store does not answer.
    """
    known = list_checkpoints(paths.checkpoints)[0]
    newest = max(known, key=lambda one: one.facts.number, default=None)
    must = newest is None or is_half(paths)
    try:
        why = "no checkpoint here" if newest is None else f"this folder ends at step {newest.facts.step}"
        fetcher = _Fetcher(url, paths, transfer or Transfer(attempts=8 if must else 3), why, follows=True)
        run_id = fetcher.run_id()
        if paths.identity.exists():
            read_branches(paths)  # damage of the folder's own is not an upload's
        candidates = [] if run_id is None else fetcher.candidates(run_id)
        if newest is not None:
            candidates = [one for one in candidates if one.number > newest.facts.number]
        return _first(fetcher, candidates, url, say, must=must)
    except (ConfigError, JobError, OSError) as error:
        if must or is_half(paths):  # or it was begun just now
            raise
        say(f"going on from what is here, whatever {url} holds: {error}")
        return None


def _first(
    fetcher: _Fetcher,
    candidates: Iterable[RemoteCheckpoint],
    url: str,
    say: Callable[[str], None],
    *,
    must: bool = True,
) -> Path | None:
    """The newest valid one of the branch; with ``must`` there is one among the candidates, if there are any."""
    known = list(candidates)
    found = fetcher.first_of_branch(known, say)
    if found is None and known and must:
        raise DamageError(
            "TR-UPLOAD-NONE", f"{len(known)} checkpoints are there and none is valid", url, "one intact checkpoint"
        )
    return found
