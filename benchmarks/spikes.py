"""Spike figures: detectors on synthetic traces, cost of attribution, agreement of the gradient norms, attribution of
real packed text with innocents, and the damage that a rollback takes back.

    python benchmarks/spikes.py [--quick] [--json] [--bases N] [--work FOLDER]

The parts lie in ``spike_detectors.py`` and ``spike_attribution.py``. ``--quick`` judges recorded windows of two bases;
otherwise bases of 300 steps are trained on the text of this machine and kept under ``--work`` (minutes). CPU seconds
are of this process, one thread.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spike_detectors import detector_rows

from benchmarks.rows import Row, print_rows, row
from benchmarks.spike_attribution import attribution_rows, damage_rows, judged_rows
from benchmarks.spike_text import load_text, small_text
from benchmarks.spike_trials import WORK, Lab, load_tables
from benchmarks.spike_world import Bench, Run
from loader.stream.batch import Batch
from train.spikes.attribute import attribute, concatenate
from train.spikes.config import AttributionConfig
from train.spikes.score import gradient_norm_gram, gradient_norm_tiles, score_batch

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
    text = small_text()
    run, batches = Run(0, text.tokenizer.vocab_size), Bench(text, 0).clean(7)
    step_s = _cpu_s(run.step, batches)
    token_bytes, frozen = text.token_bytes(), run.frozen()
    score_s = _cpu_s(lambda batch: score_batch(frozen, batch, token_bytes, False), batches)
    yield row("attribution, all evidence", score_s / step_s, "steps per window step", target=("<=", 1.1))
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
        yield row(f"head gradient norm, {name} against V x D", value, "relative", target=("<=", 0.001))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bases", type=int, default=2, help="bases of 300 steps to train")
    parser.add_argument("--work", type=Path, default=WORK)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*detector_rows(options.quick), *cost_rows()]
    if options.quick:
        rows += judged_rows(load_tables())
    else:
        say = functools.partial(print, file=sys.stderr, flush=True)
        lab = Lab(load_text(options.work), options.work, say)
        rows += attribution_rows(lab, options.bases)
        rows += damage_rows(lab, options.bases)
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
