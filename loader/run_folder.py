"""The folder of a run: its paths, identity, configuration, events and lock (DESIGN 8). No torch.

Writers hold the run's lock. Everything here is sealed JSON (``sealed.py``), only ``config.yaml`` has its hash in its
first line. Branches, skip entries and the ledger are ``runs.py``'s.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ConfigError, DamageError, RefusedError
from .files import TEMPORARY_PREFIX, digest_bytes, remove_stale_temporaries, write_atomic
from .process_locks import lock_file
from .sealed import append_sealed_line, read_sealed, read_sealed_lines, write_sealed

__all__ = [
    "HALF_NAME",
    "RUN_FORMAT",
    "TRUNK",
    "RunPaths",
    "append_event",
    "create_run",
    "finite_json",
    "is_run",
    "lock_run",
    "read_config",
    "read_events",
    "read_identity",
    "refuse_half",
    "write_config",
]

HALF_NAME = "replacing.json"
"""There while a run's files are being replaced by those of a newer upload."""

RUN_FORMAT = {"format": "tokenreel-run", "version": 1}
_CONFIG_PREFIX = b"# tokenreel run configuration, xxh3-128 of what follows: "


@dataclass(frozen=True)
class RunPaths:
    """Where things lie in a run's folder."""

    root: Path

    @property
    def config(self) -> Path:
        """Resolved semantic configuration."""
        return self.root / "config.yaml"

    @property
    def identity(self) -> Path:
        """Run id, Dataset digests, versions; written once."""
        return self.root / "run.json"

    @property
    def branches(self) -> Path:
        """Branch records."""
        return self.root / "branches.json"

    @property
    def skips(self) -> Path:
        """Folder of skip entries."""
        return self.root / "skips"

    @property
    def ledger(self) -> Path:
        """Folder of ledgers, one folder a branch."""
        return self.root / "ledger"

    @property
    def events(self) -> Path:
        """Alarms, rollbacks, cuts, resumes, evaluations."""
        return self.root / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One line a logged step."""
        return self.root / "metrics.jsonl"

    @property
    def lock(self) -> Path:
        """Held by whoever writes."""
        return self.root / ".lock"


TRUNK: Mapping[str, Any] = {
    "number": 0,
    "parent": None,
    "from_step": 0,
    "from_position": 0,
    "first_skip": 1,
    "reason": "start",
    "skips": [],
}
"""The record of branch 0; see ``runs.Branch``."""


def is_run(path: Path) -> bool:
    """Whether ``path`` is the folder of a run."""
    return (path / "run.json").is_file()


@contextlib.contextmanager
def lock_run(paths: RunPaths) -> Iterator[None]:
    """Be the only writer of a run; the lock falls with the process, however it ends.

    Raises:
        RefusedError: another process holds it.
    """
    paths.root.mkdir(parents=True, exist_ok=True)
    held, _ = lock_file(paths.lock)
    if held is None:
        raise RefusedError(
            "TR-RUN-BUSY", "another process works on the run", str(paths.root), "a run that is not being trained",
            "stop it first, or wait for it",
        )  # fmt: skip
    try:
        yield
    finally:
        held.close()


def refuse_half(paths: RunPaths) -> None:
    """For whoever is about to build on a run's files.

    Raises:
        DamageError: a start was ended while it replaced them by those of a newer upload; the next one ends that.
    """
    if (paths.root / HALF_NAME).exists():
        raise DamageError(
            "TR-RUN-HALF", "a start was ended while it replaced the run's own files by those of a newer upload",
            str(paths.root), "that upload", "tokenreel train with checkpoint.upload as it was: it ends what was begun",
        )  # fmt: skip


def create_run(paths: RunPaths, identity: Mapping[str, Any], semantic: Mapping[str, Any]) -> dict[str, Any]:
    """Make a run's folder, or check that the one there is the same run.

    ``identity`` holds what never changes (``run_id``, ``datasets`` [{path, digest}], ``order_version``,
    ``package_version``, ...); its ``run_id`` is kept from the first time. Returns the stored identity.

    Raises:
        RefusedError: the folder holds something else.
    """
    if paths.identity.exists():
        return read_identity(paths)
    if paths.root.exists():
        remove_stale_temporaries(paths.root)
    # A process killed between the writes below leaves the first of them.
    ours = {".lock", "config.yaml", "branches.json"}
    names = {child.name for child in paths.root.glob("*") if not child.name.startswith(TEMPORARY_PREFIX)}
    foreign = sorted(names - ours)
    if foreign:
        raise RefusedError(
            "TR-RUN-FOREIGN", f"the folder holds {foreign[0]!r}", str(paths.root), "an empty folder or a run"
        )
    write_config(paths, semantic)
    write_sealed(paths.branches, {"branches": [TRUNK]})
    write_sealed(paths.identity, {**RUN_FORMAT, **identity})
    return read_identity(paths)


def read_identity(paths: RunPaths) -> dict[str, Any]:
    """The contents of run.json.

    Raises:
        ConfigError: no run there.
        DamageError: the file is damaged.
        RefusedError: another version of the format.
    """
    if not paths.identity.exists():
        raise ConfigError("TR-RUN-MISSING", "no run in this folder", str(paths.root), "a folder with run.json")
    identity = read_sealed(paths.identity)
    if {key: identity.get(key) for key in RUN_FORMAT} != RUN_FORMAT:
        raise RefusedError("TR-RUN-VERSION", "another format of run", str(paths.identity), str(RUN_FORMAT))
    return identity


def write_config(paths: RunPaths, semantic: Mapping[str, Any]) -> None:
    """Write the resolved semantic configuration; ``data.datasets`` are relative to the run's folder."""
    import yaml

    body = yaml.safe_dump(dict(semantic), sort_keys=True, allow_unicode=True, width=120).encode("utf-8")
    write_atomic(paths.config, _CONFIG_PREFIX + digest_bytes(body).encode("ascii") + b"\n" + body)


def read_config(paths: RunPaths) -> dict[str, Any]:
    """The resolved semantic configuration.

    Raises:
        DamageError: missing, or changed since it was written.
    """
    import yaml

    try:
        data = paths.config.read_bytes()
    except OSError as error:
        raise DamageError(
            "TR-RUN-CONFIG", f"cannot read: {error.strerror}", str(paths.config), "a configuration"
        ) from error
    first, _, body = data.partition(b"\n")
    if first != _CONFIG_PREFIX + digest_bytes(body).encode("ascii"):
        raise DamageError("TR-RUN-CONFIG", "the file differs from its hash", str(paths.config), "an untouched file")
    value = yaml.safe_load(body)
    if not isinstance(value, dict):
        raise DamageError("TR-RUN-CONFIG", "no mapping", str(paths.config), "a configuration")
    return value


def append_event(paths: RunPaths, kind: str, branch: int, step: int, **details: Any) -> None:
    """Append an event durably; the caller holds the lock. NaN and infinities in ``details`` become strings."""
    event = {"kind": kind, "branch": branch, "step": step, "time_s": round(time.time(), 3), **details}
    append_sealed_line(paths.events, finite_json(event))


def read_events(paths: RunPaths) -> tuple[dict[str, Any], ...]:
    """All events, oldest first.

    Raises:
        DamageError: a line is damaged; file and line are named.
    """
    return read_sealed_lines(paths.events).values


def finite_json(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinities become strings, numpy scalars Python numbers."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value
