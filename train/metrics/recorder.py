"""From a step that was read to its line, and from there to sinks, console and warnings.

Everything here is on the host already: a step's numbers came in the one packed vector, times are of the host's clock,
memory of counters. So metrics wait for no device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .averages import LossAverages
from .clock import StepClock, StepTimes
from .console import StepConsole
from .flops import Peak, model_flops_utilisation
from .memory import MemoryMeter
from .sinks import Sink
from .warn import THRESHOLDS, StepWatch, Warned

if TYPE_CHECKING:
    from ..step import ReadStep

__all__ = ["Outputs", "Recorder", "RunFacts", "Speed", "step_line", "warning_event"]

_WALL_DECAY = 0.95


@dataclass(frozen=True)
class RunFacts:
    """What does not change within an attempt.

    Attributes:
        total_steps: done when the run is over. log_every: steps between lines on the console.
        flops_per_token: closed form, see ``flops.token_flops``. num_devices: of the job.
        peak: of one device, or None. is_accelerator: utilisation is judged.
        source_epochs: from a next position to how often each source was read through; asked at every logged step.
    """

    total_steps: int
    log_every: int
    flops_per_token: float
    num_devices: int = 1
    peak: Peak | None = None
    is_accelerator: bool = False
    source_epochs: Callable[[int], Mapping[str, float]] = field(default=lambda position: {})


@dataclass(frozen=True)
class Speed:
    """How fast a step was.

    Attributes:
        tokens_per_s: of the whole job, padding included. mfu: None without a known peak.
    """

    tokens_per_s: float
    mfu: float | None

    @staticmethod
    def of(num_tokens: int, times: StepTimes, facts: RunFacts) -> Speed:
        """Of a step over ``num_tokens`` tokens of the global batch."""
        rate = num_tokens / times.step
        if facts.peak is None:
            return Speed(rate, None)
        return Speed(rate, model_flops_utilisation(rate, facts.flops_per_token, facts.num_devices, facts.peak))

    def line(self, facts: RunFacts) -> dict[str, Any]:
        """As a step's line holds it."""
        out: dict[str, Any] = {
            "tokens_per_s": round(self.tokens_per_s, 1),
            "tokens_per_s_per_device": round(self.tokens_per_s / facts.num_devices, 1),
            "model_gflop_per_s": round(self.tokens_per_s * facts.flops_per_token / 1e9, 3),
        }
        return out if self.mfu is None else {**out, "mfu": round(self.mfu, 5)}


def step_line(read: ReadStep, averages: LossAverages, times: StepTimes) -> dict[str, Any]:
    """What a step learned and where its time went; ``averages`` have seen it already. Losses in nats a label."""
    record = read.record
    return {
        "step": record.step,
        "first_position": record.first_position,
        "loss": record.loss,
        "loss_average": averages.mean,
        "loss_median": averages.median,
        "perplexity": math.exp(min(record.loss, 700.0)),
        "grad_norm": record.grad_norm,
        "update_norm": record.update_norm,
        "lr": read.lr,
        "label_count": record.label_count,
        "source_loss": {name: total / count for name, (total, count) in record.source_loss.items()},
        "source_loss_average": averages.by_source(),
        "step_s": round(times.step, 6),
        "loader_wait_s": round(times.loader, 6),
        "loader_wait_share": round(times.loader / times.step, 6),
        "ledger_s": round(times.ledger, 7),
        "metrics_s": round(times.metrics, 7),
        "checkpoint_stall_s": round(times.checkpoint, 6),
        "evaluation_s": round(times.evaluation, 6),
        "spikes_s": round(times.spikes, 6),
    }


@dataclass(frozen=True)
class Outputs:
    """Whom a recorder tells.

    Attributes:
        sinks: where lines go. console: what people see.
        warned: called with the step and each incident: it prints, and writes the event.
    """

    sinks: Sequence[Sink]
    console: StepConsole
    warned: Callable[[int, Warned], None]


class Recorder:
    """Takes the steps of one attempt, on the process that writes the run's folder.

    Args:
        facts: of the attempt. outputs: whom to tell.
        averages: already knowing the steps before.
        memory: looks at memory. clock: that of the loop.
    """

    def __init__(
        self, facts: RunFacts, outputs: Outputs, averages: LossAverages, memory: MemoryMeter, clock: StepClock
    ) -> None:
        self._facts, self._clock = facts, clock
        self._sinks, self._console, self._warned = outputs.sinks, outputs.console, outputs.warned
        self._averages, self._memory = averages, memory
        self._watch = StepWatch(facts.is_accelerator and facts.peak is not None)
        self._wall_s = math.nan

    def step(self, read: ReadStep, num_tokens: int) -> None:
        """Record a step that was just read.

        Args:
            read: the step. num_tokens: of the global batch, padding included.
        """
        times = self._clock.lap()
        # Ranks wait for each other at every step, so a slow disk elsewhere shows nowhere but in the sum over all.
        times = replace(times, loader=max(times.loader, read.waited_s / self._facts.num_devices))
        with self._clock.part("metrics"):
            record, facts = read.record, self._facts
            self._averages.add(record.loss, record.label_count, record.source_loss)
            speed = Speed.of(num_tokens, times, facts)
            known = math.isfinite(self._wall_s)
            self._wall_s = _WALL_DECAY * self._wall_s + (1 - _WALL_DECAY) * times.wall if known else times.wall
            use, is_new = self._memory.look()
            line = {**step_line(read, self._averages, times), **speed.line(facts), **use.line()}
            line["left_s"] = round(self._wall_s * max(0, facts.total_steps - record.step - 1), 1)
            if record.step % facts.log_every == 0:
                line["source_epochs"] = dict(facts.source_epochs(record.next_position))
            for sink in self._sinks:
                sink.write(line)
            self._console.show(line)
            for warned in [*self._watch.step(times, speed.mfu), *(self._watch.memory(use) if is_new else ())]:
                self._warned(record.step, warned)

    def evaluation(self, step: int, scores: Mapping[str, Any]) -> None:
        """Record scores of the weights behind ``step`` steps: a line of its own, at the last of them."""
        for sink in self._sinks:
            sink.write({"step": step - 1, **scores})

    def flush(self) -> None:
        """Bring everything to the disk; call it before a checkpoint is committed."""
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Close sinks and console; a second call does nothing."""
        self._console.close()
        for sink in self._sinks:
            sink.close()


def warning_event(warned: Warned) -> dict[str, Any]:
    """What an event of kind ``warning`` says."""
    threshold = THRESHOLDS[warned.what]
    return {"what": warned.what, "share": warned.share, "limit": threshold.limit, "steps": warned.steps}
