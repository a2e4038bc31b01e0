"""The report of a run: what it learned, from what, where it spiked, what was cut, and the way back to each document."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.dataset_blocks import dedup_blocks, fate_blocks, packing_blocks
from loader.page import Block, Facts, Prose, Section, Table, render_page
from loader.run_view import RunView, open_run
from loader.runs import ledger_of, read_branches, read_events

from ..spikes.rollback import rollbacks_from
from .cases import cases_of
from .curves import NORMS, BranchCurve, Marks, loss_chart, norm_chart, share_chart, source_loss_chart
from .scores import evaluations_in_force, held_out_blocks, score_blocks
from .speed import speed_blocks
from .spike_sections import cases_of_run, spike_sections

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader.shards.manifest import Manifest

__all__ = ["cut_windows", "own_records", "render_run_report", "run_curves", "write_run_report"]

_MOST_EVENTS = 300
_MOST_DATASETS = 16
_MOST_SOURCES = 256


def write_run_report(root: Path, target: Path | None = None) -> Path:
    """Write the report of the run in ``root`` to ``target`` (default ``RUN/report.html``); returns where.

    Raises:
        ConfigError, DamageError, RefusedError: the run cannot be opened.
    """
    from loader.files import write_atomic

    target = root / "report.html" if target is None else target
    write_atomic(target, render_run_report(root).encode("utf-8"))
    return target


def render_run_report(root: Path) -> str:
    """The report as one HTML document without any reference to the network.

    Raises:
        ConfigError, DamageError, RefusedError: as :func:`write_run_report`.
    """
    view = open_run(root)
    events = read_events(view.paths)
    own = own_records(view)
    marks = _marks(view, events, own)
    curves = run_curves(view, own) if len(view.ledger_N) else []
    norms = [chart for column in NORMS if curves and (chart := norm_chart(curves, marks, column)).traces]
    evaluations = evaluations_in_force(events, read_branches(view.paths))
    evaluated = [*held_out_blocks(evaluations), *score_blocks(evaluations)]
    sections = [
        Section("Summary", [Facts(dict(_summary(view, events)))]),
        Section("Loss", [loss_chart(curves, marks)] if curves else [Prose("No step has been done yet.")]),
        *spike_sections(view, events),
        *([Section("Norms", norms)] if norms else []),
        *([Section("Evaluation", evaluated)] if evaluated else []),
        Section("Sources", _source_blocks(view, marks)),
        *([Section("Speed", speed_blocks(view.paths.metrics, view.ledger_N, events))] if len(view.ledger_N) else ()),
        *_dataset_sections(view),
        Section("What happened", [_timeline(events)]),
    ]
    return render_page(f"Run {root.name}", sections, f"tokenreel {view.identity.get('package_version', '')}")


def _summary(view: RunView, events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, object]]:
    records_N = view.ledger_N
    yield "steps", view.num_steps
    yield "next position", view.next_position
    if len(records_N):
        yield "learned tokens", int(records_N["label_count"].sum())
        yield "loss of the last step, nats a token", float(records_N["loss"][-1])
    yield "branch", view.branch.number
    later = [branch for branch in read_branches(view.paths) if branch.parent is not None]
    yield "rollbacks", sum(1 for branch in later if branch.remap is None)
    if remaps := sum(1 for branch in later if branch.remap is not None):
        yield "went over to other data", remaps
    yield "skip entries", len(view.entries)
    yield "events", len(events)
    yield "run id", view.identity.get("run_id", "")
    for folder, digest in zip(view.data.datasets, view.sources.digests, strict=True):
        yield f"Dataset {folder}", digest


def cut_windows(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Windows ``[start, stop)`` of steps that a rollback answered."""
    return [case.window for case in cases_of(events) if case.is_cut and case.window is not None]


def own_records(view: RunView) -> dict[int, NDArray[Any]]:
    """The records that each branch wrote itself, by its number: each lineage is read once, the current one by ``view``.

    Raises:
        DamageError: a ledger is damaged.
    """
    current, found = view.branch.number, {}
    for branch in read_branches(view.paths):
        is_current = branch.number == current
        records_N = view.ledger_N if is_current else ledger_of(view.paths, branch.number, view.sources.names)
        found[branch.number] = records_N[records_N["branch"] == branch.number]
    return found


def run_curves(view: RunView, own: Mapping[int, NDArray[Any]]) -> list[BranchCurve]:
    """The run as it stands, and the part of each branch that a rollback left; ``own``: of :func:`own_records`."""
    branches = read_branches(view.paths)
    curves = [BranchCurve(view.branch.number, view.ledger_N, is_left=False)]
    lineage, current = {view.branch.number: 1 << 62}, view.branch
    while current.parent is not None:
        lineage[current.parent] = min(lineage.get(current.parent, 1 << 62), current.from_step)
        current = branches[current.parent]
    for number, records_N in own.items():
        left_N = records_N[records_N["step"] >= lineage.get(number, 0)]
        if len(left_N):
            curves.append(BranchCurve(number, left_N, is_left=True))
    return curves


def _marks(view: RunView, events: Sequence[Mapping[str, Any]], own: Mapping[int, NDArray[Any]]) -> Marks:
    cases = cases_of_run(view, events)
    return Marks(
        cut=[case.window for case in cases if case.is_cut and case.window] + _cut_by_hand(view, own),
        spikes=[case.window for case in cases if not case.is_cut and case.window],
        alarms=[case.alarm_step for case in cases if case.alarm_step is not None],
        backs=[
            branch.from_step for branch in read_branches(view.paths) if branch.parent is not None and not branch.remap
        ],
    )


def _cut_by_hand(view: RunView, own: Mapping[int, NDArray[Any]]) -> list[tuple[int, int]]:
    """Steps whose positions an entry made by hand drops, as the branches counted them that read them."""
    found = []
    entries = [entry for entry in view.entries if entry.kind == "positions" and not rollbacks_from([entry])]
    for number, records_N in own.items():
        for entry in entries:
            for start, stop in zip(entry.acting.start_R.tolist(), entry.acting.stop_R.tolist(), strict=True):
                read_N = (records_N["first_position"] < stop) & (records_N["next_position"] > start)
                steps_N = records_N["step"][read_N]
                if len(steps_N) and number < view.branch.number:
                    found.append((int(steps_N[0]), int(steps_N[-1]) + 1))
    return found


def _planned(view: RunView) -> dict[str, list[tuple[int, float]]]:
    """Source -> (first step, weight) of each stage that began within what was consumed."""
    from loader.run_config import mixture_of

    stages = mixture_of(view.data, view.sources, view.force.start)
    planned: dict[str, list[tuple[int, float]]] = {name: [] for name in view.sources.names}
    for stage in stages:
        if stage.start >= max(view.next_position, 1):
            break
        step = 0 if stage.start == 0 else _step_at(view, stage.start)
        total = sum(stage.weights.values())
        for name, known in planned.items():
            known.append((step, stage.weights.get(name, 0.0) / total))
    return planned


def _step_at(view: RunView, position: int) -> int:
    """The step that consumed a position, or the next one that consumed any."""
    return int(view.ledger_N["next_position"].searchsorted(position, side="right"))


def _source_blocks(view: RunView, marks: Marks) -> list[Block]:
    names, records_N = view.sources.names, view.ledger_N
    labels_S = records_N["source_labels_S"].sum(axis=0).tolist() + [0] * len(names)
    learned = int(records_N["label_count"].sum())
    total = (learned if view.force.branch is not None else sum(labels_S)) or 1
    rows: list[tuple[object, ...]] = []
    for index, name in enumerate(names):
        samples = view.plan.mixture.rank_before(index, view.next_position) if view.next_position else 0
        planned = samples / view.next_position if view.next_position else 0.0
        in_epochs = samples / max(1, view.sources.info(name).num_samples)
        shares = (f"{planned:.2%}", f"{labels_S[index] / total:.2%}")
        rows.append((name, int(samples), f"{in_epochs:.2f}", labels_S[index], *shares))
    earlier = learned - sum(labels_S) if view.force.branch is not None else 0
    if earlier:
        rows.insert(0, ("of earlier Datasets, before a remap", "", "", earlier, "", f"{earlier / total:.2%}"))
    heads = ("source", "positions", "epochs", "learned tokens", "share of positions", "share of learned tokens")
    blocks: list[Block] = [Table(heads, rows[:_MOST_SOURCES])]
    if len(rows) > _MOST_SOURCES:
        blocks.append(Prose(f"and {len(rows) - _MOST_SOURCES:,} more sources: `tokenreel inspect` lists all."))
    if len(records_N) and records_N.dtype["source_labels_S"].shape[0]:
        blocks.append(share_chart(names, records_N, _planned(view)))
        blocks.append(source_loss_chart(names, records_N, marks))
    return blocks


def _dataset_sections(view: RunView) -> Iterator[Section]:
    """What the build did to the documents of each Dataset: fates, deduplication, packing."""
    places = list(zip(view.data.datasets, view.sources.datasets, strict=True))
    for folder, dataset in places[:_MOST_DATASETS]:
        manifest: Manifest = dataset.manifest
        rows = [
            (info.name, info.num_documents, info.num_segments, info.num_samples, info.num_tokens, f"{info.share:.2%}")
            for info in manifest.sources[:_MOST_SOURCES]
        ]
        heads = ("source", "documents", "segments", "samples", "tokens", "share")
        blocks: list[Block] = [Table(heads, rows)]
        config, accounting = manifest.config, manifest.accounting
        sources = dict(list(accounting.get("sources", {}).items())[:_MOST_SOURCES])
        blocks += fate_blocks(sources)
        if "dedup" in accounting and "dedup" in config:
            blocks += [Prose("Deduplication:"), *dedup_blocks(config["dedup"], accounting["dedup"])]
        packed = packing_blocks(sources, config["pack"]) if "pack" in config else []
        blocks += [Prose("Packing:"), *packed] if packed else []
        yield Section(f"Dataset {folder}", blocks)
    if len(places) > _MOST_DATASETS:
        yield Section("More Datasets", [Prose(f"{len(places) - _MOST_DATASETS} more: `tokenreel report` shows each.")])


def _timeline(events: Sequence[Mapping[str, Any]]) -> Block:
    rows = []
    for event in events[-_MOST_EVENTS:]:
        when = datetime.datetime.fromtimestamp(float(event.get("time_s", 0)), datetime.UTC)
        rows.append((f"{when:%Y-%m-%d %H:%M:%S}", event.get("branch"), event.get("step"), event["kind"], _short(event)))
    return Table(("time, UTC", "branch", "step", "event", "details"), rows, filters=("event",), wide=("details",))


def _short(event: Mapping[str, Any]) -> str:
    """An event's own facts in a line."""
    own = {name: value for name, value in event.items() if name not in ("kind", "branch", "step", "time_s", "attempt")}
    parts = []
    for name, value in own.items():
        if isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif isinstance(value, Mapping):
            parts.append(f"{name} ({_short(value)})" if len(value) <= 6 else f"{name} of {len(value)}")
        elif isinstance(value, list | tuple):
            parts.append(f"{len(value)} {name}")
        elif value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(parts)[:400]
