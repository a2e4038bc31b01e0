"""A stage: datatrove ``PipelineStep`` s over a fixed number of tasks, in a folder named by the digest of all that
shapes its output.

The folder is ``<work>/<name>-<first 12 digits of the digest>``; in it ``stage.json`` (the whole digest and what it
was made of),
the stage's outputs, and ``datatrove/`` (completion markers, statistics, logs). A finished stage is never run again;
another
configuration, another parent or another input is another folder, so stale results cannot be taken for fresh ones.

Tasks come from the plan, never from the number of workers. An output is written under a temporary name, fsynced,
renamed; its name
and bytes depend on the task alone, so two attempts of one task at once (an orphan and its successor) write the same
file twice.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.canonical import canonical_json, digest_of
from loader.errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError, file_system_error
from loader.files import hash_file, remove_folder, remove_stale_temporaries, write_atomic

if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep

__all__ = [
    "HashNote",
    "RawFile",
    "Stage",
    "check_unchanged",
    "close_stage",
    "describe_error",
    "error_of_task",
    "hash_inputs",
    "open_stage",
    "read_json",
    "record_error",
    "stage_digest",
]

STAGE_FILE = "stage.json"
ERRORS_FOLDER = "errors"
_SETTLED_NS = 2_000_000_000
_SAVE_EVERY_S = 60.0
_MOST_TOLD = 2000

HashNote = tuple[int, int, str]
"""Size in bytes, time of change in ns and xxh3-128 of a file."""


@dataclass(frozen=True)
class RawFile:
    """One raw input file, as it was when it was first read.

    Attributes:
        source: name of its source.
        index: number of the file in the job's sorted list; the same number stands in the Dataset's ``files.txt``.
        relative: path below the source's root, with ``/``.
        path: where it lies on this machine.
        size_bytes, mtime_ns: checked again before and after every later read.
        digest: xxh3-128 of its bytes, 32 hex digits; "" for a remote file that is not fetched yet, in plans alone.
    """

    source: str
    index: int
    relative: str
    path: str
    size_bytes: int
    mtime_ns: int
    digest: str

    def identity(self) -> list[object]:
        """What of it enters digests: nothing that depends on this machine."""
        return [self.source, self.relative, self.size_bytes, self.digest]


@dataclass(frozen=True)
class Stage:
    """A stage ready to run.

    Attributes:
        name, folder, digest: see the module.
        description: JSON-able; what the digest was made of.
        num_tasks: ranks to run.
        make_steps: makes the datatrove pipeline of one task; called only when the stage is run, as it imports
            datatrove.
        inputs: raw files its tasks read; checked before the stage starts and after it ends.
        sizes: bytes each task reads, if known: large ones start first, and progress is counted in them.
    """

    name: str
    folder: Path
    digest: str
    description: Mapping[str, Any]
    num_tasks: int
    make_steps: Callable[[], tuple[PipelineStep, ...]]
    inputs: tuple[RawFile, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def logging_folder(self) -> Path:
        """datatrove's ``logging_dir``: ``completions/``, ``stats/``, ``logs/``."""
        return self.folder / "datatrove"

    def incomplete_ranks(self) -> list[int]:
        """Ranks without a completion marker of this very digest, ascending."""
        if not (self.folder / STAGE_FILE).is_file():
            return list(range(self.num_tasks))
        markers = self.logging_folder / "completions"
        return [rank for rank in range(self.num_tasks) if not _marker_is_ours(markers / f"{rank:05d}", self.digest)]


def _marker_is_ours(path: Path, digest: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == digest
    except (OSError, UnicodeDecodeError):
        return False


def stage_digest(
    name: str, version: int, config: object, parents: Sequence[str], extra: object = None
) -> tuple[str, Any]:
    """Digest of a stage and the description it is made of.

    Args:
        name: the stage.
        version: raised whenever the same configuration would give other output.
        config: JSON-able semantic configuration, only what this stage uses.
        parents: digests of the stages it reads.
        extra: JSON-able further inputs (raw files by relative path, size and hash; number of tasks).
    """
    description = {"stage": name, "version": version, "config": config, "parents": list(parents), "extra": extra}
    return digest_of(description), description


def open_stage(stage: Stage) -> None:
    """Make the stage's folder ready: ``stage.json`` first, what killed writers left goes away, old errors are
    forgotten.

    Raises:
        RefusedError: the folder belongs to another digest.
        DamageError: its ``stage.json`` cannot be read.
    """
    path = stage.folder / STAGE_FILE
    if path.exists():
        found = read_json(path).get("digest")
        if found != stage.digest:
            raise RefusedError(
                "TR-STAGE-OTHER", f"the folder of stage {stage.name} holds another one", str(path), stage.digest
            )
    else:
        remove_folder(stage.logging_folder)  # markers without the stage that they belong to
        content = {"digest": stage.digest, "num_tasks": stage.num_tasks, "description": dict(stage.description)}
        write_atomic(path, canonical_json(content))
    _forget_killed_writers(stage)
    for error in (stage.folder / ERRORS_FOLDER).glob("*.json"):
        error.unlink(missing_ok=True)


def close_stage(stage: Stage) -> None:
    """After the last task: every rank has its marker, or the stage is named with the ranks that are missing; what
    killed attempts left goes away.
    """
    missing = stage.incomplete_ranks()
    if missing:
        raise JobError(
            "TR-STAGE-INCOMPLETE",
            f"stage {stage.name}: {len(missing)} of {stage.num_tasks} tasks incomplete: {missing[:20]}",
        )
    _forget_killed_writers(stage)


def _forget_killed_writers(stage: Stage) -> None:
    for folder, _, _ in os.walk(stage.folder):
        remove_stale_temporaries(Path(folder))


def check_unchanged(inputs: Iterable[RawFile]) -> None:
    """Refuse when a raw input is not the file that was hashed: another size or time of change.

    Raises:
        RefusedError: ``TR-INPUT-CHANGED``, naming the file.
    """
    for file in inputs:
        try:
            status = os.stat(file.path)
        except OSError as error:
            raise RefusedError("TR-INPUT-CHANGED", f"input file is gone: {error.strerror}", file.path) from error
        if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
            raise RefusedError(
                "TR-INPUT-CHANGED",
                "input file changed while the job was running",
                file.path,
                f"{file.size_bytes} bytes as first read, found {status.st_size}",
                "run the same command again; it starts from the new content",
            )


def hash_inputs(
    files: Sequence[tuple[str, str, Path]],
    cache_path: Path | None,
    fetched: Mapping[str, HashNote] | None = None,
    *,
    rehash: bool = False,
    write: bool = True,
) -> tuple[RawFile, ...]:
    """Stat and hash raw inputs; an unchanged size and mtime takes the hash noted at first read.

    Args:
        files: source, relative path, path of each.
        cache_path: where hashes are noted; None: nowhere. Long hashing is noted as it goes, for a killed run.
        fetched: what is known already, by absolute path: files that were hashed while they were fetched.
        rehash: trust no note in ``cache_path``: an edit that kept size and mtime shows.
        write: whether ``cache_path`` is written too.

    Raises:
        RefusedError: a file changed while it was hashed.
        JobError: a file cannot be read.
    """
    noted = _HashNotes(cache_path, write, rehash)
    inputs = []
    for index, (source, relative, path) in enumerate(files):
        try:
            note = (fetched or {}).get(os.path.abspath(path)) or noted.of(path)
        except OSError as error:
            raise JobError("TR-INPUT-UNREADABLE", f"cannot read an input file: {error.strerror}", str(path)) from error
        inputs.append(RawFile(source, index, relative, str(path), *note))
    check_unchanged(file for file in inputs if file.digest)
    noted.save()
    return tuple(inputs)


class _HashNotes:
    """Hashes of input files by absolute path, kept in one file.

    A file that was changed within ``_SETTLED_NS`` of being hashed is not noted: on a file system with coarse times a
    second change could leave the same mtime.
    """

    def __init__(self, path: Path | None, write: bool, rehash: bool) -> None:
        self._path = path
        self._write = write
        self._known = read_json(path) if path is not None and path.exists() else {}
        self._trusted = set() if rehash else set(self._known)
        self._saved_s = time.monotonic()

    def of(self, path: Path) -> HashNote:
        """Size, mtime and hash of a file, read again only if it is not noted as it is now."""
        key = os.path.abspath(path)
        status = path.stat()
        known = self._known.get(key)
        if known is not None and key in self._trusted and known[:2] == [status.st_size, status.st_mtime_ns]:
            return status.st_size, status.st_mtime_ns, str(known[2])
        started_ns = time.time_ns()
        digest = hash_file(path)
        self._known.pop(key, None)
        if started_ns - status.st_mtime_ns > _SETTLED_NS:
            self._known[key] = [status.st_size, status.st_mtime_ns, digest]
        if time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            self.save()
        return status.st_size, status.st_mtime_ns, digest

    def save(self) -> None:
        """Write the notes, where they are kept."""
        if self._path is not None and self._write:
            write_atomic(self._path, canonical_json(self._known))
        self._saved_s = time.monotonic()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``.

    Raises:
        DamageError: missing, unreadable or no object.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamageError("TR-WORK-DAMAGED", f"cannot read a work file: {error}", str(path)) from error
    if not isinstance(value, dict):
        raise DamageError("TR-WORK-DAMAGED", "a work file holds no JSON object", str(path))
    return value


_ERROR_CLASSES: Mapping[int, type[TokenreelError]] = {
    1: JobError,
    2: ConfigError,
    3: DamageError,
    4: RefusedError,
}


def describe_error(error: BaseException) -> dict[str, Any]:
    """``error`` as JSON (it may come from any machine): its own words if it is meant for users, else its traceback.

    Every text in it is cut to ``_MOST_TOLD`` characters: libraries quote what they could not read, whole.
    """
    known = error if isinstance(error, TokenreelError) else file_system_error(error)
    if known is not None:
        plain = known.to_json()
        return {"tokenreel": {key: v[:_MOST_TOLD] if isinstance(v, str) else v for key, v in plain.items()}}
    lines = traceback.format_exception(error)
    return {"kind": type(error).__name__, "message": str(error)[:_MOST_TOLD], "traceback": "".join(lines)[-8000:]}


def record_error(folder: Path, rank: int, error: BaseException) -> None:
    """Leave ``error`` of task ``rank`` where the supervising process finds it."""
    write_atomic(folder / ERRORS_FOLDER / f"{rank:05d}.json", canonical_json(describe_error(error)))


def error_of_task(stage: Stage, rank: int, told: Mapping[str, Any] | None = None) -> TokenreelError:
    """The error of task ``rank``, with its own code and exit code; stage and rank are named in its message.

    ``told``: what it said of it (``describe_error``), if it need not be read from where it was recorded.
    """
    path = stage.folder / ERRORS_FOLDER / f"{rank:05d}.json"
    where = f"stage {stage.name}, rank {rank}"
    log = stage.logging_folder / "logs" / f"task_{rank:05d}.log"
    if told is None and not path.exists():
        return JobError("TR-STAGE-FAILED", f"{where}: the task ended without a word", str(log))
    content = read_json(path) if told is None else told
    inner = content.get("tokenreel")
    if inner is None:
        message = f"{where}: {content.get('kind')}: {content.get('message')}"
        return JobError("TR-STAGE-FAILED", message, str(log), next_command="read the traceback in the log named above")
    kind = _ERROR_CLASSES.get(inner["exit_code"], JobError)
    message = f"{where}: {inner['message']}"
    return kind(inner["code"], message, inner["place"], inner["expected"], inner["next_command"])
