"""``remap``: a run goes on with other data, because what it began with truly changed. No torch.

A Cursor refuses another manifest among the Datasets used so far, rightly: positions would read something else without
anybody's saying so. A remap says so. It opens a branch at the newest checkpoint (or, without checkpoints, where the
ledger ends) whose plan takes over there: positions, steps, batch sizes and mixture go on counting, sources begin their
order anew, and those whose Dataset stayed the same go on in theirs. What was read before stays the old plan's: history
and look-up answer for it from the old Datasets, or say that those are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .canonical import digest_of
from .errors import ConfigError, DamageError, RefusedError, TokenreelError
from .run_config import build_plan
from .run_data import DataInForce, data_in_force, digests_of, entries_in_force, lineage_of
from .run_folder import RunPaths, append_event, lock_run, read_config, read_identity, write_config
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
        materialise_skips(paths)
        semantic, branches, entries = read_config(paths), read_branches(paths), read_skips(paths)
        force = data_in_force(semantic, identity, branches)
        old, why_gone = _old_view(root)
        if old is not None:  # Datasets may have been added since
            force = replace(force, datasets=dataset_entries(old.sources, old.data.datasets))
        standing = standing_of(paths, branches, old)
        relative = relative_datasets(datasets, Path(), root)
        sources = _open(root, relative)
        data = {**force.data, "datasets": relative}
        if old is not None:
            _check_alike(old.sources, sources)
        _refuse_same(paths, data, sources, (entries, force, standing))
        start = _start_of(standing, old, sources, force)
        after = DataInForce(data, dataset_entries(sources, relative), start)
        remap = _record(paths, force, after, old, standing)
        eras = tuple((first, digests_of(force.datasets) if made is None else made) for first, made in force.eras)
        kept, left = entries_in_force(entries, replace(after, eras=eras), sources)
        remap["left_behind"] = left
        config = parse_data_config({"data": data}, str(paths.config))
        build_plan(config, sources, _skip_list(kept), start)  # refuses what cannot go on
        number = len(branches)
        if not plan_only:
            step, position = standing.cursor.next_step, standing.cursor.next_position
            branch = open_branch(paths, step, position, "remap", remap=remap)
            write_config(paths, {**semantic, "data": data})
            changed = [entry["digest"] for entry in after.datasets]
            append_event(
                paths, "remap", branch.number, step, position=position, datasets=relative, digests=changed,
                before=[entry["digest"] for entry in force.datasets], undone_steps=standing.undone_steps,
            )  # fmt: skip
    return {
        "written": not plan_only,
        "branch": number,
        "step": standing.cursor.next_step,
        "position": standing.cursor.next_position,
        "undone_steps": standing.undone_steps,
        "old_datasets_gone": why_gone,
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
    return open_sources([look_into_dataset(place) for place in places])


def _check_alike(old: Sources, new: Sources) -> None:
    """A model goes on only if tokens mean the same and samples have the same length."""
    before, after = old.datasets[0].manifest, new.datasets[0].manifest
    for what, was, now in (
        ("sequence length", before.seq_len, after.seq_len),
        ("vocabulary", before.vocab_size, after.vocab_size),
        ("tokenizer", before.tokenizer.get("digest"), after.tokenizer.get("digest")),
    ):
        if was != now:
            raise RefusedError("TR-SOURCES-DIFFER", f"{what} {now}", new.place, f"{was} as the run has read so far")


def _skip_list(entries: Sequence[SkipEntry]) -> Any:
    from .order.skips import SkipList

    return SkipList(entries)


def _refuse_same(
    paths: RunPaths, data: dict[str, Any], sources: Sources, state: tuple[list[SkipEntry], DataInForce, Standing]
) -> None:
    """Where the Cursor accepts the data, changing the configuration is enough, and says more."""
    from .order.cursor import check_cursor

    entries, force, standing = state
    same = [entry["digest"] for entry in force.datasets] == list(sources.digests)
    if not same:
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


def _start_of(standing: Standing, old: RunView | None, sources: Sources, force: DataInForce) -> PlanStart:
    from .order.start import PlanStart

    cursor = standing.cursor
    known = {entry["digest"] for entry in force.datasets}
    same = [name for name, digest in sources.digest_by_source.items() if digest in known]
    raw = {} if old is None else old.plan.raw_before(cursor.next_position)
    carried = {name: raw[name] for name in same if raw.get(name)}
    return PlanStart(cursor.next_position, cursor.next_step, digest_of(cursor.to_json()), carried)


def _record(
    paths: RunPaths, force: DataInForce, after: DataInForce, old: RunView | None, standing: Standing
) -> dict[str, Any]:
    """The remap record but for what is left behind."""
    assert after.start is not None
    consumed = None
    if old is not None:
        position = standing.cursor.next_position
        counts = old.plan.mixture.counts_before(position).tolist()
        raw = old.plan.raw_before(position)
        samples = {name: int(old.sources.shard_samples(name).sum()) for name in old.sources.names}
        consumed = {
            name: {"positions": count, "epochs": round(raw[name] / samples[name], 6)}
            for name, count in zip(old.sources.names, counts, strict=True)
            if count
        }
    return {
        "datasets": [dict(entry) for entry in after.datasets],
        "data": dict(after.data),
        "before": {"datasets": [dict(entry) for entry in force.datasets], "data": dict(force.data)},
        "start": after.start.to_json(),
        "consumed": consumed,
        "left_behind": [],
    }
