"""Spike figures: detectors on synthetic traces, cost of attribution, agreement of the gradient norms, and attribution
of real packed text with innocents.

    python benchmarks/spikes.py [--quick] [--json] [--seeds N]

The peers are reimplemented here from their published rules: OLMo-core's loss > rolling mean + 6 sigma over 128 steps,
and the two-score rule max |z| > 4 of loss and gradient norm per segment. CPU seconds are of this process, one thread.
``--quick`` leaves out the last part, which trains a model per seed (minutes).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spike_lab import NEW_FROM, POISON_FROM, Bench, Run, read_text, train_base

from loader.demo_poison import KINDS
from loader.stream.batch import Batch
from train.spikes.attribute import SegmentColumns, attribute, concatenate
from train.spikes.config import AttributionConfig, SpikeConfig
from train.spikes.records import StepRecord
from train.spikes.score import gradient_norm_gram, gradient_norm_tiles, score_batch
from train.spikes.watch import SpikeWatch

Row = dict[str, Any]
Floats = NDArray[np.float64]
BASE_STEPS, BASELINE_STEPS = 300, 100


def row(name: str, value: float, unit: str, peer: tuple[str, float] | None = None, target: str = "") -> Row:
    """One result; ``target`` like ``<= 1.1`` judges the value."""
    holds = None
    if target:
        relation, bound = target.split()
        holds = value <= float(bound) if relation == "<=" else value >= float(bound)
    ratio = value / peer[1] if peer and peer[1] else None
    return {
        "name": name,
        "value": round(value, 5),
        "unit": unit,
        "peer": peer[0] if peer else None,
        "peer_value": round(peer[1], 5) if peer else None,
        "ratio": None if ratio is None else round(ratio, 3),
        "target": target or None,
        "holds": holds,
    }


# --- detectors on synthetic traces
# -------------------------------------------------------------------------------------


def trace(r: np.random.Generator, steps: int) -> Floats:
    """A falling loss with AR(1) noise and a benign heavy tail."""
    loss = 2.2 + 6 * (np.arange(steps) + 350) ** -0.28
    noise = np.zeros(steps)
    for i in range(1, steps):
        noise[i] = 0.3 * noise[i - 1] + r.normal(0, 0.012)
    return loss + noise + (r.random(steps) < 0.001) * r.exponential(0.03, steps)


def ours(loss: Floats, grad: Floats) -> tuple[list[int], list[int]]:
    """Steps of alarms, and of decisions that the loss stayed raised (answered as if attribution found nothing)."""
    watch = SpikeWatch(SpikeConfig(patience=16), [(0, {"all": 1.0})])
    alarms, raised = [], []
    for step, (value, norm) in enumerate(zip(loss.tolist(), grad.tolist(), strict=True)):
        sums = {"all": (value * 1000, 1000)}
        kind = watch.observe(StepRecord(step, step, step + 1, value, norm, 0.01, 1000, sums, True)).kind
        if kind == "alarm":
            alarms.append(step)
        if kind == "investigate":
            raised.append(step)
            watch.answer()
    return alarms, raised


def olmo(loss: Floats) -> list[int]:
    """Loss above the rolling mean by 6 standard deviations of 128 steps."""
    return [i for i in range(64, len(loss)) if loss[i] - (h := loss[max(0, i - 128) : i]).mean() > 6 * h.std(ddof=1)]


SPIKES: dict[str, Callable[[NDArray[np.int64]], Floats]] = {
    "jump of 0.3 that decays in 40 steps": lambda t: 0.3 * np.exp(-t / 20),
    "jump of 1 that decays in 20 steps": lambda t: np.exp(-t / 10),
    "ramp to 0.6 over 60 steps": lambda t: np.minimum(t / 100, 0.6),
    "lasting 0.15": lambda t: np.full(len(t), 0.15),
}


def detector_rows(quick: bool) -> Iterator[Row]:
    """False alarms on clean steps, and injected spikes seen."""
    r = np.random.default_rng(0)
    steps, runs = (4000, 3) if quick else (10_000, 3)
    alarms = raised = peer = 0
    for _ in range(runs):
        loss, grad = trace(r, steps), np.exp(r.normal(0, 0.15, steps))
        a, b = ours(loss, grad)
        alarms, raised, peer = alarms + len(a), raised + len(b), peer + len(olmo(loss))
    per = 10_000 / (steps * runs)
    yield row("alarms in 10k clean steps", alarms * per, "alarms", ("OLMo-core 6 sigma", peer * per))
    yield row("false rollback decisions in 10k clean steps", raised * per, "decisions", target="<= 1")
    for name, shape in SPIKES.items():
        seen = decided = peer = 0
        for _ in range(10):
            loss = trace(r, 420)
            loss[300:] += shape(np.arange(120))
            a, b = ours(loss, np.exp(r.normal(0, 0.15, 420)))
            seen, decided = seen + any(i >= 300 for i in a), decided + any(i >= 300 for i in b)
            peer += any(i >= 300 for i in olmo(loss))
        yield row(f"seen of 10: {name}", seen, "spikes", ("OLMo-core 6 sigma", float(peer)), ">= 9")
        yield row(f"... and raised for patience: {name}", decided, "spikes")


# --- cost and agreement
# ------------------------------------------------------------------------------------------------


def _cpu_s(work: Callable[[Batch], object], batches: list[Batch]) -> float:
    work(batches[0])
    times = []
    for batch in batches:
        start = time.process_time()
        work(batch)
        times.append(time.process_time() - start)
    return float(np.median(times))


def cost_rows() -> Iterator[Row]:
    """Steps of training that scoring one step costs; Gram against tiles against the whole gradient."""
    text = _text(False)
    bench, run = Bench(text, 0), Run(0)
    batches = [bench.clean(step) for step in range(7)]
    step_s = _cpu_s(run.step, batches)
    token_bytes, frozen = text.token_bytes(), run.frozen()
    score_s = _cpu_s(lambda batch: score_batch(frozen, batch, token_bytes, False), batches)
    yield row("attribution, five pieces of evidence", score_s / step_s, "steps per window step", target="<= 1.1")
    columns = concatenate([score_batch(frozen, batch, token_bytes, step < 5) for step, batch in enumerate(batches)])
    start = time.process_time()
    attribute(columns, AttributionConfig())
    yield row(f"the rule itself, {len(columns)} segments", time.process_time() - start, "CPU s")
    worst = {"Gram": 0.0, "tiles": 0.0}
    generator = torch.Generator().manual_seed(0)
    for labels in (3, 40, 128, 255):
        hidden = torch.randn(labels, 128, generator=generator)
        errors = torch.randn(labels, 2048, generator=generator).softmax(1)
        errors[torch.arange(labels), torch.randint(2048, (labels,), generator=generator)] -= 1
        whole = float((errors.double().T @ hidden.double()).norm())
        worst["Gram"] = max(worst["Gram"], abs(gradient_norm_gram(errors, hidden) / whole - 1))
        worst["tiles"] = max(worst["tiles"], abs(gradient_norm_tiles(errors, hidden) / whole - 1))
    for name, value in worst.items():
        yield row(f"head gradient norm, {name} against V x D", value, "relative", target="<= 0.001")


# --- attribution of real packed text
# -----------------------------------------------------------------------------------


@functools.cache
def _text(with_innocents: bool) -> Any:
    return read_text(with_innocents)


def two_scores(c: SegmentColumns) -> NDArray[np.bool_]:
    """max |z| > 4 of loss and of gradient norm / n, per segment, by source and two length bins."""
    flagged = np.zeros(len(c), np.bool_)
    for x in (c.loss_S, c.head_grad_S / c.num_labels_S):
        for source in np.unique(c.source_S):
            for long_bin in (False, True):
                mine = (c.source_S == source) & ((c.num_labels_S >= 64) == long_bin)
                own = mine & c.baseline_S
                if own.sum() < 12:
                    own = c.baseline_S & ((c.num_labels_S >= 64) == long_bin)
                middle = np.median(x[own])
                scale = 1.4826 * np.median(np.abs(x[own] - middle)) + 1e-9
                flagged[mine] |= np.abs(x[mine] - middle) > 4 * scale
    return flagged & ~c.baseline_S


def attribution_rows(seeds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Ten trials a seed: each kind scattered over the sources, all kinds scattered, all kinds in a planted source."""
    trials = [((kind,), False) for kind in KINDS] + [(tuple(KINDS), False), (tuple(KINDS), True)]
    text = _text(True)
    token_bytes, config = text.token_bytes(), AttributionConfig()
    sums = {name: np.zeros(5) for name in ("ours", "two")}
    kinds: dict[str, Floats] = {}
    for seed in range(seeds):
        bench = Bench(text, seed)
        frozen = train_base(bench, BASE_STEPS, say).frozen()
        clean = range(BASE_STEPS - BASELINE_STEPS, BASE_STEPS)
        baseline = [score_batch(frozen, bench.clean(step), token_bytes, True) for step in clean]
        for trial, (names, planted) in enumerate(trials):
            window = bench.window(BASE_STEPS, names, trial, 0.25, planted)
            c = concatenate([*baseline, *(score_batch(frozen, b, token_bytes, False) for b in window)])
            n, seen = c.num_labels_S, ~c.baseline_S
            poison, new = seen & (c.document_S >= POISON_FROM), seen & (c.document_S >= NEW_FROM)
            new &= ~poison
            for name, flagged in (("ours", attribute(c, config).flagged_S), ("two", two_scores(c))):
                told = np.array(
                    [n[flagged & poison].sum(), n[poison].sum(), n[flagged].sum(), n[flagged & new].sum(), n[new].sum()]
                )
                sums[name] += told
                if name == "ours":
                    label = names[0] if len(names) == 1 else ("planted" if planted else "mixed")
                    kinds[label] = kinds.get(label, np.zeros(5)) + told
                    false = (told[2] - told[0]) / n[seen & ~poison].sum()
                    say(f"seed {seed} {label}: recall {told[0] / told[1]:.2f} false cuts {false:.3f}")
            sums.setdefault("clean", np.zeros(1))
            sums["clean"] += n[seen & ~poison].sum()
    o, t, clean_tokens = sums["ours"], sums["two"], sums["clean"][0]
    yield row("attribution: recall", o[0] / o[1], "of poison tokens", ("two-score rule", t[0] / t[1]), ">= 0.94")
    yield row("attribution: precision", o[0] / o[2], "of cut tokens", ("two-score rule", t[0] / t[2]), ">= 0.88")
    yield row(
        "attribution: false cuts", (o[2] - o[0]) / clean_tokens, "of clean tokens",
        ("two-score rule", (t[2] - t[0]) / clean_tokens), "<= 0.015",
    )  # fmt: skip
    yield row("attribution: good new domains cut", o[3] / o[4], "of tokens", ("two-score rule", t[3] / t[4]), "<= 0.1")
    for name, k in kinds.items():
        yield row(f"... recall, {name}", k[0] / k[1], "of poison tokens")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*detector_rows(options.quick), *cost_rows()]
    if not options.quick:
        rows += attribution_rows(options.seeds, lambda text: print(text, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(rows))
        return
    for r in rows:
        peer = "" if r["peer"] is None else f"{r['peer']}: {r['peer_value']:g}"
        print(f"{r['name']:58} {r['value']:>10g} {r['unit']:22} {peer:28} {r['target'] or '':9} {r['holds']}")


if __name__ == "__main__":
    main()
