"""A run's own small files (identity, configuration, branches, cuts, ledger, events) as one block of bytes beside an
uploaded checkpoint: without them a checkpoint on a fresh machine would be weights without a past.

``metrics.jsonl`` and event files are not among them: they grow without bound and nothing is built on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loader.errors import DamageError
from loader.files import check_name, digest_bytes, write_atomic
from loader.run_folder import RunPaths

__all__ = ["pack_record", "restore_record"]


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
    start, parts = 0, []
    for name, size_bytes, digest in record["run"]:
        part = data[start : start + size_bytes]
        start += size_bytes
        if digest_bytes(part) != digest:
            raise DamageError("TR-UPLOAD-RECORD", f"{name} is not what was uploaded", place, f"xxh3-128 {digest}")
        path = paths.root.joinpath(*(check_name(word, place) for word in str(name).split("/")))
        parts.append((path, part))
    for path, part in sorted(parts, key=lambda item: item[0] == paths.identity):
        write_atomic(path, part)
