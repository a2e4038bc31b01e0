"""Evaluations of a run as a chart and a table: pure functions of its events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loader.page import Block, Chart, Prose, Table
from loader.page_assets import PALETTE
from loader.runs import Branch

__all__ = ["evaluations_in_force", "held_out_blocks", "score_blocks"]

_MOST_SOURCES = 64
_MOST_ROWS = 300


def held_out_blocks(events: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Held-out loss over steps, in all and of each source, and the last ones as a table; nothing if none was asked.

    Args:
        events: of the run, oldest first. Of a step that was evaluated again after a rollback the newest one counts.
    """
    by_step = _newest(events, "source_loss")
    if not by_step:
        return []
    names = list(dict.fromkeys(name for one in by_step.values() for name in one["source_loss"]))[:_MOST_SOURCES]
    steps = list(by_step)[-_MOST_ROWS:]
    traces = [_held_out_trace("all", steps, [by_step[step].get("loss") for step in steps], PALETTE[6], "dash")]
    for index, name in enumerate(names):
        losses = [by_step[step]["source_loss"].get(name) for step in steps]
        traces.append(_held_out_trace(name, steps, losses, PALETTE[index % (len(PALETTE) - 1)], "solid"))
    layout = {"xaxis": {"title": {"text": "steps done"}}, "yaxis": {"title": {"text": "loss, nats a token"}}}
    rows = [
        (step, one.get("loss"), ", ".join(f"{name} {_said(one['source_loss'].get(name))}" for name in names))
        for step, one in ((step, by_step[step]) for step in steps)
    ]
    return [
        Chart("Held-out loss in nats a token: of all sources together and of each.", traces, layout),
        Prose("Perplexity is e to the power of the loss."),
        Table(("steps done", "held-out loss", "of each source"), rows, wide=("of each source",)),
    ]


def evaluations_in_force(events: Sequence[Mapping[str, Any]], branches: Sequence[Branch]) -> list[Mapping[str, Any]]:
    """The evaluations of weights that the run as it stands came from: not those behind a rollback.

    Args:
        events: of the run, oldest first. branches: all of them, the current one last.
    """
    until, branch = {branches[-1].number: 1 << 62}, branches[-1]
    while branch.parent is not None:
        until[branch.parent] = min(branch.from_step, until[branch.number])
        branch = branches[branch.parent]
    return [e for e in events if e.get("kind") == "evaluation" and e["step"] <= until.get(e["branch"], -1)]


def _newest(events: Sequence[Mapping[str, Any]], key: str) -> dict[int, Mapping[str, Any]]:
    """Evaluations that have ``key``, by ascending step; one behind a rollback replaces those from its step on."""
    found: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event.get("kind") == "evaluation" and event.get(key):
            while found and next(reversed(found)) >= event["step"]:
                found.popitem()
            found[int(event["step"])] = event
    return found


def _finite(value: Any) -> float | None:
    """A number that can be drawn; None for a missing one, and for NaN and infinities, which events hold as words."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def _said(value: Any, pattern: str = ".4f", missing: str = "-") -> str:
    number = _finite(value)
    return missing if value is None else str(value) if number is None else format(number, pattern)


def _held_out_trace(name: str, steps: Sequence[int], losses: Sequence[Any], colour: str, dash: str) -> dict[str, Any]:
    shown = [_rounded(loss) for loss in losses]
    line = {"color": colour, "dash": dash}
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(steps), "y": shown, "line": line}


def _rounded(value: Any) -> float | None:
    number = _finite(value)
    return None if number is None else round(number, 5)


def score_blocks(events: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Task scores over steps, one line a task, and the last evaluation as a table; nothing if no task was asked.

    Args:
        events: of the run, oldest first. Of a step that was evaluated again after a rollback the newest one counts.
    """
    by_step = {step: event["tasks"] for step, event in list(_newest(events, "tasks").items())[-_MOST_ROWS:]}
    if not by_step:
        return []
    names = list(dict.fromkeys(name for tasks in by_step.values() for name in tasks))[:_MOST_SOURCES]
    traces = []
    for name in names:
        points = [(step, tasks[name]) for step, tasks in by_step.items() if name in tasks]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{name}, {points[-1][1]['metric']}",
                "x": [step for step, _ in points],
                "y": [_rounded(score["value"]) for _, score in points],
                "error_y": {
                    "type": "data",
                    "array": [_rounded(score["errors"].get(score["metric"], 0.0)) for _, score in points],
                    "thickness": 1,
                },
            }
        )
    layout = {"xaxis": {"title": {"text": "steps done"}}, "yaxis": {"title": {"text": "score"}, "rangemode": "tozero"}}
    last_step = max(by_step)
    heads = ("task", "metric", "score", "standard error", "chance", "items", "shots", "cut", "all scores")
    rows = [_row(name, score) for name, score in list(by_step[last_step].items())[:_MOST_ROWS]]
    caption = "Task scores over the run, with one standard error."
    return [Chart(caption, traces, layout), Table(heads, rows)]


def _row(name: str, score: Mapping[str, Any]) -> tuple[object, ...]:
    metric = score["metric"]
    every = ", ".join(f"{key} {_said(value, '.4g')}" for key, value in score["scores"].items())
    spread = _said(score["errors"].get(metric), missing="")
    shown, chance = _said(score["value"]), _said(score["chance"], ".3f")
    return (name, metric, shown, spread, chance, score["items"], score["shots"], score["cut"], every)
