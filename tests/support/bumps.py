"""The real spike watch over a real run whose steps are told to be worse than they were: when an alarm comes is known
beforehand, and what it leads to is the trainer's own doing.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from train.spikes.records import Decision, StepRecord
from train.spikes.watch import SpikeWatch

from .datasets import DatasetSpec

__all__ = ["SPIKES", "BumpedWatch", "spec", "spikes"]

SPIKES: dict[str, Any] = {
    "patience": 3,
    "lead_steps": 2,
    "max_cut_fraction": 1.0,
    "min_flagged_fraction": 0.0,
    "detectors": {
        "warmup_steps": 8, "window_steps": 8, "mean_steps": 2, "loss_z": 20.0, "mean_z": 1e9, "source_z": 1e9,
        "grad_norm_z": 1e9, "update_norm_z": 1e9, "min_nats": 1.0,
    },
    "attribution": {"threshold": 0.6, "baseline_segments": 60, "baseline_source_segments": 5},
}  # fmt: skip
"""An alarm at a loss 5 nats too high and at nothing else, a question two steps later, and always something flagged."""


def spikes(**changes: Any) -> dict[str, Any]:
    """The ``spikes:`` block with other values."""
    return {**SPIKES, **changes}


def spec() -> DatasetSpec:
    """Two sources of short sentences; every twentieth document is noise."""
    rng = random.Random(5)
    words = ["the", "reel", "winds", "on", "under", "and", "while", "tokens", "stream", "past", "ends", "again"]

    def one(number: int) -> str:
        if number % 20 == 3:
            return "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(20, 40)))
        return " ".join(rng.choice(words) for _ in range(rng.randrange(2, 7)))

    texts = {source: [one(number) for number in range(250)] for source in ("web", "code")}
    return DatasetSpec(seq_len=64, texts=texts, files_per_source=1)


class BumpedWatch(SpikeWatch):
    """Step ``s`` of a branch behind ``n`` rollbacks of the watch counts as 5 nats worse if ``s`` is in ``worse[n]``,
    and as broken if it is in ``broken[n]``; the key -1 stands for every other n.
    """

    worse: ClassVar[Mapping[int, Collection[int]]] = {}
    broken: ClassVar[Mapping[int, Collection[int]]] = {}

    def observe(self, record: StepRecord) -> Decision:
        """The real one, told otherwise."""
        count = len(self.rollbacks)
        if record.step in self.worse.get(count, self.worse.get(-1, ())):
            record = dataclasses.replace(record, loss=record.loss + 5.0)
        if record.step in self.broken.get(count, self.broken.get(-1, ())):
            record = dataclasses.replace(record, loss=float("nan"), finite=False)
        return super().observe(record)
