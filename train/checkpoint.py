"""Checkpoints: torch DCP files in a fresh folder, hashed while they are written; a sealed COMMIT.json comes last.

A checkpoint is built under a temporary name and renamed when it is complete, so a folder with a plain name either holds
exactly what was written or is damaged. Nothing is trusted before its hash: DCP's index is a pickle, so it is read only
after the check, and then by an unpickler that knows ten harmless classes.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from loader.errors import DamageError
from loader.files import TEMPORARY_PREFIX, check_name, fsync_folder, hash_file
from loader.sealed import read_sealed, write_sealed

from .dcp_storage import HashingWriter, StrictPlanner, StrictReader

__all__ = [
    "Checkpoint",
    "CheckpointFacts",
    "is_pinned",
    "list_checkpoints",
    "load_tensors",
    "open_checkpoint",
    "pin",
    "prune",
    "remove_unfinished",
    "save_checkpoint",
    "unpin",
    "verify_checkpoint",
]

COMMIT_NAME = "COMMIT.json"
_FORMAT = {"format": "tokenreel-checkpoint", "version": 1}
_PINS = "pinned"


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint says besides its tensors; JSON-able.

    Attributes:
        step: steps done, so the next step to do.
        branch: the branch that did them. attempt: of that branch.
        number: counts the checkpoints of a run in the order they were made.
        cursor: the loader's Cursor as JSON.
        mesh: names and sizes of the dimensions it was saved on.
        state: further state: detectors, counters.
    """

    step: int
    branch: int
    attempt: int
    number: int
    cursor: Mapping[str, Any]
    mesh: Mapping[str, int]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint whose COMMIT.json is intact; ``verify_checkpoint`` answers for the rest.

    Attributes:
        path: its folder. facts: what it says. files: name -> (size in bytes, xxh3-128).
    """

    path: Path
    facts: CheckpointFacts
    files: Mapping[str, tuple[int, str]]


def _free_path(folder: Path, step: int) -> Path:
    """``step_000100``, or ``step_000100-2`` and so on when a checkpoint of another branch or attempt has the name."""
    name, count = f"step_{step:06d}", 1
    path = folder / name
    while path.exists():
        count += 1
        path = folder / f"{name}-{count}"
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """DCP warns when no process group exists; a lone reader is no mistake."""
    if torch.distributed.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to.*", category=UserWarning)
        yield


def _causes(error: CheckpointException) -> list[BaseException]:
    """What went wrong on each rank: DCP hides it, with a stack, in an exception that is not even an ``Exception``."""
    return [cause for _, (cause, _) in sorted(error.failures.items())]


def _commit_value(files: Mapping[str, tuple[int, str]], facts: CheckpointFacts) -> dict[str, Any]:
    # The state travels as text: detectors may hold NaN, which sealed JSON has no form for.
    return {**_FORMAT, "files": dict(files), **vars(facts), "state": json.dumps(facts.state, sort_keys=True)}


def save_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], facts: CheckpointFacts, group: ProcessGroup | None = None
) -> Checkpoint:
    """Write a checkpoint durably into a fresh folder below ``folder``; ``group``: whose collectives to use.

    Killed at any moment it leaves either nothing or a folder with a temporary name; no older checkpoint is touched.

    Raises:
        OSError: the file system refused (disk full, ...); what was written is removed.
    """
    final = _free_path(folder, facts.step)
    temporary = folder / f"{TEMPORARY_PREFIX}{os.getpid()}-{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        writer = HashingWriter(temporary)
        with _quiet():
            save(dict(tensors), storage_writer=writer, planner=DefaultSavePlanner(False, False), process_group=group)
        files = dict(sorted(writer.hashes().items()))
        write_sealed(temporary / COMMIT_NAME, _commit_value(files, facts))
        fsync_folder(temporary)
        os.rename(temporary, final)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, CheckpointException):
            raise _causes(error)[0] from error
        raise
    fsync_folder(folder)
    return Checkpoint(final, facts, files)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read COMMIT.json of one checkpoint.

    Raises:
        DamageError: it is missing or damaged.
    """
    place = path / COMMIT_NAME
    value = read_sealed(place)
    try:
        if {key: value.pop(key) for key in _FORMAT} != _FORMAT:
            raise DamageError("TR-CHECKPOINT-FORMAT", "another format of checkpoint", str(place), str(_FORMAT))
        entries = value.pop("files").items()
        files = {_file_name(name): (int(size_bytes), str(digest)) for name, (size_bytes, digest) in entries}
        return Checkpoint(path, CheckpointFacts(**{**value, "state": json.loads(value["state"])}), files)
    except (KeyError, TypeError, ValueError) as error:
        raise DamageError("TR-CHECKPOINT-FORMAT", "no record of a checkpoint", str(place), "COMMIT.json") from error


def _file_name(name: str) -> str:
    """A plain file name, or DCP's hidden index.

    Raises:
        DamageError: anything that could lead out of the folder.
    """
    return name if name == ".metadata" else check_name(name, COMMIT_NAME)


def list_checkpoints(folder: Path) -> tuple[list[Checkpoint], list[DamageError]]:
    """Committed checkpoints, oldest first by their number, and one error for each folder whose record is damaged."""
    good: list[Checkpoint] = []
    damaged: list[DamageError] = []
    for path in sorted(folder.glob("step_*")) if folder.is_dir() else ():
        try:
            good.append(open_checkpoint(path))
        except DamageError as error:
            damaged.append(error)
    return sorted(good, key=lambda checkpoint: checkpoint.facts.number), damaged


def verify_checkpoint(checkpoint: Checkpoint) -> None:
    """Hash every byte of a checkpoint.

    Raises:
        DamageError: a file is missing, has another size or another hash; the file is named.
    """
    for name, (size_bytes, digest) in checkpoint.files.items():
        path = checkpoint.path / name
        try:
            intact = path.stat().st_size == size_bytes and hash_file(path) == digest
        except OSError as error:
            raise DamageError(
                "TR-CHECKPOINT-MISSING", f"cannot read: {error.strerror}", str(path), "a file named in COMMIT.json"
            ) from error
        if not intact:
            raise DamageError("TR-CHECKPOINT-HASH", "not the bytes that were saved", str(path), f"xxh3-128 {digest}")


def load_tensors(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's tensors into ``tensors`` in place; verify it first.

    Raises:
        DamageError: the index holds anything but tensors, or not these tensors.
    """
    reader = StrictReader(checkpoint.path, frozenset(checkpoint.files))
    try:
        with _quiet():
            load(dict(tensors), storage_reader=reader, planner=StrictPlanner(False, False))
    except CheckpointException as error:
        causes = "; ".join(str(cause) for cause in _causes(error))
        raise DamageError("TR-CHECKPOINT-TENSORS", causes, str(checkpoint.path), "the tensors of this model") from error


def _pin_path(checkpoint: Checkpoint) -> Path:
    return checkpoint.path.parent / _PINS / checkpoint.path.name


def pin(checkpoint: Checkpoint) -> None:
    """Keep a checkpoint whatever the retention says."""
    path = _pin_path(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def unpin(checkpoint: Checkpoint) -> None:
    """Undo :func:`pin`."""
    _pin_path(checkpoint).unlink(missing_ok=True)


def is_pinned(checkpoint: Checkpoint) -> bool:
    """Whether :func:`pin` was called on it."""
    return _pin_path(checkpoint).exists()


def prune(folder: Path, keep: list[Checkpoint]) -> list[Path]:
    """Remove what is older than the oldest of ``keep`` and neither kept nor pinned; returns the removed folders.

    Only when the newest of ``keep`` proves intact on disk: below one valid checkpoint nothing is ever removed.
    Damaged folders are left alone.

    Raises:
        DamageError: the newest of ``keep`` is damaged; nothing was removed.
    """
    if not keep:
        return []
    verify_checkpoint(max(keep, key=lambda checkpoint: checkpoint.facts.number))
    oldest = min(checkpoint.facts.number for checkpoint in keep)
    kept = {checkpoint.path for checkpoint in keep}
    removed = []
    for checkpoint in list_checkpoints(folder)[0]:
        if checkpoint.facts.number < oldest and checkpoint.path not in kept and not is_pinned(checkpoint):
            doomed = folder / f"{TEMPORARY_PREFIX}{os.getpid()}-removed-{checkpoint.path.name}"
            os.rename(checkpoint.path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            removed.append(checkpoint.path)
    return removed


def remove_unfinished(folder: Path) -> list[Path]:
    """Remove what killed savers left; the caller holds the run's lock, so none is alive."""
    stale = sorted(folder.glob(f"{TEMPORARY_PREFIX}*")) if folder.is_dir() else []
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return stale
