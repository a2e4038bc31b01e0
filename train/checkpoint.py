"""Checkpoints: torch DCP files in a fresh folder, hashed while they are written; a sealed COMMIT.json comes last.

A checkpoint is built under a temporary name and renamed when it is complete, so a folder with a plain name either holds
exactly what was written or is damaged. Nothing is trusted before its hash: DCP's index is a pickle, so it is read only
after the check, and then by an unpickler that knows ten harmless classes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.distributed_c10d import ProcessGroup

from loader.block_hashes import hash_block, num_blocks
from loader.errors import DamageError
from loader.files import TEMPORARY_PREFIX, check_name, fsync_folder, make_folder
from loader.sealed import read_sealed, write_sealed

from .dcp_storage import HashingWriter, StrictPlanner, StrictReader
from .failure import error_from_json
from .world import World

__all__ = [
    "COMMIT_NAME",
    "Checkpoint",
    "CheckpointFacts",
    "free_path",
    "is_pinned",
    "list_checkpoints",
    "load_tensors",
    "open_checkpoint",
    "pin",
    "pin_for_alarm",
    "pin_steps",
    "pinned_steps",
    "remove_unfinished",
    "save_checkpoint",
    "unpin_alarms",
    "verify_checkpoint",
    "verify_together",
]

COMMIT_NAME = "COMMIT.json"
"""The record that makes a folder a checkpoint; written last."""
_FORMAT = {"format": "tokenreel-checkpoint", "version": 1}
_PINS, _ALARM = "pinned", ".alarm"
_PINNED = re.compile(r"step_(\d+)")


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
        time_s: when it was made, seconds since 1970 by that machine's clock; only retention by days looks at it.
        run_id: of the run that made it; "": not said.
    """

    step: int
    branch: int
    attempt: int
    number: int
    cursor: Mapping[str, Any]
    mesh: Mapping[str, int]
    state: Mapping[str, Any]
    time_s: float = 0.0
    run_id: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint whose COMMIT.json is intact; ``verify_checkpoint`` answers for the rest.

    Attributes:
        path: its folder. facts: what it says. files: name -> (size in bytes, xxh3-128 of each 64 MiB, one behind
            the other).
    """

    path: Path
    facts: CheckpointFacts
    files: Mapping[str, tuple[int, str]]


def free_path(folder: Path, step: int) -> Path:
    """``step_000100``, or ``step_000100-2`` and so on when a checkpoint of another branch or attempt has the name."""
    name, count = f"step_{step:06d}", 1
    path = folder / name
    while path.exists():
        count += 1
        path = folder / f"{name}-{count}"
    return path


@contextmanager
def _quiet(alone: bool) -> Iterator[None]:
    """DCP warns when a process reads or writes without a group; a lone one is no mistake."""
    if not alone and torch.distributed.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to.*", category=UserWarning)
        yield


def _causes(error: CheckpointException) -> list[BaseException]:
    """What went wrong, by rank: DCP hides it, with a stack, in an exception that is not even an ``Exception``."""
    for rank, (cause, _) in error.failures.items():
        cause.add_note(f"rank {rank}")
    return [cause for _, (cause, _) in sorted(error.failures.items())]


def _commit_value(files: Mapping[str, tuple[int, str]], facts: CheckpointFacts) -> dict[str, Any]:
    # The state travels as text: detectors may hold NaN, which sealed JSON has no form for.
    return {**_FORMAT, "files": dict(files), **vars(facts), "state": json.dumps(facts.state, sort_keys=True)}


def save_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], facts: CheckpointFacts, world: World | None = None
) -> Checkpoint:
    """Write a checkpoint durably into a fresh folder below ``folder``; every process of ``world`` calls it.

    Each process writes and hashes its own file; the leading one makes the folder, and commits it last. What fails in
    one process fails in all. Killed at any moment it leaves either nothing or a folder with a temporary name; no older
    checkpoint is touched.

    Raises:
        OSError: the file system refused (disk full, ...), in whichever process; what was written is removed.
        JobError: the leading process failed, for the others.
        RuntimeError: another process is gone.
    """
    world = world or World()
    temporary = folder / world.share(lambda: _make_temporary(folder, facts), world.saving)
    try:
        writer = HashingWriter(temporary)
        planner, group = DefaultSavePlanner(False, False), world.saving
        with _quiet(alone=False):
            save(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
        files = dict(sorted(world.gather(writer.hashes(), world.saving).items()))
        files = {name: (int(size), str(digest)) for name, (size, digest) in files.items()}
        name = world.share(lambda: _commit(temporary, facts.step, _commit_value(files, facts)), world.saving)
    except BaseException as error:
        if world.leads:
            shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, CheckpointException):
            raise _causes(error)[0] from error
        raise
    return Checkpoint(folder / name, facts, files)


def _make_temporary(folder: Path, facts: CheckpointFacts) -> str:
    """A fresh folder that no other writer takes, not even one on another machine; its name."""
    make_folder(folder)
    name = f"{TEMPORARY_PREFIX}{facts.number}-{secrets.token_hex(4)}-step_{facts.step:06d}"
    (folder / name).mkdir()
    return name


def _commit(temporary: Path, step: int, value: Mapping[str, Any]) -> str:
    """Seal the folder and give it its name, which is returned."""
    for name, (size_bytes, _) in value["files"].items():
        path = temporary / name
        if path.stat().st_size != size_bytes:  # a start on another machine takes the folder for a dead one's
            raise OSError(errno.EIO, "another process changed a file of the checkpoint", str(path))
    write_sealed(temporary / COMMIT_NAME, value)
    fsync_folder(temporary)
    while True:
        final = free_path(temporary.parent, step)
        try:
            os.rename(temporary, final)
            break
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another writer took the name just now
                raise
    fsync_folder(final.parent)
    return final.name


def open_checkpoint(path: Path) -> Checkpoint:
    """Read COMMIT.json of one checkpoint.

    Raises:
        DamageError: it is missing or damaged, or another run made it.
    """
    place = path / COMMIT_NAME
    value = read_sealed(place)
    try:
        if {key: value.pop(key) for key in _FORMAT} != _FORMAT:
            raise DamageError("TR-CHECKPOINT-FORMAT", "another format of checkpoint", str(place), str(_FORMAT))
        entries = value.pop("files").items()
        files = {_file_name(name): (int(size_bytes), str(digest)) for name, (size_bytes, digest) in entries}
        facts = CheckpointFacts(**{**value, "state": json.loads(value["state"])})
        _check_run(path, facts.run_id)
        return Checkpoint(path, facts, files)
    except (KeyError, TypeError, ValueError) as error:
        raise DamageError("TR-CHECKPOINT-FORMAT", "no record of a checkpoint", str(place), "COMMIT.json") from error


def _check_run(path: Path, run_id: str) -> None:
    """A copy from another run is intact by every hash, and would go on with that run's weights.

    Raises:
        DamageError: another run than the one around the folder made it.
    """
    identity = path.parent.parent / "run.json"
    if not run_id or not identity.is_file():
        return
    here = str(read_sealed(identity)["run_id"])
    if here != run_id:
        raise DamageError("TR-CHECKPOINT-RUN", f"run {run_id} made it, not {here}", str(path), "this run's own")


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


def verify_checkpoint(checkpoint: Checkpoint, rank: int = 0, ranks: int = 1) -> None:
    """Hash a checkpoint's bytes: all of them, or the share of one of ``ranks`` processes, by blocks of 64 MiB.

    Raises:
        DamageError: a file is missing, has another size or another hash; the file is named.
    """
    blocks = [
        (name, number) for name, (size_bytes, _) in checkpoint.files.items() for number in range(num_blocks(size_bytes))
    ]
    for name, number in blocks[len(blocks) * rank // ranks : len(blocks) * (rank + 1) // ranks]:
        size_bytes, digest = checkpoint.files[name]
        path, expected = checkpoint.path / name, digest[32 * number : 32 * number + 32]
        try:
            intact = path.stat().st_size == size_bytes and hash_block(path, number) == expected
        except OSError as error:
            raise DamageError(
                "TR-CHECKPOINT-MISSING", f"cannot read: {error.strerror}", str(path), "a file named in COMMIT.json"
            ) from error
        if not intact or len(digest) != 32 * num_blocks(size_bytes):
            raise DamageError("TR-CHECKPOINT-HASH", "not the bytes that were saved", str(path), f"xxh3-128 {expected}")


def verify_together(path: Path, world: World, group: ProcessGroup | None = None) -> Checkpoint:
    """Open and verify a checkpoint, each process of ``world`` its share; all of them come to the same verdict.

    Raises:
        DamageError: what the lowest rank that found damage found.
    """
    found, verdict = None, None
    try:
        found = open_checkpoint(path)
        verify_checkpoint(found, world.rank, world.size)
    except DamageError as error:
        verdict = error.to_json()
    verdicts = world.gather({str(world.rank): verdict}, group)
    for rank in range(world.size):
        if verdicts[str(rank)] is not None:
            raise error_from_json(verdicts[str(rank)])
    assert found is not None
    return found


def load_tensors(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], world: World | None = None) -> None:
    """Copy a checkpoint's tensors into ``tensors`` in place; verify it first. The random state of a device that the
    checkpoint was not made on stays as it is.

    Args:
        checkpoint: saved on any mesh. tensors: where they go; DTensors take their own parts.
        world: whose processes all load together; None: this process alone.

    Raises:
        DamageError: the index holds anything but tensors, or not these tensors.
    """
    reader = StrictReader(checkpoint.path, frozenset(checkpoint.files))
    try:
        planner, alone = StrictPlanner(False, False), world is None or world.size == 1
        with _quiet(alone):
            load(dict(tensors), storage_reader=reader, planner=planner, no_dist=alone)
    except CheckpointException as error:
        causes = "; ".join(str(cause) for cause in _causes(error))
        raise DamageError("TR-CHECKPOINT-TENSORS", causes, str(checkpoint.path), "the tensors of this model") from error


def pin(checkpoint: Checkpoint) -> None:
    """Keep a checkpoint for good, whatever the retention says."""
    _touch(checkpoint.path.parent / _PINS / checkpoint.path.name)


def pin_for_alarm(checkpoint: Checkpoint) -> None:
    """Keep a checkpoint until :func:`unpin_alarms`; if it is kept for good, it stays so."""
    _touch(checkpoint.path.parent / _PINS / (checkpoint.path.name + _ALARM))


def pin_steps(folder: Path, steps: Iterable[int]) -> None:
    """Keep the checkpoints of these steps for good, also where they lie in a store alone."""
    for step in steps:
        _touch(folder / _PINS / f"step_{step:06d}")


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def unpin_alarms(folder: Path) -> None:
    """Undo :func:`pin_for_alarm` for all checkpoints in ``folder``, also of processes that were killed since."""
    for path in (folder / _PINS).glob(f"*{_ALARM}"):
        path.unlink(missing_ok=True)


def is_pinned(path: Path) -> bool:
    """Whether the checkpoint at ``path`` is kept, for good or for an alarm."""
    return any((path.parent / _PINS / (path.name + kind)).exists() for kind in ("", _ALARM))


def pinned_steps(folder: Path) -> set[int]:
    """Steps of which a checkpoint is kept. A store has one name for what lies here as ``step_000100-2``, and another
    machine numbers anew: there a pin holds for all checkpoints of its step."""
    found = (_PINNED.match(path.name) for path in (folder / _PINS).glob("step_*"))
    return {int(match[1]) for match in found if match is not None}


def remove_unfinished(folder: Path) -> list[Path]:
    """Remove what killed savers left; the caller holds the run's lock, so none is alive."""
    stale = sorted(folder.glob(f"{TEMPORARY_PREFIX}*")) if folder.is_dir() else []
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return stale
