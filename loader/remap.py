"""``remap``: a run goes on with other data, because what it began with truly changed. No torch.

A Cursor refuses another manifest among the Datasets used so far, rightly: positions would read something else without
anybody's saying so. A remap says so. It opens a branch at the newest checkpoint (or, without checkpoints, where the
ledger ends) whose plan takes over there: positions, steps, batch sizes and mixture go on counting, sources begin their
order anew, and those whose Dataset stayed the same go on in theirs, be the others' old Datasets there or not
(``remap_before``); where that cannot be said, it is named. What was read before stays the old plan's: history and
look-up answer for it from the old Datasets, or say that those are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .canonical import digest_of
from .dataset_facts import facts_of, samples_of
from .errors import ConfigError, DamageError, RefusedError, TokenreelError
from .remap_before import (
    ReadSoFar,
    contradicts,
    facts_in_force,
    read_of_view,
    read_without,
    stayed,
    with_added,
)
from .run_cache import store_options
from .run_config import build_plan
from .run_data import DataInForce, data_in_force, digests_of, entries_in_force, lineage_of
from .run_folder import RunPaths, append_event, lock_run, read_config, read_identity, refuse_half, write_config
from .run_verify import COMMIT_NAME
from .run_view import RunView, dataset_entries, dataset_places, open_run, parse_data_config, relative_datasets
from .runs import Branch, materialise_skips, open_branch, read_branches, read_skips
from .sealed import read_sealed
from .sources import Sources, open_sources

if TYPE_CHECKING:
    from .order.cursor import Cursor
    from .order.skips import SkipEntry
    from .order.start import PlanStart

__all__ = ["Standing", "remap_run", "standing_of"]


@dataclass(frozen=True)
class Standing:
    """Where a run stands: the Cursor that it would resume from, and the steps in the ledger behind it."""

    cursor: Cursor
    undone_steps: int


@dataclass(frozen=True)
class _Past:
    """What a run read: the data in force, where it stands, and its view, or why the Datasets for one are not there."""

    force: DataInForce
    standing: Standing
    view: RunView | None
    why_gone: str | None


def remap_run(root: Path, datasets: Sequence[str], plan_only: bool = False) -> dict[str, Any]:
    """Go over to ``datasets``, folders or URLs, all that the run is to read from now on; returns what was written.

    Args:
        plan_only: say what would be written, write nothing.

    Raises:
        ConfigError: no run or no Dataset there, or the run's mixture does not fit them.
        RefusedError: nothing changed: the run's Cursor accepts them; or the run is being trained; or tokens mean
            something else there (another tokenizer or sequence length).
        DamageError: a file of the run is damaged, or it is not known what was read before.
    """
    paths = RunPaths(root)
    identity = read_identity(paths)
    with lock_run(paths):
        refuse_half(paths)
        materialise_skips(paths)
        semantic, branches, entries = read_config(paths), read_branches(paths), read_skips(paths)
        relative = relative_datasets(datasets, Path(), root)
        sources = _open(root, relative)
        past = _past_of(paths, branches, data_in_force(semantic, identity, branches), (sources, relative))
        force, standing = past.force, past.standing
        data = {**force.data, "datasets": relative}
        _check_alike(force, sources)
        _refuse_same(paths, data, sources, (entries, force, standing))
        before = _read_so_far(paths, past, sources, entries)
        start = _start_of(standing, before, stayed(force, sources))
        after = DataInForce(data, dataset_entries(sources, relative), start)
        remap = _record(force, after, before)
        eras = tuple((first, digests_of(force.datasets) if made is None else made) for first, made in force.eras)
        kept, left = entries_in_force(entries, replace(after, eras=eras), sources)
        remap["left_behind"] = left
        config = parse_data_config({"data": data}, str(paths.config))
        build_plan(config, sources, _skip_list(kept), start)  # refuses what cannot go on
        said = {
            "begins_anew": [] if before is not None else stayed(force, sources),
            "vanished": _vanished(force, standing, sources, before),
        }
        if not plan_only:
            step, position = standing.cursor.next_step, standing.cursor.next_position
            branch = open_branch(paths, step, position, "remap", remap=remap)
            write_config(paths, {**semantic, "data": data})
            changed = [entry["digest"] for entry in after.datasets]
            append_event(
                paths, "remap", branch.number, step, position=position, datasets=relative, digests=changed,
                before=[entry["digest"] for entry in force.datasets], undone_steps=standing.undone_steps, **said,
            )  # fmt: skip
    return {
        "written": not plan_only,
        "branch": len(branches),
        "step": standing.cursor.next_step,
        "position": standing.cursor.next_position,
        "undone_steps": standing.undone_steps,
        "old_datasets_gone": past.why_gone,
        **said,
        **remap,
    }


def standing_of(paths: RunPaths, branches: Sequence[Branch], view: RunView | None) -> Standing:
    """Where the run would resume: the newest checkpoint of its current branch; without any, the end of its ledger.

    Raises:
        DamageError: there is no checkpoint, and the Datasets that the ledger's steps read (``view``) are gone.
    """
    from .order.cursor import Cursor, make_cursor
    from .runs import ledger_of

    done = len(ledger_of(paths))
    limits: dict[int, int] = {}
    limit = 1 << 62
    for branch in lineage_of(branches, branches[-1].number):
        limits[branch.number] = limit
        limit = min(limit, branch.from_step)
    found: list[tuple[int, int, Any]] = []
    for commit in sorted(paths.checkpoints.glob(f"step_*/{COMMIT_NAME}")):
        facts = read_sealed(commit)
        if int(facts["step"]) <= limits.get(int(facts["branch"]), -1):
            found.append((int(facts["step"]), int(facts["number"]), facts["cursor"]))
    if found:
        step, _, cursor = max(found, key=lambda one: one[:2])
        return Standing(Cursor.from_json(cursor), max(0, done - step))
    if view is None:
        raise DamageError(
            "TR-REMAP-UNKNOWN", "no checkpoint says what was read before, and the Datasets that could are gone",
            str(paths.checkpoints), "a checkpoint, or the old Datasets",
        )  # fmt: skip
    return Standing(make_cursor(view.plan, view.sources.digest_by_source, next_step=done), 0)


def _past_of(
    paths: RunPaths, branches: Sequence[Branch], force: DataInForce, new: tuple[Sources, Sequence[str]]
) -> _Past:
    """``force`` with the Datasets that were added since the run began; ``new`` are those that it goes over to."""
    view, why_gone = _old_view(paths.root)
    standing = standing_of(paths, branches, view)
    if view is not None and (place := contradicts(view, standing.cursor)) is not None:
        view, why_gone = None, f"the Dataset at {place} is not the one that was read"
    if view is not None:
        force = replace(force, datasets=dataset_entries(view.sources, view.data.datasets))
    else:
        force = with_added(force, standing.cursor, *new)
    return _Past(force, standing, view, why_gone)


def _old_view(root: Path) -> tuple[RunView | None, str | None]:
    """The run over its old Datasets, or why those cannot be had."""
    try:
        return open_run(root), None
    except TokenreelError as error:
        if error.code.split("-")[1] == "RUN" and error.code != "TR-RUN-DATASET":
            raise
        return None, f"{error.message} ({error.place})"


def _open(root: Path, relative: Sequence[str]) -> Sources:
    from .stream.store import look_into_dataset

    places = dataset_places(root, relative, "--dataset", "a folder that `build` made")
    options = store_options(RunPaths(root))
    return open_sources([look_into_dataset(place, options) for place in places])


def _check_alike(force: DataInForce, new: Sources) -> None:
    """A model goes on only if tokens mean the same and samples have the same length, as far as the run noted that."""
    (now, *_) = facts_of(new)
    was = next((entry["facts"] for entry in force.datasets if "facts" in entry), now)
    for what, key in (("sequence length", "seq_len"), ("vocabulary", "vocab_size"), ("tokenizer", "tokenizer")):
        if was[key] != now[key]:
            expected = f"{was[key]} as the run has read so far"
            raise RefusedError(
                "TR-SOURCES-DIFFER", f"{what} {now[key]}", new.place, expected,
                f"build it anew with the {what} of the run"
                + (", loaded from the tokenizer/ of a Dataset that it read" if key == "tokenizer" else ""),
            )  # fmt: skip


def _skip_list(entries: Sequence[SkipEntry]) -> Any:
    from .order.skips import SkipList

    return SkipList(entries)


def _refuse_same(
    paths: RunPaths, data: dict[str, Any], sources: Sources, state: tuple[list[SkipEntry], DataInForce, Standing]
) -> None:
    """Where the Cursor accepts the data, changing the configuration is enough, and says more."""
    from .order.cursor import check_cursor

    entries, force, standing = state
    old, new = [entry["digest"] for entry in force.datasets], list(sources.digests)
    same = old == new
    pairs = zip(old, new, strict=False)
    if not same and (all(a == b for a, b in pairs) or set(old) == set(new)):  # a trainer refuses others unread, too
        try:
            config = parse_data_config({"data": data}, str(paths.config))
            kept, _ = entries_in_force(entries, force, sources)
            plan = build_plan(config, sources, _skip_list(kept), force.start)
            check_cursor(standing.cursor, plan, sources.digest_by_source)
            same = True
        except (RefusedError, ConfigError):
            return
    if same:
        raise RefusedError(
            "TR-REMAP-SAME", "nothing that was read so far changed: the run goes on with these Datasets as it is",
            sources.place, "other data", "name them in data.datasets, then tokenreel train",
        )  # fmt: skip


def _read_so_far(paths: RunPaths, past: _Past, sources: Sources, entries: Sequence[SkipEntry]) -> ReadSoFar | None:
    """What was read by the plan in force; None: nobody can tell any more."""
    if past.view is not None:
        return read_of_view(past.view, past.standing.cursor.next_position)
    config = parse_data_config({"data": past.force.data}, str(paths.config))
    return read_without(past.force, config, past.standing.cursor, sources, entries)


def _start_of(standing: Standing, before: ReadSoFar | None, same: Sequence[str]) -> PlanStart:
    from .order.start import PlanStart

    cursor = standing.cursor
    raw = {} if before is None else before.raw
    carried = {name: raw[name] for name in same if raw.get(name)}
    return PlanStart(cursor.next_position, cursor.next_step, digest_of(cursor.to_json()), carried)


def _vanished(force: DataInForce, standing: Standing, sources: Sources, before: ReadSoFar | None) -> list[str]:
    """Sources of the old Datasets that none of the new ones holds."""
    old = {*standing.cursor.sources, *samples_of(facts_in_force(force, sources) or ())}
    old.update(() if before is None else before.positions)
    return sorted(old - set(sources.names))


def _record(force: DataInForce, after: DataInForce, before: ReadSoFar | None) -> dict[str, Any]:
    """The remap record but for what is left behind."""
    assert after.start is not None
    return {
        "datasets": [dict(entry) for entry in after.datasets],
        "data": dict(after.data),
        "before": {"datasets": [dict(entry) for entry in force.datasets], "data": dict(force.data)},
        "start": after.start.to_json(),
        "consumed": None if before is None else before.to_json(),
        "left_behind": [],
    }
