"""Draw docs/figures/dedup_recall.png: how surely a pair of documents is proposed, by its exact Jaccard similarity.

    python benchmarks/dedup_plot.py [--folder FOLDER] [--quick] [--to FILE]

Measured is the share of all pairs of the corpus of a similarity that share a band (25 bands of 5 of 128
permutations): mean, least and most of five seeds, for pages of one template share their shingles and so their fate
under a seed. The curve is ``1 - (1 - s^5)^25``. What is proposed is compared exactly afterwards, so the low end costs
time but removes nothing. The picture depends on the corpus and on matplotlib's version only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_corpus import DEFAULT_FOLDER, ensure_corpus
from benchmarks.dedup_truth import FLOOR, band_keys_of, load_truth, proposed_pairs, recall_curve, theory

__all__ = ["FIGURE", "draw_recall"]

FIGURE = Path(__file__).resolve().parents[1] / "docs/figures/dedup_recall.png"
THRESHOLD = 0.8
SEEDS = (1, 2, 3, 4, 5)


def draw_recall(curves: list[list[dict[str, float]]], title: str, path: Path = FIGURE) -> None:
    """Write the picture of one `recall_curve` a seed; bins without pairs are left out."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    similarity = np.linspace(0.0, 1.0, 501)
    filled = [row for row in curves[0] if row["pairs"]]
    recall = np.array([[row["recall"] for row in curve if row["pairs"]] for curve in curves])
    mean = recall.mean(0)
    spread = np.stack((mean - recall.min(0), recall.max(0) - mean)).clip(0)
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(7, 5.4), dpi=120, sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    upper.plot(similarity, theory(similarity), color="#888888", label=r"theory: $1-(1-s^5)^{25}$")
    middles = [(row["low"] + row["high"]) / 2 for row in filled]
    label = f"measured: mean and range of {len(curves)} seeds"
    upper.errorbar(middles, mean, spread, fmt="o", markersize=5, capsize=2, color="#1f6fb4", label=label)
    upper.axvline(THRESHOLD, color="#c0392b", linewidth=1, linestyle="--", label=f"threshold {THRESHOLD}")
    upper.set_ylabel("share of pairs proposed")
    upper.set_title(title, fontsize=10)
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1.03)
    upper.legend(loc="upper left", frameon=False)
    upper.grid(alpha=0.3)
    widths = [row["high"] - row["low"] for row in filled]
    lower.bar(middles, [row["pairs"] for row in filled], widths, color="#1f6fb4", alpha=0.6)
    lower.set_yscale("log")
    lower.set_ylabel(f"pairs (from {FLOOR} on)")
    lower.set_xlabel("exact Jaccard similarity of the shingle sets")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Compute the curve of a corpus, print and draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--to", type=Path, default=FIGURE)
    options = parser.parse_args()
    corpus = ensure_corpus(options.folder, options.quick)
    truth = load_truth(corpus)
    curves = [recall_curve(truth, proposed_pairs(truth, band_keys_of(corpus, seed=seed))) for seed in SEEDS]
    for rows in zip(*curves, strict=True):
        recall = " ".join(f"{row['recall']:.6f}" for row in rows)
        low, high, pairs = rows[0]["low"], rows[0]["high"], rows[0]["pairs"]
        print(f"{low:.2f}-{high:.2f}{pairs:>10,} pairs, theory {rows[0]['theory']:.6f}, by seed {recall}")
    title = f"{len(truth.first_P):,} pairs of {corpus.documents:,} documents, {corpus.bytes / 1e6:,.0f} MB"
    draw_recall(curves, title, options.to)


if __name__ == "__main__":
    main()
