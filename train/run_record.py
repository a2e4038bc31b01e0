"""A run's own small files (identity, configuration, branches, cuts, ledger, events) as one block of bytes beside an
uploaded checkpoint: without them a checkpoint on a fresh machine would be weights without a past.

``metrics.jsonl`` and event files are not among them: they grow without bound and nothing is built on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loader.errors import DamageError, RefusedError
from loader.files import check_name, digest_bytes, fsync_folder, make_folder, write_atomic
from loader.run_folder import HALF_NAME, RunPaths
from loader.runs import read_branches
from loader.sealed import read_sealed, unseal, write_sealed

from .lineage import lineage_checkpoints

__all__ = ["catch_up", "is_half", "pack_record", "refuse_fork", "restore_record"]

_ASIDE = "replaced"


def _files(paths: RunPaths) -> Iterator[Path]:
    yield from (paths.identity, paths.config, paths.branches)
    yield from sorted(paths.skips.glob("[!.]*"))
    yield from sorted(paths.ledger.glob("[!.]*/[!.]*"))
    yield paths.events


def pack_record(paths: RunPaths) -> tuple[list[tuple[str, int, str]], bytes]:
    """(path below the run's folder, size in bytes, xxh3-128) of each file, and their bytes in this order.

    The run may go on meanwhile: what is appended leaves at most a torn tail, which every start cuts, and a branch that
    is opened meanwhile makes it read again.

    Raises:
        OSError: a file cannot be read.
    """
    while True:
        branches = paths.branches.read_bytes()
        found = [(path, path.read_bytes()) for path in _files(paths) if path.is_file()]
        if paths.branches.read_bytes() == branches:
            break
    names = [(path.relative_to(paths.root).as_posix(), len(data), digest_bytes(data)) for path, data in found]
    return names, b"".join(data for _, data in found)


def restore_record(paths: RunPaths, record: Mapping[str, Any], data: bytes, place: str) -> None:
    """Write the files of a record into a folder that holds no run; run.json comes last, for it makes the run.

    Raises:
        DamageError: the bytes are not those of the record, or a path leads out of the folder.
        OSError: the file system refused.
    """
    for path, part in sorted(_parts(paths, record, data, place).items(), key=lambda item: item[0] == paths.identity):
        write_atomic(path, part)


def is_half(paths: RunPaths) -> bool:
    """Whether :func:`catch_up` was killed while it wrote: nothing may be built on the files before it has ended."""
    return (paths.root / HALF_NAME).exists()


def catch_up(paths: RunPaths, record: Mapping[str, Any], data: bytes, place: str, step: int) -> Path | None:
    """Bring the files of a run's folder to a record of the same run that another machine led further.

    What the folder alone knew (steps done there and once more elsewhere, events, and the checkpoints of such steps) is
    kept below ``replaced/``. A folder that holds all of the record stays as it is. Killed on the way, the next call
    ends it; see :func:`is_half`. The caller has asked :func:`refuse_fork`.

    Args:
        step: of the checkpoint that comes with the record: later ones here, of its lineage, are of other steps.

    Returns:
        where what was replaced lies; None: nothing was.

    Raises:
        DamageError: the bytes are not those of the record, or a path leads out of the folder; or the folder's own
            branches are damaged.
        OSError: the file system refused.
    """
    theirs, half = _parts(paths, record, data, place), paths.root / HALF_NAME
    ours = _own(paths)
    if not half.exists() and _contains(paths, ours, theirs):
        return None
    if not half.exists():
        number = 1 + max((int(path.name) for path in (paths.root / _ASIDE).glob("[0-9]*")), default=0)
        write_sealed(half, {"aside": f"{number:06d}"})
    aside = paths.root / _ASIDE / str(read_sealed(half)["aside"])
    for path, content in ours.items():
        new = theirs.get(path)
        if new is None or not new.startswith(content):
            write_atomic(aside / path.relative_to(paths.root), content)
        if new is None:
            path.unlink()
    for path, content in theirs.items():
        if ours.get(path) != content:
            write_atomic(path, content)
    for checkpoint in lineage_checkpoints(paths.checkpoints, read_branches(paths)):
        if checkpoint.facts.step > step:
            make_folder(aside / paths.checkpoints.name)
            checkpoint.path.rename(aside / paths.checkpoints.name / checkpoint.path.name)
    fsync_folder(paths.checkpoints)
    half.unlink()
    fsync_folder(paths.root)
    return aside


def refuse_fork(paths: RunPaths, record: Mapping[str, Any], data: bytes, place: str) -> None:
    """A folder that lacks what a record tells, and has branches or cuts of its own, is another history of the run:
    neither may replace the other unasked.

    Raises:
        RefusedError: it is. DamageError: as :func:`catch_up`.
    """
    theirs, ours = _parts(paths, record, data, place), _own(paths)
    branches = _branches(paths, ours)
    cuts = {path: content for path, content in ours.items() if path.parent == paths.skips}
    extended = branches == _branches(paths, theirs)[: len(branches)] and cuts.items() <= theirs.items()
    if not extended and not _contains(paths, ours, theirs):
        root = paths.root
        raise RefusedError(
            "TR-UPLOAD-FORKED", f"another machine led the run further, to {place.rpartition('/')[0]}, and this folder "
            "has a branch or cuts of its own", str(root), "one history of a run",
            f"mv {root} {root}.forked, then the same command: it goes on from the upload; or checkpoint.upload with "
            "another URL: it goes on from here",
        )  # fmt: skip


def _own(paths: RunPaths) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in _files(paths) if path.is_file()}


def _contains(paths: RunPaths, ours: Mapping[Path, bytes], theirs: Mapping[Path, bytes]) -> bool:
    """Whether the folder has lived through all of the record: ledgers are appended to, and so is the list of branches;
    events and configuration tell of each machine's own doing."""
    told = [path for path in theirs if path not in (paths.identity, paths.config, paths.branches, paths.events)]
    branches = _branches(paths, theirs)
    return (
        all(ours.get(path, b"").startswith(theirs[path]) and path in ours for path in told)
        and _branches(paths, ours)[: len(branches)] == branches
    )


def _branches(paths: RunPaths, files: Mapping[Path, bytes]) -> list[Any]:
    return list(unseal(files.get(paths.branches, b""), str(paths.branches))["branches"])


def _parts(paths: RunPaths, record: Mapping[str, Any], data: bytes, place: str) -> dict[Path, bytes]:
    """Path -> bytes of each file of a record."""
    start, parts = 0, dict[Path, bytes]()
    for name, size_bytes, digest in record["run"]:
        part = data[start : start + size_bytes]
        start += size_bytes
        if digest_bytes(part) != digest:
            raise DamageError("TR-UPLOAD-RECORD", f"{name} is not what was uploaded", place, f"xxh3-128 {digest}")
        path = paths.root.joinpath(*(check_name(word, place) for word in str(name).split("/")))
        parts[path] = part
    return parts
