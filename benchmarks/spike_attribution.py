"""Rows of the attribution benchmark: recall, precision and false cuts of the frozen rule on recorded windows, beside
the two-score rule and statistics of the text alone; damage and recovery.

``--quick`` judges the windows of ``data/spike_scores.npz``, recorded on one machine from two confirmation bases by
``spike_trials.py --out``; a full run trains its bases from the text of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.rows import Row, row
from benchmarks.spike_damage import LEAST_DAMAGE, Damage, damage_trials
from benchmarks.spike_judge import Tally, is_kind, model_free, ours, pooled, two_scores
from benchmarks.spike_trials import CONFIRMATION, SHARES, Lab, Recorded, record

__all__ = ["attribution_rows", "damage_rows", "judged_rows"]

PEER = "two-score rule"


def attribution_rows(lab: Lab, bases: int) -> Iterator[Row]:
    """All groups of windows on so many confirmation bases; two of them also with a checkpoint before the baseline."""
    for name in lab.text.missing:
        lab.say(f"this machine has no text for {name}: left out")
    seeds = CONFIRMATION[:bases]
    yield from judged_rows([one for seed in seeds for one in record(lab, seed)])
    group = "14 %"
    old = [one for seed in seeds[:2] for one in record(lab, seed, (group,), old=True)]
    yield from judged_rows([replace(one, group=f"{group}, checkpoint before the baseline") for one in old])


def judged_rows(windows: Sequence[Recorded]) -> Iterator[Row]:
    """The rows of every group of windows."""
    for group in dict.fromkeys(one.group for one in windows):
        mine = [one for one in windows if one.group == group]
        found, by_name = pooled(mine, ours)
        if group == "whole source shifts":
            yield row(f"{group}: cut", found.shift_flagged / found.shift, "of tokens", target=("<=", 0.1))
            continue
        yield from _group_rows(group, mine, found, by_name)


def _group_rows(group: str, windows: list[Recorded], found: Tally, by_name: dict[str, Tally]) -> Iterator[Row]:
    two = pooled(windows, two_scores)[0]
    low = group == "4-5 %"
    yield row(f"{group}: windows", len(windows), "windows")
    yield row(
        f"{group}: recall", found.recall, "of poison", peer=PEER, peer_value=two.recall,
        target=(">=", 0.85 if low else 0.94),
    )  # fmt: skip
    yield row(
        f"{group}: precision", found.precision, "of cuts", peer=PEER, peer_value=two.precision,
        target=None if low else (">=", 0.88),
    )  # fmt: skip
    if group in SHARES and not low:
        gain = 100 * (found.precision - two.precision)
        yield row(f"{group}: precision above the {PEER}", gain, "points", target=(">=", 20))
    yield row(
        f"{group}: false cuts", found.false_cuts, "of clean", peer=PEER, peer_value=two.false_cuts, target=("<=", 0.015)
    )
    yield row(
        f"{group}: new domains cut", found.new_cut, "of them", peer=PEER, peer_value=two.new_cut, target=("<=", 0.1)
    )
    if found.short:
        yield row(f"{group}: very short texts cut", found.short_flagged / found.short, "of them")
    if group in SHARES:
        for name, column in (("compression", lambda c: c.squeeze_S), ("entropy", lambda c: c.entropy_S)):
            alone = model_free(windows, column)
            yield row(f"{group}: recall of {name} alone at 1.5 % false cuts", alone.recall, "of poison")
    for name, told in by_name.items():
        if told.poison:
            yield row(f"{group}: ... recall, {name}", told.recall, "of poison")
    salad = [(one.columns, is_kind(one.columns, "salad")) for one in windows]
    total = sum(float(c.num_labels_S[rows].sum()) for c, rows in salad)
    if total:
        hit = sum(float(c.num_labels_S[rows & ours(c)].sum()) for c, rows in salad if rows.any())
        yield row(f"{group}: ... recall, word salad (in no other row)", hit / total, "of it")
        yield row(f"{group}: recall with word salad", (found.found + hit) / (found.poison + total), "of poison")


def damage_rows(lab: Lab, bases: int) -> Iterator[Row]:
    """Damage of the noise-like kinds on confirmation bases, and what each arm takes back of it."""
    trials = [one for seed in CONFIRMATION[:bases] for one in damage_trials(lab, seed)]
    kinds = {kind: [one for one in trials if one.kind == kind] for kind in dict.fromkeys(one.kind for one in trials)}
    judged: list[Damage] = []
    for kind, mine in kinds.items():
        damage = sum(one.damage for one in mine) / len(mine)
        yield row(f"damage, {kind}", damage, "nats")
        judged += mine if damage >= LEAST_DAMAGE else []
    if not judged:
        return
    total = sum(one.damage for one in judged)
    targets = {"ours": (">=", 0.8), "placebo": ("<=", 0.0)}
    for arm in ("ours", "placebo", "range skip"):
        back = sum(one.poisoned - one.arms[arm] for one in judged) / total
        yield row(f"damage recovered, {arm}", back, "of it", target=targets.get(arm))
