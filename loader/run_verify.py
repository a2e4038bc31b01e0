"""Checking a run's folder: identity, configuration, skip entries, ledgers, events, each checkpoint's files. No torch.

Not covered by any checksum, so not judged: metrics.jsonl, tensorboard/, wandb/, report.html, job.json and the lock.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .block_hashes import hash_blocks
from .errors import DamageError, RefusedError, TokenreelError
from .files import TEMPORARY_PREFIX
from .ledger import list_attempts, read_ledger_file
from .run_folder import RunPaths, read_config, read_events, read_identity
from .runs import ledger_of, read_branches, read_skips
from .sealed import read_sealed
from .shards.access import check_relative, resolve
from .shards.verify import Finding, finding_of

__all__ = ["COMMIT_NAME", "inspect_run", "verify_checkpoint", "verify_run"]

COMMIT_NAME = "COMMIT.json"
_PINS = "pinned"  # empty files named for the checkpoints to keep
_KNOWN = frozenset(
    {
        "config.yaml",
        "run.json",
        "branches.json",
        "events.jsonl",
        "metrics.jsonl",
        "report.html",
        "job.json",
        ".lock",
        "skips",
        "ledger",
        "checkpoints",
        "trials",
        "replaced",
        "tensorboard",
        "wandb",
    }
)


def verify_run(path: Path | str) -> list[Finding]:
    """Everything that is wrong with a run's folder, damage first; an empty list means nothing is.

    Raises:
        RefusedError: a later version wrote it.
    """
    paths = RunPaths(Path(path))
    findings: list[Finding] = []

    def guard(check: Callable[[], object]) -> None:
        try:
            check()
        except DamageError as error:
            findings.append(finding_of(paths.root, error))

    for check in (read_identity, read_config, read_branches, read_skips, read_events):
        guard(partial(check, paths))
    if paths.ledger.is_dir():
        for branch in sorted(paths.ledger.iterdir()):
            guard(partial(_check_ledgers, paths, branch.name))
    trials = paths.root / "trials"
    for trial in sorted(trials.glob("[!.]*.json")) if trials.is_dir() else ():
        guard(partial(read_sealed, trial))
    if not findings:
        guard(partial(ledger_of, paths))
    for folder in sorted(paths.checkpoints.iterdir()) if paths.checkpoints.is_dir() else ():
        if folder.name != _PINS:
            findings += verify_checkpoint(folder, paths.root)
    findings += [
        Finding("TR-FILE-UNNAMED", child.name, "", "nothing names this", "unnamed")
        for child in sorted(paths.root.iterdir())
        if child.name not in _KNOWN
    ]
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.severity)


def _check_ledgers(paths: RunPaths, branch: str) -> None:
    if not branch.isdecimal():
        raise DamageError("TR-LEDGER-FOREIGN", "a folder that the ledger did not make", str(paths.ledger / branch))
    for attempt in list_attempts(paths.ledger, int(branch)):
        read_ledger_file(paths.ledger / branch / f"{attempt}.bin")


def verify_checkpoint(folder: Path, root: Path) -> list[Finding]:
    """Compare each file of a checkpoint with its COMMIT.json; names in the findings are relative to ``root``.

    A folder with a temporary name is what a killed save leaves: ``unnamed``, no damage.
    """
    name = os.path.relpath(folder, root)
    if folder.name.startswith(TEMPORARY_PREFIX):
        return [Finding("TR-CHECKPOINT-OPEN", name, "", "a save that was never finished", "unnamed")]
    try:
        commit = read_sealed(folder / COMMIT_NAME)
        files = commit["files"]
        records = {str(file): _record(record) for file, record in files.items()}
    except DamageError as error:
        return [finding_of(root, error)]
    except (AttributeError, KeyError, TypeError, ValueError):
        return [Finding("TR-CHECKPOINT-FORMAT", f"{name}/{COMMIT_NAME}", "", "not the commit of a checkpoint")]
    findings = _other_run(commit.get("run_id"), name, root)
    for file, expected in records.items():
        try:
            actual = hash_blocks(resolve(folder, _check_file_name(file, str(folder / COMMIT_NAME))))
        except DamageError as error:
            findings.append(finding_of(root, error))
            continue
        if actual != expected:
            message = f"{actual[0]:,} bytes with xxh3-128 {actual[1]}; expected {expected[0]}, {expected[1]}"
            findings.append(Finding("TR-FILE-HASH", f"{name}/{file}", "", message))
    for file in _files_below(folder):
        if file not in records and file != COMMIT_NAME:
            findings.append(Finding("TR-FILE-UNNAMED", f"{name}/{file}", "", "nothing names this file", "unnamed"))
    return findings


def _other_run(run_id: Any, name: str, root: Path) -> list[Finding]:
    """Whether another run made a checkpoint; an identity that cannot be read is a finding of its own."""
    try:
        here = read_identity(RunPaths(root))["run_id"]
    except TokenreelError:
        return []
    if not run_id or run_id == here:
        return []
    return [Finding("TR-CHECKPOINT-RUN", name, "", f"run {run_id} made it, not {here}")]


def _record(value: Any) -> tuple[int, str]:
    """(size in bytes, xxh3-128 of each block), from a pair or an object."""
    size_bytes, digest = (value["size_bytes"], value["xxh3_128"]) if isinstance(value, dict) else value
    return int(size_bytes), str(digest)


def _check_file_name(name: str, place: str) -> str:
    # torch's distributed checkpoints call their index `.metadata`; no other hidden name is right.
    folder, _, base = name.rpartition("/")
    check_relative(f"{folder}/{base.removeprefix('.')}" if folder else base.removeprefix("."), place)
    return name


def _files_below(folder: Path) -> Iterator[str]:
    for parent, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(parent, name), folder)


def inspect_run(path: Path | str) -> dict[str, Any]:
    """A JSON-able description of a run: identity, branches, steps, skip entries, checkpoints.

    Raises:
        DamageError: one of these is damaged.
    """
    paths = RunPaths(Path(path))
    identity = read_identity(paths)
    try:
        records_N = ledger_of(paths)
    except RefusedError as error:
        raise DamageError(error.code, error.message, error.place, error.expected) from error
    branches = read_branches(paths)
    checkpoints = sorted(paths.checkpoints.iterdir()) if paths.checkpoints.is_dir() else []
    last_loss = float(records_N["loss"][-1]) if len(records_N) else math.nan
    return {
        "kind": "run",
        "path": str(path),
        "identity": identity,
        "branches": [
            {"number": b.number, "parent": b.parent, "from_step": b.from_step, "reason": b.reason} for b in branches
        ],
        "num_steps": len(records_N),
        "next_position": int(records_N["next_position"][-1]) if len(records_N) else 0,
        "last_loss": last_loss if math.isfinite(last_loss) else None,
        "num_skips": len(read_skips(paths)),
        "checkpoints": [c.name for c in checkpoints if (c / COMMIT_NAME).is_file()],
    }
