"""``evaluate RUN``: the tasks and held-out sources of a configuration, asked of a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loader.errors import ConfigError, DamageError
from loader.runs import read_branches

from ..checkpoint import Checkpoint, load_tensors
from ..job import Job, open_job_sources, refuse_other_tokens
from ..lineage import named_checkpoint, newest_valid
from ..state import build_model, input_options
from .during import Evaluation
from .perplexity import open_held_out
from .run import open_tasks

__all__ = ["evaluate_run", "rows_of_call"]

CALL_TOKENS = 1 << 14
"""Tokens of one call of the model, whole rows (one at least), where the run has no ``micro_batch``."""


def rows_of_call(micro_batch: int | None, global_batch: int, seq_len: int) -> int:
    """Rows of one call of the model, by one process. Without a ``micro_batch`` the run's ranks shared the batch,
    however many they were; the whole of it may be more than one process can hold.

    Loss and log-likelihoods depend on the rows in their rounding alone: by 1e-6 relative at most in float32.
    """
    return micro_batch or min(global_batch, max(1, CALL_TOKENS // seq_len))


def evaluate_run(job: Job, name: str | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Scores of one checkpoint, JSON-able; nothing is written.

    Args:
        job: of the run; its ``evaluate`` block says what is asked. name: of a checkpoint; None: the newest valid one.

    Raises:
        ConfigError: no such checkpoint, task or Dataset, or nothing to ask. DamageError: one is damaged.
        RefusedError: programs are to be run, and cannot be held on this machine.
    """
    config = job.config
    checkpoint = _checkpoint(job, name, say)
    torch.set_num_threads(config.run.threads)
    sources = open_job_sources(job)
    refuse_other_tokens(job, sources)
    rows = rows_of_call(config.micro_batch, config.data.batch[0].global_batch, sources.seq_len)
    held_out = open_held_out(job.open(config.validation), sources, config.evaluate.samples, rows)
    tasks = open_tasks(config.evaluate, sources, job.paths.root)
    evaluation = Evaluation(held_out, tasks, rows, sources.seq_len, sources.filler, config.evaluate.execute_code)
    if evaluation.is_empty:
        raise ConfigError(
            "TR-EVALUATE-NOTHING", "the run has neither held-out Datasets nor tasks", str(job.paths.config),
            "validation: or evaluate.tasks: in the configuration",
            f"tokenreel evaluate {job.paths.root} --task hellaswag",
        )  # fmt: skip
    model = build_model(config, sources)
    load_tensors(checkpoint, {f"model.{key}": parameter.detach() for key, parameter in model.named_parameters()})
    options = input_options(config, sources)
    found = evaluation(model, options)
    left_out = [task.name for task in tasks if task.name not in found.tasks]
    about = {"checkpoint": checkpoint.path.name, "step": checkpoint.facts.step, "branch": checkpoint.facts.branch}
    return {**about, **found.to_event(), "not_executed": left_out}


def _checkpoint(job: Job, name: str | None, say: Callable[[str], None]) -> Checkpoint:
    folder = job.paths.checkpoints
    if name is not None:
        return named_checkpoint(folder, name)

    def damaged(error: DamageError) -> None:
        say(f"damaged checkpoint, left alone: {error}")

    found = newest_valid(folder, read_branches(job.paths), None, damaged)
    if found is None:
        raise ConfigError(
            "TR-EVALUATE-CHECKPOINT", "the run has no valid checkpoint", str(folder), "a run that has begun",
            "tokenreel train CONFIG",
        )  # fmt: skip
    return found
