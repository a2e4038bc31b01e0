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

__all__ = ["MEAN_STEPS", "BranchCurve", "block_means", "loss_chart", "norm_chart", "share_chart", "source_loss_chart"]

MEAN_STEPS = 8
_MOST_POINTS = 3000
_PALETTE = ("#3b6fb6", "#d98032", "#4b9a5b", "#8a5aa8", "#c05a7a", "#6d8a96", "#a08a30", "#5a5ad0")
_LEFT_COLOUR = "#b3261e"


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


def block_means(
    step_N: NDArray[np.int64], value_N: NDArray[np.float64], weight_N: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over blocks of ``MEAN_STEPS`` steps that start at multiples of it: (middle of the block, weighted mean).

    Steps without weight or without a finite value say nothing; a block without any is left out. Longer runs get longer
    blocks, so that at most some thousand points are drawn.
    """
    width = MEAN_STEPS * max(1, -(-len(step_N) // (MEAN_STEPS * _MOST_POINTS)))
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


def _trace(x: NDArray[Any], y: NDArray[Any], name: str, **style: Any) -> dict[str, Any]:
    """A line; numbers are rounded to what a screen can show."""
    shown_x = [round(float(value), 2) for value in x]
    shown_y = [round(float(value), 5) for value in y]
    return {"type": "scatter", "mode": "lines", "name": name, "x": shown_x, "y": shown_y, **style}


def _weights(records_N: NDArray[Any]) -> NDArray[np.float64]:
    return records_N["label_count"].astype(np.float64)


def _layout(y_title: str, windows: Sequence[tuple[int, int]], **y_axis: Any) -> dict[str, Any]:
    """Axes, and a shade over each window ``[start, stop)`` of steps that was cut."""
    shades = [
        {
            "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": stop, "y0": 0, "y1": 1,
            "fillcolor": _LEFT_COLOUR, "opacity": 0.12, "line": {"width": 0}, "layer": "below",
        }
        for start, stop in windows
    ]  # fmt: skip
    return {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": y_title}, **y_axis}, "shapes": shades}


def loss_chart(curves: Sequence[BranchCurve], windows: Sequence[tuple[int, int]]) -> Chart:
    """Training loss of the run as it stands, of what rollbacks left, and the windows that were cut."""
    traces = []
    for curve in curves:
        records_N = curve.records_N
        x, y = block_means(records_N["step"], records_N["loss"], _weights(records_N))
        if curve.is_left:
            style = {"line": {"color": _LEFT_COLOUR, "dash": "dot", "width": 2}}
            traces.append(_trace(x, y, f"left by a rollback (branch {curve.number})", **style))
        else:
            finite_N = np.isfinite(records_N["loss"]) & (records_N["label_count"] > 0)
            thin = records_N[finite_N][:: max(1, len(records_N) // _MOST_POINTS)]
            faint = {"line": {"color": _PALETTE[0], "width": 1}, "opacity": 0.3}
            traces.append(_trace(thin["step"], thin["loss"], "each step", **faint))
            traces.append(_trace(x, y, f"mean of {MEAN_STEPS} steps", line={"color": _PALETTE[0], "width": 2.5}))
    caption = "Training loss in nats a token. Shaded: the steps whose data were put under suspicion and cut."
    return Chart(caption, traces, _layout("loss, nats a token", windows))


def norm_chart(curves: Sequence[BranchCurve], windows: Sequence[tuple[int, int]]) -> Chart:
    """Gradient norm before clipping, on a logarithmic axis."""
    traces = []
    for curve in curves:
        records_N = curve.records_N
        positive_N = records_N[records_N["grad_norm"] > 0]
        x, log_y = block_means(positive_N["step"], np.log(positive_N["grad_norm"]), _weights(positive_N))
        name = f"left by a rollback (branch {curve.number})" if curve.is_left else f"mean of {MEAN_STEPS} steps"
        dash = "dot" if curve.is_left else "solid"
        colour = _LEFT_COLOUR if curve.is_left else _PALETTE[0]
        traces.append(_trace(x, np.exp(log_y), name, line={"color": colour, "dash": dash}))
    return Chart("Gradient norm before clipping.", traces, _layout("gradient norm", windows, type="log"))


def source_loss_chart(names: Sequence[str], records_N: NDArray[Any], windows: Sequence[tuple[int, int]]) -> Chart:
    """Training loss of each source, by the sums in the ledger."""
    traces = []
    for index, name in enumerate(names[: records_N.dtype["source_loss_S"].shape[0]]):
        labels_N = records_N["source_labels_S"][:, index].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            loss_N = records_N["source_loss_S"][:, index] / labels_N
        x, y = block_means(records_N["step"], loss_N, labels_N)
        traces.append(_trace(x, y, name, line={"color": _PALETTE[index % len(_PALETTE)]}))
    caption = f"Training loss of each source in nats a token, means of {MEAN_STEPS} steps."
    return Chart(caption, traces, _layout("loss, nats a token", windows))


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
    for index, name in enumerate(names[: records_N.dtype["source_labels_S"].shape[0]]):
        with np.errstate(invalid="ignore", divide="ignore"):
            share_N = records_N["source_labels_S"][:, index] / total_N
        x, y = block_means(records_N["step"], share_N, total_N)
        colour = _PALETTE[index % len(_PALETTE)]
        traces.append(_trace(x, y, name, line={"color": colour}))
        stages = [(step, weight) for step, weight in planned.get(name, ()) if step <= last_step]
        if stages:
            steps = np.array([step for step, _ in stages] + [last_step], np.float64)
            weights = np.array([weight for _, weight in stages] + [stages[-1][1]], np.float64)
            style = {"color": colour, "dash": "dot", "width": 1.5, "shape": "hv"}
            traces.append(_trace(steps, weights, f"{name}, planned", line=style, showlegend=False))
    layout = _layout("share of learned tokens", (), tickformat=".0%", rangemode="tozero")
    return Chart("Share of learned tokens by source: lines realised, dotted planned.", traces, layout)
