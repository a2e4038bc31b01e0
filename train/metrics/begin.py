"""The recorder of one attempt, put together from a run's configuration, plan and ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import torch

from loader.run_folder import read_identity
from loader.runs import ledger_of

from .averages import LossAverages
from .clock import StepClock
from .console import StepConsole
from .flops import Peak, Sizes, device_peak, token_flops
from .memory import MemoryMeter, cuda_counters
from .recorder import Outputs, Recorder, RunFacts, warning_event
from .sinks import SinkPlace, open_sinks
from .warn import Warned

if TYPE_CHECKING:
    from loader.order.plan import Plan
    from loader.sources import Sources

    from ..config import TrainConfig
    from ..job import Job

__all__ = ["Attempt", "begin_recorder"]

_SHOWN = ("model", "optimizer", "schedule", "precision", "steps", "seed", "micro_batch")


@dataclass(frozen=True)
class Attempt:
    """What a recorder has to know of an attempt.

    Attributes:
        job, sources, plan: of the run. shape: of the whole model.
        branch, attempt, first_step, last_step: ``[first_step, last_step)`` is what it will do.
        device, num_devices: one process's, and how many the job has.
        clock: that of the loop. say: takes a line for the console.
        event: takes kind, branch, step and details of an event.
        terminal: where a live line is drawn, or None.
    """

    job: Job
    sources: Sources
    plan: Plan
    shape: Sizes
    branch: int
    attempt: int
    first_step: int
    last_step: int
    device: torch.device
    num_devices: int
    clock: StepClock
    say: Callable[[str], None]
    event: Callable[..., None]
    terminal: TextIO | None = None


def begin_recorder(attempt: Attempt) -> Recorder:
    """Open everything that an attempt's metrics go to; the caller holds the run's lock.

    Raises:
        OSError: metrics.jsonl cannot be written.
        DamageError: the ledger is damaged.
    """
    run, paths = attempt.job.config.run, attempt.job.paths
    place = SinkPlace(
        root=paths.root,
        run_id=str(read_identity(paths)["run_id"]),
        branch=attempt.branch,
        attempt=attempt.attempt,
        first_step=attempt.first_step,
        tensorboard=run.tensorboard,
        wandb=run.wandb,
        facts=_shown(attempt),
        warn=attempt.say,
    )
    records_N = ledger_of(paths, attempt.branch, attempt.sources.names)
    averages = LossAverages(attempt.sources.names)
    averages.seed(records_N[records_N["step"] < attempt.first_step])

    def warned(step: int, incident: Warned) -> None:
        attempt.say(str(incident))
        attempt.event("warning", attempt.branch, step, **warning_event(incident))

    console = StepConsole(attempt.say, run.log_every, attempt.last_step, attempt.terminal)
    memory = MemoryMeter(cuda_counters(attempt.device))
    return Recorder(_facts(attempt), Outputs(open_sinks(place), console, warned), averages, memory, attempt.clock)


def _peak(config: TrainConfig, device: torch.device) -> Peak | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return device_peak(name, config.precision, config.run.peak_tflops)


def _facts(attempt: Attempt) -> RunFacts:
    sources, plan, config = attempt.sources, attempt.plan, attempt.job.config
    num_samples = {name: max(1, sources.info(name).num_samples) for name in sources.names}

    def epochs(position: int) -> Mapping[str, float]:
        """How often each source was read through, dropped samples included."""
        return {name: round(raw / num_samples[name], 6) for name, raw in plan.raw_before(position).items()}

    return RunFacts(
        total_steps=attempt.last_step,
        log_every=config.run.log_every,
        flops_per_token=token_flops(attempt.shape).total,
        num_devices=attempt.num_devices,
        peak=_peak(config, attempt.device),
        is_accelerator=attempt.device.type != "cpu",
        source_epochs=epochs,
    )


def _shown(attempt: Attempt) -> dict[str, Any]:
    """What W&B shows of a run: sizes and settings, digests of the data; no path, no address."""
    semantic = attempt.job.semantic
    return {
        **{name: semantic[name] for name in _SHOWN if name in semantic},
        "dataset_digests": list(attempt.sources.digests),
        "sources": list(attempt.sources.names),
    }
