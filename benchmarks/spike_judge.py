"""What attribution rules find in recorded windows: ours, the two-score rule, and statistics of the text alone.

Tallies count labels. Word salad is left out of them and told apart: nothing in real words in random order is degenerate
to a model this small, and no rule found it. Model-free statistics get the threshold at which they cut 1.5 % of the
clean tokens of these very windows: an oracle in their favour, since no run knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from benchmarks.spike_trials import Recorded
from benchmarks.spike_world import MADE_KINDS, NEW_FROM, POISON_FROM, SHIFT_FROM
from train.spikes.attribute import SegmentColumns, attribute
from train.spikes.config import AttributionConfig

__all__ = ["Tally", "is_kind", "model_free", "ours", "pooled", "tally", "two_scores"]

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
SHORT_TOKENS = 16


@dataclass(frozen=True)
class Tally:
    """Labels of a window: poison found, poison, flagged, clean; flagged and all of new domains, of very short ordinary
    segments, and of a source that shifts to good new content."""

    found: float = 0.0
    poison: float = 0.0
    flagged: float = 0.0
    clean: float = 0.0
    new_flagged: float = 0.0
    new: float = 0.0
    short_flagged: float = 0.0
    short: float = 0.0
    shift_flagged: float = 0.0
    shift: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def recall(self) -> float:
        """Of poison labels."""
        return self.found / self.poison if self.poison else 1.0

    @property
    def precision(self) -> float:
        """Of flagged labels."""
        return self.found / self.flagged if self.flagged else 1.0

    @property
    def false_cuts(self) -> float:
        """Of clean labels."""
        return (self.flagged - self.found) / self.clean

    @property
    def new_cut(self) -> float:
        """Of the labels of good new domains."""
        return self.new_flagged / self.new if self.new else 0.0


def is_kind(c: SegmentColumns, kind: str) -> Mask:
    """Rows of the window that are poison of this kind."""
    made = (c.document_S >= POISON_FROM) & ~c.baseline_S
    number = (np.where(made, c.document_S, POISON_FROM) - np.uint64(POISON_FROM)) // np.uint64(10**6)
    return made & (number == MADE_KINDS.index(kind))


def tally(c: SegmentColumns, flagged: Mask) -> Tally:
    """Counts of one window."""
    n, d = c.num_labels_S, c.document_S
    apart = is_kind(c, "salad")
    seen, flagged = ~c.baseline_S & ~apart, flagged & ~apart
    poison = seen & (d >= POISON_FROM)
    shift = seen & (d >= SHIFT_FROM) & ~poison
    new = seen & (d >= NEW_FROM) & ~poison & ~shift
    short = seen & (d < NEW_FROM) & (n < SHORT_TOKENS)
    of = lambda rows: float(n[rows].sum())  # noqa: E731
    return Tally(
        of(flagged & poison), of(poison), of(flagged), of(seen & ~poison), of(flagged & new), of(new),
        of(flagged & short), of(short), of(flagged & shift), of(shift),
    )  # fmt: skip


def ours(c: SegmentColumns, config: AttributionConfig | None = None) -> Mask:
    """The rule of the trainer."""
    return attribute(c, config or AttributionConfig()).flagged_S


def _z(c: SegmentColumns, x: Floats) -> Floats:
    """|z| by source and two length bins."""
    z = np.zeros(len(c))
    for source in np.unique(c.source_S):
        for long_bin in (False, True):
            in_bin = (c.num_labels_S >= 64) == long_bin
            mine = (c.source_S == source) & in_bin
            own = mine & c.baseline_S
            if own.sum() < 12:
                own = c.baseline_S & in_bin
            middle = np.median(x[own])
            z[mine] = np.abs(x[mine] - middle) / (1.4826 * np.median(np.abs(x[own] - middle)) + 1e-9)
    return z


def two_scores(c: SegmentColumns) -> Mask:
    """max |z| > 4 of loss and of gradient norm / n, per segment."""
    return (np.maximum(_z(c, c.loss_S), _z(c, c.head_grad_S / c.num_labels_S)) > 4) & ~c.baseline_S


def model_free(recorded: Sequence[Recorded], column: Callable[[SegmentColumns], Floats]) -> Tally:
    """Pooled tally of one statistic of the text, by document, at 1.5 % false cuts."""
    scores, weights, poison, tables = [], [], [], []
    for one in recorded:
        c = one.columns
        rows = np.flatnonzero(~c.baseline_S & ~is_kind(c, "salad"))
        _, inverse = np.unique(c.document_S[rows], return_inverse=True)
        n = c.num_labels_S[rows].astype(np.float64)
        z = (np.bincount(inverse, n * _z(c, column(c))[rows]) / np.bincount(inverse, n))[inverse]
        scores.append(z)
        weights.append(n)
        poison.append(c.document_S[rows] >= POISON_FROM)
        tables.append(c)
    z, n, bad = np.concatenate(scores), np.concatenate(weights), np.concatenate(poison)
    order = np.argsort(-z[~bad])
    cuts = np.cumsum(n[~bad][order]) / n[~bad].sum()
    threshold = z[~bad][order][int(np.searchsorted(cuts, 0.015))]
    total = Tally()
    for c, own in zip(tables, scores, strict=True):
        flagged = np.zeros(len(c), np.bool_)
        flagged[~c.baseline_S & ~is_kind(c, "salad")] = own > threshold
        total += tally(c, flagged)
    return total


def pooled(recorded: Iterable[Recorded], rule: Callable[[SegmentColumns], Mask]) -> tuple[Tally, dict[str, Tally]]:
    """Tally of all windows, and by their names."""
    total, by_name = Tally(), {}
    for one in recorded:
        told = tally(one.columns, rule(one.columns))
        total += told
        by_name[one.name] = by_name.get(one.name, Tally()) + told
    return total, by_name
