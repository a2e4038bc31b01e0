"""What a run lived through: branches, skip entries, and the ledger as a branch sees it (DESIGN 8). No torch.

A rollback opens a branch: ``branches.json`` says where it left its parent, and *carries the skip entries made with it*,
so that branch and cuts appear together whatever is killed when; the files under ``skips/`` are written from it. The
branches of a run are lived one after the other, so branch b saw the entries that were made before branch b + 1.

Writers hold the run's lock (``run_folder.lock_run``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError, DamageError
from .ledger import LedgerWriter, ledger_dtype, ledger_path, list_attempts, read_intact_records
from .run_folder import (
    RunPaths,
    append_event,
    create_run,
    finite_json,
    is_run,
    lock_run,
    read_config,
    read_events,
    read_identity,
    write_config,
)
from .sealed import read_sealed, write_sealed
from .source_columns import by_source, columns_of, columns_of_attempts, first_steps

if TYPE_CHECKING:
    from .order.skips import SkipEntry

__all__ = [
    "Branch",
    "RunPaths",
    "append_event",
    "append_skips",
    "create_run",
    "is_run",
    "ledger_of",
    "lock_run",
    "materialise_skips",
    "next_attempt",
    "next_position",
    "open_branch",
    "open_ledger",
    "read_branches",
    "read_config",
    "read_events",
    "read_identity",
    "read_skips",
    "steps_on_record",
    "write_config",
]


@dataclass(frozen=True)
class Branch:
    """One branch of a run.

    Attributes:
        number: 0 is the trunk.
        parent: the branch it left; None for the trunk.
        from_step: its first step; earlier steps are the parent's.
        from_position: its first position, the stamp of the entries made with it.
        first_skip: number of the first skip entry that the parent did not see.
        reason: why.
        skips: entries made with the branch, as JSON; numbered from ``first_skip`` on.
        remap: from here on the run reads other data, see ``run_data.Remap``; None: the same.
    """

    number: int
    parent: int | None
    from_step: int
    from_position: int
    first_skip: int
    reason: str
    skips: tuple[Mapping[str, Any], ...] = ()
    remap: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As stored."""
        value = {**vars(self), "skips": [dict(entry) for entry in self.skips]}
        if self.remap is None:
            del value["remap"]
        return value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Branch:
        """From what :meth:`to_json` gave."""
        return Branch(**{**value, "skips": tuple(value["skips"])})


def read_branches(paths: RunPaths) -> tuple[Branch, ...]:
    """All branches, the current one last.

    Raises:
        DamageError: the file is damaged.
    """
    try:
        branches = tuple(Branch.from_json(value) for value in read_sealed(paths.branches)["branches"])
    except (KeyError, TypeError) as error:
        raise DamageError("TR-RUN-BRANCHES", "no branch records", str(paths.branches), "an untouched file") from error
    return branches


def open_branch(
    paths: RunPaths,
    from_step: int,
    from_position: int,
    reason: str,
    entries: Sequence[SkipEntry] = (),
    remap: Mapping[str, Any] | None = None,
) -> Branch:
    """Open a branch at a checkpoint's next step and position, with all that comes with it, in one write.

    The caller holds the lock. The parent is the branch that did the step before ``from_step``: the current one or, when
    it began later, one of its ancestors.
    """
    branches = read_branches(paths)
    parent = branches[-1]
    while parent.parent is not None and from_step < parent.from_step:
        parent = branches[parent.parent]
    branch = Branch(
        number=len(branches),
        parent=parent.number,
        from_step=from_step,
        from_position=from_position,
        first_skip=len(read_skips(paths)) + 1,
        reason=reason,
        skips=tuple(finite_json(entry.to_json()) for entry in entries),
        remap=remap,
    )
    write_sealed(paths.branches, {"branches": [*(old.to_json() for old in branches), branch.to_json()]})
    materialise_skips(paths)
    return branch


def _skip_path(paths: RunPaths, number: int) -> Path:
    return paths.skips / f"{number:06d}.json"


def _skip_values(paths: RunPaths) -> list[dict[str, Any]]:
    """Skip entries as JSON, number 1 first: those on file, and those a branch carries but nobody wrote out yet."""
    on_file: dict[int, dict[str, Any]] = {}
    for path in sorted(paths.skips.glob("*")) if paths.skips.is_dir() else ():
        if path.name.startswith("."):
            continue
        value = read_sealed(path)
        if path.name != f"{value.get('number', 0):06d}.json":
            raise DamageError("TR-SKIP-NAME", "the file's name is not its number", str(path), "an untouched folder")
        on_file[value["number"]] = value["entry"]
    for branch in read_branches(paths):
        for number, entry in enumerate(branch.skips, branch.first_skip):
            if on_file.setdefault(number, dict(entry)) != entry:
                raise DamageError("TR-SKIP-DIFFERS", "not the entry of its branch", str(_skip_path(paths, number)))
    for number in range(1, len(on_file) + 1):
        if number not in on_file:
            raise DamageError(
                "TR-SKIP-MISSING", "a skip entry is missing", str(_skip_path(paths, number)), "all entries"
            )
    return [on_file[number] for number in range(1, len(on_file) + 1)]


def read_skips(paths: RunPaths, branch: int | None = None) -> list[SkipEntry]:
    """The skip entries that a branch saw (default: the current one), number 1 first.

    Raises:
        DamageError: an entry is damaged or missing, or says what no entry can.
    """
    from .order.skips import SkipEntry

    values = _skip_values(paths)
    branches = read_branches(paths)
    if branch is not None and branch + 1 < len(branches):
        values = values[: branches[branch + 1].first_skip - 1]
    entries = []
    for number, value in enumerate(values, 1):
        try:
            entries.append(SkipEntry.from_json(value))
        except ConfigError as error:
            place = str(_skip_path(paths, number))
            raise DamageError("TR-SKIP-FILE", error.message, place, error.expected) from error
    return entries


def materialise_skips(paths: RunPaths) -> int:
    """Write the entries that a branch carries and that have no file yet; returns how many."""
    written = 0
    for number, value in enumerate(_skip_values(paths), 1):
        path = _skip_path(paths, number)
        if not path.exists():
            write_sealed(path, {"number": number, "entry": value})
            written += 1
    return written


def append_skips(paths: RunPaths, entries: Sequence[SkipEntry]) -> list[int]:
    """Append entries to the current branch; the caller holds the lock. Returns their numbers.

    Raises:
        DamageError: the list on disk is damaged.
    """
    materialise_skips(paths)
    first = len(_skip_values(paths)) + 1
    for number, entry in enumerate(entries, first):
        write_sealed(_skip_path(paths, number), {"number": number, "entry": finite_json(entry.to_json())})
    return list(range(first, first + len(entries)))


def next_attempt(paths: RunPaths, branch: int) -> int:
    """The number of a branch's next attempt."""
    attempts = list_attempts(paths.ledger, branch)
    return attempts[-1] + 1 if attempts else 0


def open_ledger(paths: RunPaths, branch: int, attempt: int, num_sources: int) -> LedgerWriter:
    """The writer of an attempt; the caller holds the lock."""
    return LedgerWriter(paths.ledger, branch, attempt, num_sources)


def ledger_of(paths: RunPaths, branch: int | None = None, names: Sequence[str] | None = None) -> NDArray[Any]:
    """What shaped the weights of a branch (default: the current one), step 0 first: its own steps after its ancestors';
    an attempt's steps replace what an earlier attempt did from its first step on. A branch that was left ends before a
    missing or damaged step: a rollback mended that. Records as ``ledger_dtype``, with a column for each source of
    ``names``; without them by number, of the most sources that any attempt had.

    Raises:
        DamageError: a header is damaged; or a step of the current branch is damaged, or missing between the others.
    """
    branches = read_branches(paths)
    own = branches[-1 if branch is None else branch]
    merged_N, damage = _merged(paths, branches, own, names)
    held = _steps_in_a_row(merged_N)
    if own is branches[-1] and (damage is not None or held < len(merged_N)):
        command = f"tokenreel rollback {paths.root} --to {held}, then the same command"
        if damage is not None:
            raise DamageError(damage.code, damage.message, damage.place, damage.expected, command)
        raise DamageError(
            "TR-LEDGER-GAP", f"step {held} is missing", str(paths.ledger), "every step from 0 on", command
        )
    return merged_N[:held]


def steps_on_record(paths: RunPaths) -> int:
    """Steps of the current branch that its ledger holds without a gap: a rollback can go back to any of them.

    Raises:
        DamageError: the header of a ledger is damaged.
    """
    branches = read_branches(paths)
    return _steps_in_a_row(_merged(paths, branches, branches[-1])[0])


def _steps_in_a_row(merged_N: NDArray[Any]) -> int:
    gaps = np.flatnonzero(merged_N["step"] != np.arange(len(merged_N)))
    return int(gaps[0]) if gaps.size else len(merged_N)


def _merged(
    paths: RunPaths, branches: Sequence[Branch], own: Branch, names: Sequence[str] | None = None
) -> tuple[NDArray[Any], DamageError | None]:
    """The records of a branch and its ancestors, steps ascending; some may be missing. Beside them the damaged record
    that hides steps which nothing later replaced."""
    lineage, current = [own], own
    while current.parent is not None:
        current = branches[current.parent]
        lineage.insert(0, current)
    merged_N, damage = np.empty(0, ledger_dtype(len(names or ()))), None
    remapped = names is not None and any(member.remap is not None for member in lineage)
    columns = columns_of_attempts(read_events(paths)) if remapped else {}  # else numbers say as much
    for member in lineage:
        if member.from_step <= _next_step(merged_N):
            damage = None  # it was left behind
        merged_N = merged_N[merged_N["step"] < member.from_step]
        for attempt in list_attempts(paths.ledger, member.number):
            path = ledger_path(paths.ledger, member.number, attempt)
            file = read_intact_records(path)
            if file.size_bytes and (file.branch, file.attempt) != (member.number, attempt):
                raise DamageError("TR-LEDGER-IDENTITY", "the ledger of another attempt", str(path))
            if file.records_N.size:
                first = file.records_N["step"][0]
                if first <= _next_step(merged_N):
                    damage = None  # its steps were done again
                own_N = file.records_N
                if names is not None:
                    own_N = by_source(own_N, columns_of(columns, member.number, attempt), names)
                merged_N = _joined(merged_N[merged_N["step"] < first], own_N)
            elif file.damage is not None:  # its first step is unknown but for the events
                first = first_steps(read_events(paths)).get((member.number, attempt), 0)
                merged_N = merged_N[merged_N["step"] < first]
            damage = file.damage or damage
    return merged_N, damage


def _next_step(merged_N: NDArray[Any]) -> int:
    return int(merged_N["step"][-1]) + 1 if len(merged_N) else 0


def _joined(before_N: NDArray[Any], after_N: NDArray[Any]) -> NDArray[Any]:
    """Both one after the other; an attempt that knew fewer sources gets zeros for the later ones."""
    num_sources = max(part.dtype["source_loss_S"].shape[0] for part in (before_N, after_N))
    joined_N = np.zeros(len(before_N) + len(after_N), ledger_dtype(num_sources))
    for part, rows in ((before_N, slice(0, len(before_N))), (after_N, slice(len(before_N), None))):
        known = part.dtype["source_loss_S"].shape[0]
        for name in part.dtype.names or ():
            if name in ("source_loss_S", "source_labels_S"):
                joined_N[name][rows, :known] = part[name]
            else:
                joined_N[name][rows] = part[name]
    return joined_N


def next_position(branch: Branch, ledger_N: NDArray[Any]) -> int:
    """The first position that a branch has not consumed, by its ledger (:func:`ledger_of`); new entries act from it."""
    return int(ledger_N["next_position"][-1]) if len(ledger_N) > branch.from_step else branch.from_position
