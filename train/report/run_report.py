"""The report of a run: what it learned, from what, where it spiked, what was cut, and the way back to each document."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.page import Block, Chart, Facts, Prose, Section, Table, render_page
from loader.run_view import RunView, open_run
from loader.runs import ledger_of, read_branches, read_events

from .curves import BranchCurve, loss_chart, norm_chart, share_chart, source_loss_chart
from .documents import document_blocks

if TYPE_CHECKING:
    from loader.shards.manifest import Manifest

__all__ = ["cut_windows", "render_run_report", "run_curves", "write_run_report"]

_MOST_EVENTS = 300


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
    sections = [
        Section("Summary", [Facts(dict(_summary(view, events)))]),
        Section("Loss", _loss_blocks(view, events)),
        *_spike_sections(view, events),
        Section("Sources", _source_blocks(view)),
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
    yield "rollbacks", sum(1 for branch in read_branches(view.paths) if branch.parent is not None)
    yield "skip entries", len(view.entries)
    yield "events", len(events)
    yield "run id", view.identity.get("run_id", "")
    for folder, digest in zip(view.data.datasets, view.sources.digests, strict=True):
        yield f"Dataset {folder}", digest


def _verdicts(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event.get("kind") == "verdict"]


def cut_windows(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Windows ``[start, stop)`` of steps that a rollback answered."""
    cut = [event["window"] for event in _verdicts(events) if event.get("rollback") is not None and "window" in event]
    return [(int(window["start"]), int(window["stop"])) for window in cut]


def run_curves(view: RunView) -> list[BranchCurve]:
    """The run as it stands, and the part of each branch that a rollback left."""
    branches = read_branches(view.paths)
    curves = [BranchCurve(view.branch.number, view.ledger_N, is_left=False)]
    lineage, current = {view.branch.number: 1 << 62}, view.branch
    while current.parent is not None:
        lineage[current.parent] = min(lineage.get(current.parent, 1 << 62), current.from_step)
        current = branches[current.parent]
    for branch in branches:
        records_N = ledger_of(view.paths, branch.number)
        own_N = records_N[records_N["branch"] == branch.number]
        left_N = own_N[own_N["step"] >= lineage.get(branch.number, 0)]
        if len(left_N):
            curves.append(BranchCurve(branch.number, left_N, is_left=True))
    return curves


def _loss_blocks(view: RunView, events: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not len(view.ledger_N):
        return [Prose("No step has been done yet.")]
    curves, windows = run_curves(view), cut_windows(events)
    blocks: list[Block] = [loss_chart(curves, windows), norm_chart(curves, windows)]
    evaluations = [event for event in events if event.get("kind") == "evaluation"]
    if evaluations:
        rows = [(event["branch"], event["step"], _short(event)) for event in evaluations]
        blocks.append(Table(("branch", "step", "held-out"), rows))
    return blocks


def _spike_sections(view: RunView, events: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    """One section an investigation, and one for all that is cut."""
    told: dict[int, Mapping[str, Any]] = {}
    for number, event in enumerate(_verdicts(events), 1):
        told.update({int(str(found["document"]), 16): found for found in event.get("documents", ())})
        window = event.get("window", {})
        facts = {
            "alarm at step": window.get("alarm"),
            "window of steps": f"{window.get('start')} .. {window.get('stop')}",
            "action": event.get("action"),
            "why": event.get("why"),
            "back to step": event.get("checkpoint_step"),
            "flagged tokens": event.get("flagged_tokens"),
            "tokens in the window": event.get("window_tokens"),
        }
        blocks: list[Block] = [Facts({name: value for name, value in facts.items() if value is not None})]
        if event.get("sources"):
            heads = ("source", "tokens in the window", "flagged tokens", "cut whole")
            rows = [
                (name, part.get("window_tokens"), part.get("flagged_tokens"), "yes" if part.get("whole") else "")
                for name, part in event["sources"].items()
            ]
            blocks.append(Table(heads, rows))
        if event.get("advice"):
            blocks.append(Prose(str(event["advice"])))
        yield Section(f"Investigation {number}", blocks)
    if view.entries:
        named = sorted(told, key=lambda document: -int(told[document].get("tokens", 0)))
        documents = [*named, *(document for entry in view.entries for document in entry.documents)]
        blocks = [_entry_table(view)]
        if documents:
            blocks += document_blocks(view.sources, documents, told)
        yield Section("What is cut", blocks)


def _entry_table(view: RunView) -> Table:
    rows = [
        (
            number,
            entry.kind,
            entry.mode,
            entry.source or "",
            f"{len(entry.documents):,} documents" if entry.documents else _ranges(entry.ranges),
            entry.stamp,
            entry.reason,
        )
        for number, entry in enumerate(view.entries, 1)
    ]
    return Table(("entry", "kind", "mode", "source", "what", "acts from position", "reason"), rows)


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{start}:{stop}" for start, stop in ranges[:8])
    return f"{shown} and {len(ranges) - 8} more" if len(ranges) > 8 else shown


def _planned(view: RunView) -> dict[str, list[tuple[int, float]]]:
    """Source -> (first step, weight) of each stage that began within what was consumed."""
    from loader.run_config import mixture_of

    stages = mixture_of(view.data, view.sources)
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


def _source_blocks(view: RunView) -> list[Block]:
    names, records_N = view.sources.names, view.ledger_N
    labels_S = records_N["source_labels_S"].sum(axis=0).tolist() + [0] * len(names)
    total = sum(labels_S) or 1
    rows = []
    for index, name in enumerate(names):
        samples = view.plan.mixture.rank_before(index, view.next_position) if view.next_position else 0
        planned = samples / view.next_position if view.next_position else 0.0
        in_epochs = samples / max(1, view.sources.info(name).num_samples)
        shares = (f"{planned:.2%}", f"{labels_S[index] / total:.2%}")
        rows.append((name, int(samples), f"{in_epochs:.2f}", labels_S[index], *shares))
    heads = ("source", "positions", "epochs", "learned tokens", "share of positions", "share of learned tokens")
    blocks: list[Block] = [Table(heads, rows)]
    if len(records_N) and records_N.dtype["source_labels_S"].shape[0]:
        blocks.append(share_chart(names, records_N, _planned(view)))
        blocks.append(source_loss_chart(names, records_N, ()))
    return blocks


def _dataset_sections(view: RunView) -> Iterator[Section]:
    """What the build did to the documents of each Dataset."""
    for folder, dataset in zip(view.data.datasets, view.sources.datasets, strict=True):
        manifest: Manifest = dataset.manifest
        rows = [
            (info.name, info.num_documents, info.num_segments, info.num_samples, info.num_tokens, f"{info.share:.2%}")
            for info in manifest.sources
        ]
        heads = ("source", "documents", "segments", "samples", "tokens", "share")
        blocks: list[Block] = [Table(heads, rows)]
        counts = _document_counts(manifest.accounting)
        if counts:
            blocks += [_funnel(counts), Table(("documents", "number"), counts)]
        yield Section(f"Dataset {folder}", blocks)


def _document_counts(accounting: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Totals of documents by fate over all sources, as the build accounts for them; none if it did not."""
    sources = [row for row in accounting.get("sources", {}).values() if "records" in row]
    counts: dict[str, int] = dict.fromkeys(("in", "rejected"), 0) if sources else {}
    for row in sources:
        fates = {"in": row["records"], "rejected": row["rejected"], **row["removed"], "held out": row["held_out"]}
        for fate, count in fates.items():
            name = f"removed ({fate})" if fate in row["removed"] else fate
            counts[name] = counts.get(name, 0) + int(count)
    if sources:
        counts["trained"] = sum(int(row["trained"]) for row in sources)
    return list(counts.items())


def _funnel(counts: Sequence[tuple[str, int]]) -> Chart:
    """What was left after each stage that takes documents away."""
    left, stages = dict(counts).get("in", 0), [("read", dict(counts).get("in", 0))]
    for name, count in counts:
        if name not in ("in", "trained") and count:
            left -= count
            stages.append((f"without {name}", left))
    trace = {"type": "funnel", "y": [name for name, _ in stages], "x": [count for _, count in stages]}
    return Chart("Documents that are left after each stage of the build.", [trace], {"margin": {"l": 220, "t": 20}})


def _timeline(events: Sequence[Mapping[str, Any]]) -> Block:
    rows = []
    for event in events[-_MOST_EVENTS:]:
        when = datetime.datetime.fromtimestamp(float(event.get("time_s", 0)), datetime.UTC)
        rows.append((f"{when:%Y-%m-%d %H:%M:%S}", event.get("branch"), event.get("step"), event["kind"], _short(event)))
    return Table(("time, UTC", "branch", "step", "event", "details"), rows)


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
