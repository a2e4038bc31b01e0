"""What metrics and ledger cost a step, for ``benchmarks/trainer.py``.

CPU time of one process a step; five sources. The shares are of a realistic step: the shortest of the presets' on the
hardware that they are made for, the 125M model over its 0.5 M tokens on eight H100 at 40 % of their peak (closed form;
0.12 s). A tiny model's step on one core is of that order too, a 70B step hundreds of times longer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loader.ledger import LedgerRecord, LedgerWriter
from train.metrics.averages import LossAverages
from train.metrics.clock import StepClock
from train.metrics.console import StepConsole
from train.metrics.flops import Peak, device_peak, token_flops
from train.metrics.memory import MemoryMeter
from train.metrics.recorder import Outputs, Recorder, RunFacts
from train.metrics.sinks import SINKS, Sink, SinkPlace
from train.model import ModelShape
from train.spikes.records import StepRecord
from train.step import ReadStep

__all__ = ["metrics_costs", "realistic_step_s"]

NAMES = ("web", "books", "code", "papers", "forums")
_SMALL = ModelShape(vocab_size=32_000, dim=768, layers=12, heads=12, kv_heads=12, ffn=2048, seq_len=2048)
_TOKENS, _CARDS, _SHARE = 500_000, 8, 0.4


def realistic_step_s() -> float:
    """Seconds of a step of the 125M model, see the top of the file."""
    peak = device_peak("NVIDIA H100 80GB HBM3", "bf16")
    assert peak is not None
    return _TOKENS * token_flops(_SMALL).total / (_CARDS * _SHARE * peak.flops_per_s)


def _read(step: int) -> ReadStep:
    losses = dict.fromkeys(NAMES, (3.0 * 400, 400))
    return ReadStep(StepRecord(step, 8 * step, 8 * step + 8, 3.0, 1.0, 0.1, 2000, losses, True), 3e-4, step, False)


def _each_s(rounds: int, work: Callable[[int], object]) -> float:
    for step in range(20):
        work(step)
    begin = time.process_time()
    for step in range(20, rounds + 20):
        work(step)
    return (time.process_time() - begin) / rounds


def _recorder(sinks: list[Sink]) -> Recorder:
    facts = RunFacts(1 << 30, 1 << 30, 1e9, 8, Peak("some", 1e15), True)
    console = StepConsole(lambda text: None, 1 << 30, 1 << 30)
    outputs = Outputs(sinks, console, lambda step, warned: None)
    return Recorder(facts, outputs, LossAverages(NAMES), MemoryMeter(), StepClock())


def _of_sink(name: str, folder: Path, rounds: int) -> float:
    sink = SINKS[name].open(SinkPlace(folder, "0" * 16, 0, 0, 0, tensorboard=True))
    recorder = _recorder([sink])
    try:
        return _each_s(rounds, lambda step: recorder.step(_read(step), 16_384))
    finally:
        recorder.close()


def metrics_costs(rounds: int, row: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows: the ledger, a step's line (averages, utilisation, memory, warnings), and the line with each local sink."""
    step_s = realistic_step_s()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LedgerWriter(folder, 0, 0, len(NAMES)) as writer:
            losses, labels = [1200.0] * len(NAMES), [400] * len(NAMES)
            ledger_s = _each_s(
                rounds,
                lambda step: writer.append(
                    LedgerRecord(step, step * 8, step * 8 + 8, 2000, step, 3.0, 1.0, 0.1, 3e-4, losses, labels)
                ),
            )
        recorder = _recorder([])
        line_s = _each_s(rounds, lambda step: recorder.step(_read(step), 16_384))
        found = {name: _of_sink(name, folder, rounds) for name in ("jsonl", "tensorboard")}
    rows = [
        row("a realistic step (125M, 0.5 M tokens, 8 H100)", step_s * 1e3, "ms"),
        row("ledger per step", ledger_s * 1e6, "us"),
        row("ledger per step, share of a step", ledger_s / step_s, "", target=("<=", 0.001)),
        row("metrics per step, no sink", line_s * 1e6, "us"),
    ]
    for name, cost_s in found.items():
        rows.append(row(f"metrics per step to {name}", cost_s * 1e6, "us"))
    both_s = ledger_s + found["jsonl"]
    rows.append(row("ledger and metrics per step, share of a step", both_s / step_s, "", target=("<=", 0.01)))
    return rows
