"""Draw the README's key figure from a run: `python docs/figures/draw_key_figure.py RUN [TARGET.svg]`.

Training loss as it stands, what the rollback left, the window that was cut, and the source that it was cut from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from loader.run_view import open_run
from loader.runs import read_events
from train.report.curves import MEAN_STEPS, block_means
from train.report.run_report import cut_windows, own_records, run_curves

BLUE, RED = "#3b6fb6", "#b3261e"
LEAD_STEPS = 100


def draw(run: Path, target: Path) -> None:
    """Write the figure of `run` to `target`; the same run gives the same bytes."""
    view = open_run(run)
    matplotlib.rcParams.update({"svg.hashsalt": "tokenreel", "font.size": 10, "svg.fonttype": "path"})
    figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    windows = cut_windows(read_events(view.paths))
    for start, stop in windows:
        axes.axvspan(start, stop, color=RED, alpha=0.12, lw=0, label=f"steps {start} to {stop}: under suspicion")
    first = max(0, min((start for start, _ in windows), default=0) - LEAD_STEPS)
    for curve in run_curves(view, own_records(view)):
        records_N = curve.records_N[curve.records_N["step"] >= first]
        x, y = block_means(records_N["step"], records_N["loss"], records_N["label_count"].astype(np.float64))
        colour = RED if curve.is_left else BLUE
        axes.plot(records_N["step"], records_N["loss"], color=colour, alpha=0.3, lw=0.8)
        if curve.is_left:
            axes.plot(x, y, color=RED, ls=(0, (4, 2)), lw=2, label="before: left by the rollback")
        else:
            axes.plot(x, y, color=BLUE, lw=2.2, label=f"after: the documents cut (means of {MEAN_STEPS} steps)")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, nats a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    default = Path(__file__).resolve().parent / "loss.svg"
    draw(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default)
