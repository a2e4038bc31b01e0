"""Spike detectors beside the rules that others use, on made series and on recorded traces of real training.

    python benchmarks/spike_detectors.py [--quick] [--json] [--traces FILE]

The peers are reimplemented here from their published rules: OLMo-core's skip-step optimizer (loss or gradient norm
above the rolling mean by 6 standard deviations of 128 steps, outliers included), Megatron's check of results (10 times
the largest loss of the first 100 steps), and a single-step loss 8 robust deviations above the trend. Ours is the watch
with the defaults of ``spikes:``; what it asks about is answered as if attribution had found nothing.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, print_rows, row
from benchmarks.spike_traces import BATCH, RECORDED, Traces, Window, load_traces
from train.spikes.config import DetectorConfig, SpikeConfig
from train.spikes.records import StepRecord
from train.spikes.watch import SpikeWatch

__all__ = ["PEERS", "Judged", "detector_rows", "judge_traces", "ours", "trace_rows"]

Floats = NDArray[np.float64]
Stages = Sequence[tuple[int, Mapping[str, float]]]
NEW, RAMPS = ("new source", "new pages"), ("ramp", "planted ramp")
OLMO = "OLMo-core 6 sigma"


class Rule(Protocol):
    """A detector: fed with steps, says ``alarm`` and, if it asks so far, ``investigate``; can be copied."""

    def observe(self, record: StepRecord) -> str:
        """What the step makes of it."""


class Watch:
    """Ours. ``config``: what to watch with; the default is the trainer's."""

    def __init__(self, stages: Stages, config: SpikeConfig | None = None) -> None:
        self.watch = SpikeWatch(config or SpikeConfig(), stages)

    def observe(self, record: StepRecord) -> str:
        """See ``Rule``."""
        kind = self.watch.observe(record).kind
        if kind == "investigate":
            self.watch.answer()
        return kind


class OlmoCore:
    """Loss or gradient norm above the mean of the last 128 steps by 6 of their standard deviations."""

    def __init__(self) -> None:
        self._series = (deque[float](maxlen=128), deque[float](maxlen=128))

    def observe(self, record: StepRecord) -> str:
        """See ``Rule``."""
        found = False
        for series, value in zip(self._series, (record.loss, record.grad_norm), strict=True):
            if len(series) >= 64:
                past = np.array(series)
                found |= bool(value - past.mean() > 6 * past.std(ddof=1))
            series.append(value)
        return "alarm" if found else "none"


class Megatron:
    """Loss of at least 10 times the largest of the first 100 steps."""

    def __init__(self) -> None:
        self._count, self._largest = 0, 0.0

    def observe(self, record: StepRecord) -> str:
        """See ``Rule``."""
        if self._count < 100:
            self._count, self._largest = self._count + 1, max(self._largest, record.loss)
            return "none"
        return "alarm" if record.loss >= 10 * self._largest else "none"


_OFF = dict.fromkeys(("mean_z", "source_z", "grad_norm_z", "update_norm_z"), math.inf)
SINGLE_STEP = SpikeConfig(detectors=DetectorConfig(**_OFF, plateau_steps=0))

PEERS: dict[str, Callable[[Stages], Rule]] = {
    OLMO: lambda stages: OlmoCore(),
    "Megatron 10 x max": lambda stages: Megatron(),
    "z > 8 alone": lambda stages: Watch(stages, SINGLE_STEP),
}
"""The rules that ours stands beside."""


def ours(stages: Stages) -> Rule:
    """The watch with the trainer's defaults."""
    return Watch(stages)


# --- real traces
# -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A branch and after how many of its steps the alarm and the decision came; None: never."""

    kind: str
    alarm: int | None
    decision: int | None


@dataclass(frozen=True)
class Judged:
    """A rule on a run. alarms, decisions: their steps on the clean run. seen: of the branches, in order."""

    steps: int
    alarms: tuple[int, ...]
    decisions: tuple[int, ...]
    seen: tuple[Seen, ...]

    def of(self, kinds: Sequence[str]) -> list[Seen]:
        """The branches of these kinds."""
        return [s for s in self.seen if s.kind in kinds]

    def poisoned(self, within: int = 40) -> list[Seen]:
        """The poisoned windows whose alarm came within so many steps."""
        return [s for s in self.seen if s.kind not in (*NEW, *RAMPS) and s.alarm is not None and s.alarm < within]


def _follow(rule: Rule, window: Window) -> Seen:
    first: dict[str, int] = {}
    for delay, record in enumerate(window.records):
        first.setdefault(rule.observe(record), delay)
    return Seen(window.kind, first.get("alarm", first.get("investigate")), first.get("investigate"))


def judge(rule: Rule, clean: Sequence[StepRecord], branches: Sequence[Window]) -> Judged:
    """The rule over the clean run, and from copies of it over each branch."""
    told: dict[str, list[int]] = {"alarm": [], "investigate": []}
    seen: dict[int, Seen] = {}
    at: dict[int, list[int]] = {}
    for i, branch in enumerate(branches):
        at.setdefault(branch.step, []).append(i)
    for record in clean:
        for i in at.get(record.step, ()):
            seen[i] = _follow(copy.deepcopy(rule), branches[i])
        kind = rule.observe(record)
        if kind in told:
            told[kind].append(record.step)
    for i in set(range(len(branches))) - set(seen):  # they branch off behind the last step
        seen[i] = _follow(copy.deepcopy(rule), branches[i])
    ordered = tuple(seen[i] for i in range(len(branches)))
    return Judged(len(clean), tuple(told["alarm"]), tuple(told["investigate"]), ordered)


def judge_traces(make: Callable[[Stages], Rule], traces: Traces) -> Judged:
    """A rule over everything that was recorded."""
    return judge(make(traces.stages), traces.clean, traces.windows)


def _louder(record: StepRecord, nats: float) -> StepRecord:
    sums = {name: (total + nats * count, count) for name, (total, count) in record.source_loss.items()}
    return replace(record, loss=record.loss + nats, source_loss=sums)


_WARM = 150
"""Steps before which no rule has to see anything: the watch itself asks nothing in its first 100."""


def raised_windows(clean: Sequence[StepRecord], kind: str, every: int, shape: Callable[[int], float]) -> list[Window]:
    """Stretches of 40 clean steps, one every so many behind the warm-up, whose loss is raised by ``shape``, nats."""
    return [
        Window(kind, first, 0.0, tuple(_louder(r, shape(i)) for i, r in enumerate(clean[first : first + 40])))
        for first in range(_WARM, len(clean) - 40, every)
    ]


def larger_batches(clean: Sequence[StepRecord], times: int) -> list[StepRecord]:
    """The run as batches of so many times the size would show it: losses are pooled, norms geometric means."""
    out = []
    for i in range(0, len(clean) - times + 1, times):
        part = clean[i : i + times]
        sums = {
            name: tuple(sum(r.source_loss[name][place] for r in part if name in r.source_loss) for place in (0, 1))
            for name in sorted({name for r in part for name in r.source_loss})
        }
        labels = sum(r.label_count for r in part)
        norms = [math.exp(sum(math.log(getattr(r, n)) for r in part) / times) for n in ("grad_norm", "update_norm")]
        loss = sum(total for total, _ in sums.values()) / labels
        place = (i // times, part[0].first_position, part[-1].next_position)
        out.append(StepRecord(*place, loss, norms[0], norms[1], labels, sums, True))  # type: ignore[arg-type]
    return out


def noise(clean: Sequence[StepRecord]) -> float:
    """Standard deviation of a step's loss, nats, from differences of neighbours."""
    losses = np.array([r.loss for r in clean])
    return float(np.sqrt(np.mean(np.diff(losses) ** 2) / 2))


SHAPES: dict[str, Callable[[int], float]] = {
    "+0.3 nats": lambda i: 0.3,
    "ramp to +0.6 over 15 steps": lambda i: min(i / 15, 1.0) * 0.6,
    "ramp to +0.6 over 60 steps": lambda i: i / 100,
}


def shape_rows(traces: Traces) -> Iterator[Row]:
    """Raised losses on real noise, as it is and as larger batches have it."""
    for times in (1, 16):
        clean = traces.clean if times == 1 else larger_batches(traces.clean, times)
        every = max(40, len(clean) // 50)
        branches = [w for kind, shape in SHAPES.items() for w in raised_windows(clean, kind, every, shape)]
        found = judge(ours(traces.stages), clean, branches)
        batch = f"{times * BATCH} samples a step, noise {noise(clean):.3f}"
        if times > 1:
            yield row(f"false rollback decisions, {batch}", len(found.decisions), f"in {len(clean)} steps")
        for kind in SHAPES:
            delays = sorted(math.inf if s.alarm is None else s.alarm for s in found.of([kind]))
            name = f"{kind}, {batch}"
            if kind == "+0.3 nats":
                goal = {"target": (">=", 0.95)} if times > 1 else {}
                yield row(f"{name}: seen at once", sum(d == 0 for d in delays) / len(delays), "of all", **goal)
            seen = sum(d < math.inf for d in delays)
            yield row(f"{name}: seen in 40 steps", seen / len(delays), "of all")
            if delays[len(delays) // 2] < math.inf:
                goal = {"target": ("<=", 15)} if times > 1 or "15" in kind else {}
                yield row(f"{name}: median delay", delays[len(delays) // 2], "steps", **goal)


def trace_rows(traces: Traces) -> Iterator[Row]:
    """Ours and the peers on a recorded run."""
    mine = judge_traces(ours, traces)
    others = {name: judge_traces(make, traces) for name, make in PEERS.items()}
    per = 10_000 / mine.steps

    def beside(name: str, unit: str, figure: Callable[[Judged], float], **goal: tuple[str, float]) -> Iterator[Row]:
        for peer, judged in others.items():
            yield row(name, figure(mine), unit, peer=peer, peer_value=float(figure(judged)), **goal)
            goal = {}

    yield from beside("alarms in 10k clean real steps", "alarms", lambda j: len(j.alarms) * per)
    decisions = len(mine.decisions) * per
    yield row("false rollback decisions in 10k clean real steps", decisions, "decisions", target=("<=", 1))
    plain = judge(Watch(traces.stages[:1]), traces.clean, ())
    near = [
        sum(any(0 <= s - start // BATCH < 100 for start, _ in traces.stages[1:]) for s in j.alarms)
        for j in (mine, plain)
    ]
    yield row("alarms within 100 steps of 3 mixture changes", near[0], "alarms", peer="not told", peer_value=near[1])
    yield from beside("poisoned windows seen of 50", "windows", lambda j: len(j.poisoned()), target=(">=", 45))
    yield from beside("... within 8 steps", "windows", lambda j: len(j.poisoned(8)))
    yield row("... and raised for patience", sum(s.decision is not None for s in mine.poisoned()), "windows")
    ramps = lambda j: sum(s.alarm is not None and s.alarm <= 15 for s in j.of(RAMPS))  # noqa: E731
    yield from beside("ramps of poison seen within 15 steps, of 10", "ramps", ramps, target=(">=", 9))
    yield from beside("good new domains that raise an alarm, of 10", "windows", lambda j: _count(j.of(NEW), "alarm"))
    yield row("... and stay raised for patience", _count(mine.of(NEW), "decision"), "windows")
    yield from shape_rows(traces)


def _count(seen: Sequence[Seen], what: str) -> int:
    return sum(getattr(s, what) is not None for s in seen)


# --- made series
# -------------------------------------------------------------------------------------------------------


def trace(r: np.random.Generator, steps: int) -> Floats:
    """A falling loss with AR(1) noise and a benign heavy tail."""
    loss = 2.2 + 6 * (np.arange(steps) + 350) ** -0.28
    noise = np.zeros(steps)
    for i in range(1, steps):
        noise[i] = 0.3 * noise[i - 1] + r.normal(0, 0.012)
    return loss + noise + (r.random(steps) < 0.001) * r.exponential(0.03, steps)


def made(loss: Floats, grad: Floats) -> list[StepRecord]:
    """Steps of one source."""
    return [
        StepRecord(step, step, step + 1, value, norm, 0.01, 1000, {"all": (value * 1000, 1000)}, True)
        for step, (value, norm) in enumerate(zip(loss.tolist(), grad.tolist(), strict=True))
    ]


SPIKES: dict[str, Callable[[NDArray[np.int64]], Floats]] = {
    "jump of 0.3 that decays in 40 steps": lambda t: 0.3 * np.exp(-t / 20),
    "jump of 1 that decays in 20 steps": lambda t: np.exp(-t / 10),
    "ramp to 0.6 over 60 steps": lambda t: np.minimum(t / 100, 0.6),
    "lasting 0.15": lambda t: np.full(len(t), 0.15),
}


def made_rows(quick: bool) -> Iterator[Row]:
    """False alarms on clean made series, and injected spikes seen."""
    r = np.random.default_rng(0)
    steps, runs = (4000, 3) if quick else (10_000, 3)
    rules: dict[str, Callable[[Stages], Rule]] = {
        "ours": lambda stages: Watch(stages, SpikeConfig(patience=16)),
        **PEERS,
    }
    stages = [(0, {"all": 1.0})]
    clean = [made(trace(r, steps), np.exp(r.normal(0, 0.15, steps))) for _ in range(runs)]
    found = {name: [judge(make(stages), part, ()) for part in clean] for name, make in rules.items()}
    per = 10_000 / (steps * runs)
    alarms = {name: sum(len(j.alarms) for j in judged) * per for name, judged in found.items()}
    for peer in PEERS:
        yield row("alarms in 10k clean made steps", alarms["ours"], "alarms", peer=peer, peer_value=alarms[peer])
    decisions = sum(len(j.decisions) for j in found["ours"]) * per
    yield row("false rollback decisions in 10k clean made steps", decisions, "decisions", target=("<=", 1))
    for name, shape in SPIKES.items():
        seen, decided = dict.fromkeys(rules, 0), 0
        for _ in range(10):
            loss = trace(r, 420)
            loss[300:] += shape(np.arange(120))
            records = made(loss, np.exp(r.normal(0, 0.15, 420)))
            for rule, make in rules.items():
                judged = judge(make(stages), records, ())
                seen[rule] += any(i >= 300 for i in (*judged.alarms, *judged.decisions))
                decided += rule == "ours" and any(i >= 300 for i in judged.decisions)
        goal: dict[str, tuple[str, float]] = {"target": (">=", 9)}
        for peer in PEERS:
            yield row(f"seen of 10: {name}", seen["ours"], "spikes", peer=peer, peer_value=float(seen[peer]), **goal)
            goal = {}
        yield row(f"... and raised for patience: {name}", decided, "spikes")


def mixture_rows() -> Iterator[Row]:
    """A made run whose mixture changes as planned every 1,000 steps, from easy sources to hard ones and back."""
    shares = ({"easy": 0.8, "hard": 0.2}, {"easy": 0.2, "hard": 0.8})
    level, steps = {"easy": 1.5, "hard": 2.8}, 6000
    stages = [(first, shares[first // 1000 % 2]) for first in range(0, steps, 1000)]
    r = np.random.default_rng(1)
    records = []
    for step, base in enumerate(trace(r, steps).tolist()):
        counts = {name: round(share * 1000) for name, share in stages[step // 1000][1].items()}
        sums = {name: ((base - 2.2 + level[name] + r.normal(0, 0.02)) * n, n) for name, n in counts.items()}
        loss = sum(total for total, _ in sums.values()) / 1000
        records.append(StepRecord(step, step, step + 1, loss, float(np.exp(r.normal(0, 0.15))), 0.01, 1000, sums, True))
    told, silent = (judge(Watch(plan), records, ()) for plan in (stages, stages[:1]))
    yield row(
        "alarms at 5 planned changes by 0.8 nats, made", len(told.alarms), "alarms",
        peer="not told", peer_value=float(len(silent.alarms)), target=("<=", 0),
    )  # fmt: skip
    yield row("... and raised for patience", len(told.decisions), "", peer="not told", peer_value=len(silent.decisions))


def detector_rows(quick: bool, traces: Path = RECORDED) -> Iterator[Row]:
    """All rows of the detectors."""
    yield from made_rows(quick)
    yield from mixture_rows()
    yield from trace_rows(load_traces(traces))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--traces", type=Path, default=RECORDED)
    options = parser.parse_args()
    print_rows(list(detector_rows(options.quick, options.traces)), options.json)


if __name__ == "__main__":
    main()
