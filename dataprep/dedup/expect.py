"""What a dedup configuration will do to a pair of documents, by their Jaccard similarity: to be read before a run, so
that nobody swaps bands and rows unseen.

All figures are probabilities over the random permutations for one pair whose better document is kept and whose buckets
are not over ``max_bucket``:

* ``minhash`` is exact: rows agree independently with probability J; a pair is seen if all rows of some band agree
  (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", 3.4) and the agreement of all rows is not so low that it
  is passed over unread (``estimate_floor``).
* ``simhash`` is a model, not a measurement (see ``simhash.seen_probability``), taken as independent of ``minhash``.
* ``exact`` sees equal bytes, which J does not say; it has no column.

Removed: ``leader`` removes what it sees from the threshold on and nothing below. ``estimate`` removes what it sees and
whose signatures (without ``minhash``: fingerprints) agree in at least the threshold's share. ``union_find`` removes
what shares a band of ``minhash``, and through chains more than that; what ``simhash`` sees goes as by ``estimate``.
"""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from .config import DedupConfig, MinHashConfig
from .minhash import estimate_floor
from .simhash import seen_probability

__all__ = ["RemovalRow", "band_probability", "removal_rows", "removal_text"]

_BITS = 64
_STEP_PERCENT = 5
_LOWEST_PERCENT = 50


class RemovalRow(TypedDict):
    """One similarity: probability that a pair is seen, per method and by any of them, and that it is removed. JSON-able
    as it is."""

    similarity: float
    seen: dict[str, float]
    seen_together: float
    removed: float


def _binomial(num_rows: int, similarity: float) -> NDArray[np.float64]:
    """Probability of 0 .. ``num_rows`` agreeing rows."""
    if similarity in (0.0, 1.0):
        exact = np.zeros(num_rows + 1)
        exact[round(similarity * num_rows)] = 1.0
        return exact
    logs = [
        math.lgamma(num_rows + 1) - math.lgamma(k + 1) - math.lgamma(num_rows - k + 1)
        + k * math.log(similarity) + (num_rows - k) * math.log1p(-similarity)
        for k in range(num_rows + 1)
    ]  # fmt: skip
    probabilities: NDArray[np.float64] = np.exp(np.array(logs))
    return probabilities


def band_probability(similarity: float, config: MinHashConfig, least_rows: int = 0) -> float:
    """Probability that all rows of some band agree and at least ``least_rows`` of all rows do."""
    left = config.num_permutations - config.bands * config.rows
    no_band = _binomial(left, similarity)  # by agreeing rows so far: no band of them whole
    band = _binomial(config.rows, similarity)
    band[-1] = 0.0
    for _ in range(config.bands):
        no_band = np.convolve(no_band, band)
    agreeing = _binomial(config.num_permutations, similarity)
    return float(min(1.0, max(0.0, agreeing[least_rows:].sum() - no_band[least_rows:].sum())))


def _row(similarity: float, config: DedupConfig) -> RemovalRow:
    minhash = config.minhash
    unseen = 1.0
    seen: dict[str, float] = {}
    if "minhash" in config.methods:
        floor = 0 if config.decision == "union_find" else estimate_floor(config.threshold, minhash.num_permutations)
        seen["minhash"] = band_probability(similarity, minhash, floor)
        unseen *= 1.0 - seen["minhash"]
    by_simhash = 0.0
    if "simhash" in config.methods:
        by_simhash = seen["simhash"] = seen_probability(similarity, config.simhash.max_distance)
        unseen *= 1.0 - by_simhash
    together = 1.0 - unseen
    if config.decision == "leader":
        removed = together if similarity >= config.threshold else 0.0
    elif "minhash" not in config.methods:
        most = math.floor(_BITS * (1.0 - config.threshold) + 1e-9)
        removed = seen_probability(similarity, min(config.simhash.max_distance, most))
    else:
        least = math.ceil(config.threshold * minhash.num_permutations - 1e-9)
        agrees = float(_binomial(minhash.num_permutations, similarity)[least:].sum())
        in_band = band_probability(similarity, minhash, least)
        removed = (seen["minhash"] if config.decision == "union_find" else in_band) + (agrees - in_band) * by_simhash
    return {"similarity": similarity, "seen": seen, "seen_together": together, "removed": min(1.0, removed)}


def removal_rows(config: DedupConfig) -> list[RemovalRow]:
    """Rows for J = 0.5, 0.55 ... 1.0, from lower down for a lower threshold; empty where no method goes by
    similarity."""
    if not {"minhash", "simhash"} & set(config.methods):
        return []
    lowest = min(_LOWEST_PERCENT, max(1, round(100 * config.threshold) // _STEP_PERCENT - 1) * _STEP_PERCENT)
    return [_row(percent / 100, config) for percent in range(lowest, 101, _STEP_PERCENT)]


def removal_text(config: DedupConfig) -> str:
    """The rows as a table with the notes that they need; a plain sentence where no method goes by similarity."""
    rows = removal_rows(config)
    if not rows:
        return "No dedup method goes by similarity."
    names = list(rows[0]["seen"])
    heads = [*(f"{name} sees" for name in names), *(["any sees"] if len(names) > 1 else []), "removed"]
    lines = ["  ".join(["   J", *(f"{head:>13}" for head in heads)])]
    for row in rows:
        values = [*row["seen"].values(), *([row["seen_together"]] if len(names) > 1 else []), row["removed"]]
        lines.append("  ".join([f"{row['similarity']:4.2f}", *(f"{value:13.6f}" for value in values)]))
    return "\n".join([*lines, *_notes(config)])


def _notes(config: DedupConfig) -> list[str]:
    minhash = config.minhash
    notes = []
    if "minhash" in config.methods:
        half = (1.0 - 0.5 ** (1.0 / minhash.bands)) ** (1.0 / minhash.rows)
        notes.append(
            f"minhash: {minhash.bands} bands x {minhash.rows} rows; half of the pairs share a band at J = {half:.2f}"
        )
    if "simhash" in config.methods:
        notes.append("simhash: modelled for long documents, not measured")
    if config.decision == "leader":
        notes.append(f"leader: every removal is verified at J >= {config.threshold:g}; nothing below is removed")
    elif config.decision == "estimate" or "minhash" not in config.methods:
        what = "signatures" if "minhash" in config.methods else "fingerprints"
        notes.append(f"{config.decision}: by agreement of {what} >= {config.threshold:g}; nothing is verified")
    else:
        notes.append(
            "union_find: pairs in one band, nothing is verified; clusters chain, so more is removed than the table says"
        )
    return notes
