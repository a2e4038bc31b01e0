"""From a run's ledger to chart blocks: pure functions of arrays, nothing read here.

Legend: N steps, S sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.page import Chart
from loader.page_assets import PALETTE

__all__ = [
    "MEAN_STEPS",
    "MOST_LINES",
    "NORMS",
    "BranchCurve",
    "Marks",
    "block_means",
    "loss_chart",
    "norm_chart",
    "share_chart",
    "source_loss_chart",
    "trace_of",
]

MEAN_STEPS = 8
MOST_LINES = 64
"""Left branches, and sources, that a chart shows at most."""
_MOST_POINTS = 3000
_MOST_CHART_POINTS = 48_000
_MOST_SHADES = 200
_CUT_COLOUR, _SPIKE_COLOUR, _BACK_COLOUR, _LEFT_COLOUR = PALETTE[5], PALETTE[1], PALETTE[3], PALETTE[6]
_DASHES = ("solid", "dash", "dashdot", "longdash")


@dataclass(frozen=True)
class BranchCurve:
    """The records a branch wrote itself, or the lineage of the current one.

    Attributes:
        number: of the branch.
        records_N: as ``loader.ledger.ledger_dtype``.
        is_left: a rollback left it; its steps shaped nothing that is still there.
    """

    number: int
    records_N: NDArray[Any]
    is_left: bool


@dataclass(frozen=True)
class Marks:
    """What is drawn over the steps of a chart.

    Attributes:
        cut: windows ``[start, stop)`` of steps whose data were cut. spikes: windows that were investigated, not cut.
        alarms: steps that raised an alarm. backs: steps that a rollback went back to.
    """

    cut: Sequence[tuple[int, int]] = ()
    spikes: Sequence[tuple[int, int]] = ()
    alarms: Sequence[int] = ()
    backs: Sequence[int] = ()


def block_means(
    step_N: NDArray[np.int64], value_N: NDArray[np.float64], weight_N: NDArray[np.float64], most: int = _MOST_POINTS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over blocks of ``MEAN_STEPS`` steps that start at multiples of it: (middle of the block, weighted mean).

    Steps without weight or without a finite value say nothing; a block without any is left out. Longer runs get longer
    blocks, so that at most about ``most`` points are drawn.
    """
    width = MEAN_STEPS * max(1, -(-len(step_N) // (MEAN_STEPS * most)))
    usable_N = np.isfinite(value_N) & (weight_N > 0)
    step_N, value_N, weight_N = step_N[usable_N], value_N[usable_N], weight_N[usable_N]
    if not len(step_N):
        return np.empty(0), np.empty(0)
    block_N = step_N // width
    first = np.flatnonzero(np.diff(block_N, prepend=block_N[0] - 1))
    weights = np.add.reduceat(weight_N, first)
    means = np.add.reduceat(value_N * weight_N, first) / weights
    middles = np.add.reduceat(step_N * weight_N, first) / weights
    return middles, means


def trace_of(x: NDArray[Any], y: NDArray[Any], name: str, **style: Any) -> dict[str, Any]:
    """A line; numbers are rounded to what a screen can show."""
    shown_x = [round(float(value), 2) for value in x]
    shown_y = [round(float(value), 5) for value in y]
    return {"type": "scatter", "mode": "lines", "name": name, "x": shown_x, "y": shown_y, **style}


def _weights(records_N: NDArray[Any]) -> NDArray[np.float64]:
    return records_N["label_count"].astype(np.float64)


def _points(lines: int) -> int:
    """Points of each line of a chart with so many."""
    return max(100, min(_MOST_POINTS, _MOST_CHART_POINTS // max(1, lines)))


def _layout(y_title: str, marks: Marks, **y_axis: Any) -> dict[str, Any]:
    """Axes, a shade over each window, a line at each step that an alarm rose at or a rollback went back to. What a
    shade means stands in the legend and is written over it."""
    shapes: list[dict[str, Any]] = []
    for windows, colour, name in (
        (marks.cut, _CUT_COLOUR, "cut"),
        (marks.spikes, _SPIKE_COLOUR, "suspected, not cut"),
    ):
        for index, (start, stop) in enumerate(windows[-_MOST_SHADES:]):
            shapes.append({
                "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": stop, "y0": 0, "y1": 1,
                "fillcolor": colour, "opacity": 0.18, "line": {"width": 0}, "layer": "below",
                "name": name, "legendgroup": name, "showlegend": index == 0,
                "label": {"text": name, "textposition": "top center"},
            })  # fmt: skip
    for steps, colour, name, dash in (
        (marks.alarms, _SPIKE_COLOUR, "alarm", "dot"),
        (marks.backs, _BACK_COLOUR, "back to here", "dash"),
    ):
        for index, step in enumerate(steps[-_MOST_SHADES:]):
            shapes.append({
                "type": "line", "xref": "x", "yref": "paper", "x0": step, "x1": step, "y0": 0, "y1": 1,
                "line": {"width": 1.5, "color": colour, "dash": dash},
                "name": name, "legendgroup": name, "showlegend": index == 0,
            })  # fmt: skip
    return {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": y_title}, **y_axis}, "shapes": shapes}


def _shown(curves: Sequence[BranchCurve]) -> list[BranchCurve]:
    """The run as it stands and the newest of the branches that were left."""
    left = [curve for curve in curves if curve.is_left]
    return [*(curve for curve in curves if not curve.is_left), *left[-MOST_LINES:]]


def _faint(curve: BranchCurve) -> dict[str, Any]:
    """How a branch that was left is drawn."""
    line = {"color": _LEFT_COLOUR, "dash": "dot", "width": 2.5}
    return {"line": line, "opacity": 0.9, "name": f"left by a rollback (branch {curve.number})"}


def loss_chart(curves: Sequence[BranchCurve], marks: Marks) -> Chart:
    """Training loss of the run as it stands, of what rollbacks left, and the windows that were cut."""
    traces, most = [], _points(len(curves) + 1)
    for curve in _shown(curves):
        records_N = curve.records_N
        x, y = block_means(records_N["step"], records_N["loss"], _weights(records_N), most)
        if curve.is_left:
            traces.append(trace_of(x, y, **_faint(curve)))
        else:
            finite_N = np.isfinite(records_N["loss"]) & (records_N["label_count"] > 0)
            thin = records_N[finite_N][:: max(1, len(records_N) // most)]
            faint = {"line": {"color": PALETTE[0], "width": 1}, "opacity": 0.3}
            traces.append(trace_of(thin["step"], thin["loss"], "each step", **faint))
            traces.append(trace_of(x, y, f"mean of {MEAN_STEPS} steps", line={"color": PALETTE[0], "width": 2.5}))
    caption = (
        "Training loss in nats a token. Shaded: steps that were put under suspicion, and those of them whose data were "
        "cut. Faint and dotted: what was trained on them and left by a rollback, back to the dashed line."
    )
    return Chart(caption, traces, _layout("loss, nats a token", marks))


NORMS = {
    "grad_norm": ("Gradient norm before clipping.", "gradient norm"),
    "update_norm": ("Norm of the change of the parameters by a step.", "update norm"),
}
"""Column of the ledger -> caption and axis."""


def norm_chart(curves: Sequence[BranchCurve], marks: Marks, column: str = "grad_norm") -> Chart:
    """A norm (a key of ``NORMS``) on a logarithmic axis; without traces where it was never measured."""
    traces, most = [], _points(len(curves))
    for curve in _shown(curves):
        positive_N = curve.records_N[curve.records_N[column] > 0]
        x, log_y = block_means(positive_N["step"], np.log(positive_N[column]), _weights(positive_N), most)
        solid = {"line": {"color": PALETTE[0]}, "name": f"mean of {MEAN_STEPS} steps"}
        if len(x):
            traces.append(trace_of(x, np.exp(log_y), **(_faint(curve) if curve.is_left else solid)))
    caption, title = NORMS[column]
    return Chart(caption, traces, _layout(title, marks, type="log"))


def _line_of(index: int) -> dict[str, Any]:
    """Colour and dashes of the line of a source: past the palette the dashes differ."""
    return {"color": PALETTE[index % len(PALETTE)], "dash": _DASHES[index // len(PALETTE) % len(_DASHES)]}


def _most_read(records_N: NDArray[Any], names: Sequence[str]) -> list[int]:
    """The sources to show, in the ledger's order: those with the most learned tokens."""
    labels_S = records_N["source_labels_S"].sum(axis=0)[: len(names)]
    return sorted(np.argsort(-labels_S, kind="stable")[:MOST_LINES].tolist())


def source_loss_chart(names: Sequence[str], records_N: NDArray[Any], marks: Marks) -> Chart:
    """Training loss of each source, by the sums in the ledger."""
    traces, shown = [], _most_read(records_N, names)
    for index in shown:
        labels_N = records_N["source_labels_S"][:, index].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            loss_N = records_N["source_loss_S"][:, index] / labels_N
        x, y = block_means(records_N["step"], loss_N, labels_N, _points(len(shown)))
        traces.append(trace_of(x, y, names[index], line=_line_of(index)))
    caption = f"Training loss of each source in nats a token, means of {MEAN_STEPS} steps."
    return Chart(caption, traces, _layout("loss, nats a token", marks))


def share_chart(
    names: Sequence[str], records_N: NDArray[Any], planned: Mapping[str, Sequence[tuple[int, float]]]
) -> Chart:
    """Share of the learned tokens by source over the run, beside the planned weights (dotted).

    Args:
        names: sources in the ledger's order.
        records_N: the run as it stands.
        planned: source -> (first step of a stage, normalised weight from there on).
    """
    traces = []
    total_N = records_N["source_labels_S"].sum(axis=1).astype(np.float64)
    last_step = int(records_N["step"][-1]) if len(records_N) else 0
    shown = _most_read(records_N, names)
    for index in shown:
        name = names[index]
        with np.errstate(invalid="ignore", divide="ignore"):
            share_N = records_N["source_labels_S"][:, index] / total_N
        x, y = block_means(records_N["step"], share_N, total_N, _points(2 * len(shown)))
        traces.append(trace_of(x, y, name, line=_line_of(index)))
        stages = [(step, weight) for step, weight in planned.get(name, ()) if step <= last_step]
        if stages:
            steps = np.array([step for step, _ in stages] + [last_step], np.float64)
            weights = np.array([weight for _, weight in stages] + [stages[-1][1]], np.float64)
            style = {"color": PALETTE[index % len(PALETTE)], "dash": "dot", "width": 1.5, "shape": "hv"}
            traces.append(trace_of(steps, weights, f"{name}, planned", line=style, showlegend=False))
    layout = _layout("share of learned tokens", Marks(), tickformat=".0%", rangemode="tozero")
    return Chart("Share of learned tokens by source: lines realised, dotted planned.", traces, layout)
