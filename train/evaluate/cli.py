"""The verb ``evaluate``. torch is imported only when it computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from loader.cli_options import Output, output_options
from loader.errors import ConfigError
from loader.yaml_tree import did_you_mean

from .task_names import TASK_NAMES

__all__ = ["evaluate"]

_TASK_HELP = (
    f"Once for each task; default: those of the run's configuration. One of {', '.join(TASK_NAMES)}, "
    "or of the run's evaluate.files."
)


@click.command()
@click.argument("run", type=click.Path())
@click.option("--checkpoint", default=None, help="A folder below RUN/checkpoints; default: the newest valid one.")
@click.option("--task", "tasks", multiple=True, help=_TASK_HELP)
@click.option("--limit", default=None, type=click.IntRange(min=1), help="The first so many items of each task.")
@click.option("--execute-code", is_flag=True, help="Run the programs that the model writes, in a limited process.")
@output_options
def evaluate(
    output: Output,
    run: str,
    checkpoint: str | None,
    tasks: tuple[str, ...],
    limit: int | None,
    execute_code: bool,
) -> int:
    """Held-out loss and benchmark tasks of a checkpoint of RUN, in one process; the run's folder stays as it is."""
    from ..job import job_of_run

    job = job_of_run(Path(run))
    block = job.config.evaluate
    known = (*TASK_NAMES, *block.files)
    for name in tasks:
        if name not in known:
            message = f"no task {name!r}{did_you_mean(name, known)}"
            raise ConfigError("TR-EVALUATE-TASK", message, "--task", ", ".join(sorted(known)))
    block = replace(
        block,
        tasks=tuple(dict.fromkeys(tasks)) or block.tasks,
        limit=block.limit if limit is None else limit,
        execute_code=block.execute_code or execute_code,
    )
    from .by_hand import evaluate_run

    found = evaluate_run(replace(job, config=replace(job.config, evaluate=block)), checkpoint, output.note)
    output.result(found, lambda: _text(found))
    return 0


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['checkpoint']}: {found['step']} steps"]
    if found.get("loss") is not None:
        lines.append(f"held-out loss {found['loss']:.4f} nats a token")
        lines += [f"  {name} {loss:.4f}" for name, loss in found["source_loss"].items() if loss is not None]
    for name, task in found.get("tasks", {}).items():
        error = task["errors"].get(task["metric"])
        spread = "" if error is None else f" +- {error:.4f}"
        about = f"{task['items']} items, {task['shots']} shots, chance {task['chance']:.2f}"
        about += f", {task['cut']} cut" if task["cut"] else ""
        lines.append(f"{name}: {task['metric']} {task['value']:.4f}{spread} ({about})")
    lines += [f"{name}: not scored; --execute-code runs what the model writes" for name in found["not_executed"]]
    return "\n".join(lines)
