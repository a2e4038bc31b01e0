"""What a run evaluates: held-out sources and tasks, opened once, asked as often as the configuration says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader.sources import Sources

from ..inputs import InputOptions
from ..model import Decoder
from .outcome import TaskScore
from .perplexity import HeldOut, SourceScore, mean_loss, open_held_out, perplexity
from .run import PreparedTask, open_tasks, score_tasks, tasks_of_whole_rows
from .score import Reader
from .share import ALONE, Share, parts_of_rows

if TYPE_CHECKING:
    from ..job import Job

__all__ = ["Evaluated", "Evaluation", "open_evaluation"]


@dataclass(frozen=True)
class Evaluated:
    """The scores of one model.

    Attributes:
        sources: held-out loss of each source. tasks: name -> score; programs that must not be run are left out.
        loss: mean of the sources' losses, nats a label; NaN without any.
    """

    sources: Mapping[str, SourceScore]
    tasks: Mapping[str, TaskScore]

    @property
    def loss(self) -> float:
        """Held-out."""
        return mean_loss(dict(self.sources))

    def to_event(self) -> dict[str, Any]:
        """For ``events.jsonl`` and ``--json``; what was not evaluated has no key."""
        out: dict[str, Any] = {}
        if self.sources:
            out["loss"] = self.loss if math.isfinite(self.loss) else None
            out["source_loss"] = {name: score.loss for name, score in self.sources.items()}
        if self.tasks:
            out["tasks"] = {name: score.to_json() for name, score in self.tasks.items()}
        return out

    def to_line(self) -> dict[str, Any]:
        """Numbers alone, for metrics and their charts."""
        out: dict[str, Any] = {}
        if self.sources:
            out["held_out_loss"] = self.loss
            out["held_out_source_loss"] = {name: score.loss for name, score in self.sources.items()}
            out["held_out_perplexity"] = {name: score.perplexity for name, score in self.sources.items()}
        if self.tasks:
            out["task"] = {name: dict(score.scores) for name, score in self.tasks.items()}
        return out

    def to_text(self) -> str:
        """One line for people."""
        parts = [f"held-out loss {self.loss:.4f}"] if self.sources else []
        parts += [f"{name} {score.metric} {score.value:.4f}" for name, score in self.tasks.items()]
        return ", ".join(parts)


@dataclass(frozen=True)
class Evaluation:
    """Everything that is asked of a model.

    Attributes:
        held_out: validation Datasets, or None. tasks: tokenised.
        rows: of one call of the model. seq_len, filler: of the training data.
        execute_code: run what the model writes.
    """

    held_out: HeldOut | None
    tasks: Sequence[PreparedTask]
    rows: int
    seq_len: int
    filler: int
    execute_code: bool = False

    @property
    def is_empty(self) -> bool:
        """Nothing is asked."""
        return self.held_out is None and not self.tasks

    def __call__(self, model: Decoder, options: InputOptions, share: Share = ALONE) -> Evaluated:
        """Score a model; every process calls it and gets the same scores. It reads the model and changes nothing, draws
        no random number and leaves the stream where it is.

        Raises:
            RefusedError: a task that writes, with a model of which no process sees whole rows.
        """
        sources = {} if self.held_out is None else perplexity(model, self.held_out, options, share)
        reader = Reader(options, self.rows, self.seq_len, self.filler)
        return Evaluated(sources, score_tasks(model, self.tasks, reader, share, execute_code=self.execute_code))


def open_evaluation(job: Job, sources: Sources, data_ranks: int = 1) -> Evaluation:
    """What a job's configuration asks while it trains; no task is read while evaluation is off.

    Args:
        data_ranks: of the mesh: a forward pass is no larger than one of training is.

    Raises:
        ConfigError: a Dataset or items are not there. RefusedError: held-out data that do not fit the training data;
            tasks that cannot be asked on the job's mesh, or programs that cannot be held: a run that does steps and
            then fails at its first evaluation, in front of the save, would never get further.
    """
    config = job.config
    parallel = config.parallel
    refused = tasks_of_whole_rows(config.evaluate) if config.evaluate.every_steps else []
    if refused and (parallel.pipeline > 1 or parallel.context > 1):
        raise parts_of_rows(", ".join(refused))
    rows = config.micro_batch or -(-config.data.batch[0].global_batch // data_ranks)
    block = config.evaluate
    held_out = open_held_out(job.open(config.validation), sources, block.samples, rows)
    tasks = open_tasks(block, sources, job.paths.root) if block.every_steps else []
    return Evaluation(held_out, tasks, rows, sources.seq_len, sources.filler, block.execute_code)
