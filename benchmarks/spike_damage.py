"""What poison does to the held-out loss of a base, and how much of it a rollback with a cut takes back.

Five arms train the same 12 steps from the same state: as they are (poisoned), with exactly the poison cut, with what
the rule flags cut, with as many labels of random innocents cut (placebo), and with the dirty steps replaced by fresh
clean ones (range skip). Damage = poisoned - exact; recovered = (poisoned - arm) / damage. A repetition does no lasting
damage at this scale, so that only kinds with 0.05 nats and more say anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from benchmarks.spike_poison import KINDS
from benchmarks.spike_trials import Lab, trained
from benchmarks.spike_world import NEW_FROM, PHASES, POISON_FROM, Bench, Plan, Run, cut, make_batch
from loader.stream.batch import Batch
from train.spikes.attribute import SegmentColumns, attribute, concatenate
from train.spikes.config import AttributionConfig
from train.spikes.score import score_batch

__all__ = ["ARMS", "LEAST_DAMAGE", "Damage", "damage_trials"]

ARMS = ("exact", "ours", "placebo", "range skip")
LEAST_DAMAGE = 0.05
NOISE = ("latin", "base64", "shuffled", "mixed")
SHARE = 0.5
"""Of the dirty steps' tokens: about 27 % of the window, so that the damage stands out of the noise of one arm."""

Ids = NDArray[np.uint64]


@dataclass(frozen=True)
class Damage:
    """One window of one base: held-out losses, nats; the poison's share found and the share of flagged that is it."""

    seed: int
    kind: str
    poisoned: float
    arms: dict[str, float]
    recall: float
    precision: float

    @property
    def damage(self) -> float:
        """Poisoned - exact, nats."""
        return self.poisoned - self.arms["exact"]


def held_out_loss(bench: Bench, run: Run) -> float:
    """Mean over the sources of their held-out token loss, nats."""
    losses = []
    for source in dict.fromkeys(source for source, _ in bench.held_out):
        batch = make_batch(0, [sample for sample in bench.held_out if sample[0] == source], 256)
        frozen = run.frozen()
        with torch.no_grad():
            logits = frozen.logit_scale * frozen.hidden(batch).float() @ frozen.head_weight_VD.T
        labels = torch.from_numpy(batch.labels_BT.astype(np.int64))
        losses.append(float(cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)))
    return sum(losses) / len(losses)


def _placebo(c: SegmentColumns, flagged: Ids, r: random.Random) -> Ids:
    """Random ordinary documents of the window with as many labels as those flagged."""
    seen = ~c.baseline_S
    wanted = int(c.num_labels_S[seen & np.isin(c.document_S, flagged)].sum())
    pool = np.unique(c.document_S[seen & (c.document_S < NEW_FROM) & ~np.isin(c.document_S, flagged)])
    chosen: list[int] = []
    for document in r.sample(pool.tolist(), len(pool)):
        if wanted <= 0:
            break
        chosen.append(document)
        wanted -= int(c.num_labels_S[seen & (c.document_S == document)].sum())
    return np.array(chosen, np.uint64)


def damage_trials(lab: Lab, seed: int) -> list[Damage]:
    """The noise-like kinds on one base."""
    size, (bench, run) = lab.size, trained(lab, seed)
    state, token_bytes = run.tensors(), lab.text.token_bytes()
    stream = bench.clean(size.steps + PHASES[1][0])
    frozen = run.frozen()
    baseline = concatenate(
        [score_batch(frozen, b, token_bytes, True) for b in stream[size.steps - size.baseline : size.steps]]
    )
    given = (baseline, stream[size.steps :], state)
    return [_trial(bench, run, (kind, i), given, lab.say) for i, kind in enumerate(NOISE)]


def _trial(
    bench: Bench,
    run: Run,
    named: tuple[str, int],
    given: tuple[SegmentColumns, list[Batch], dict[str, torch.Tensor]],
    say: Callable[[str], None],
) -> Damage:
    kind, number = named
    baseline, fresh, state = given
    kinds = tuple(KINDS) if kind == "mixed" else (kind,)
    plan = Plan(kinds, SHARE, "scattered", 100 * bench.seed + 90 + number, "", (), 0.0)
    window = bench.window(fresh[0].step, plan)
    run.load(state)
    frozen, token_bytes = run.frozen(), bench.text.token_bytes()
    c = concatenate([baseline, *(score_batch(frozen, b, token_bytes, False) for b in window)])
    found = attribute(c, AttributionConfig())
    flagged = np.unique(c.document_S[found.flagged_S])
    poison = np.unique(c.document_S[~c.baseline_S & (c.document_S >= POISON_FROM)])
    placebo = _placebo(c, flagged, random.Random(f"placebo {plan.trial}"))

    def arm(batches: list[Batch], documents: Ids | None = None) -> float:
        run.load(state)
        for batch in batches:
            run.step(batch if documents is None else cut(batch, documents))
        return held_out_loss(bench, run)

    first, last = PHASES[0][0], PHASES[2][0]
    poisoned = arm(window)
    arms = {
        "exact": arm(window, poison),
        "ours": arm(window, flagged),
        "placebo": arm(window, placebo),
        "range skip": arm([*window[:first], *fresh, *window[-last:]]),
    }
    n, bad = c.num_labels_S, ~c.baseline_S & (c.document_S >= POISON_FROM)
    hit = n[found.flagged_S & bad].sum()
    one = Damage(bench.seed, kind, poisoned, arms, hit / n[bad].sum(), hit / max(1, found.flagged_tokens))
    shown = " ".join(f"{name} {(poisoned - loss) / one.damage:.2f}" for name, loss in arms.items())
    say(f"base {bench.seed} {kind}: damage {one.damage:.3f} recall {one.recall:.2f}, recovered: {shown}")
    return one
