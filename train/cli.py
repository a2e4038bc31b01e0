"""The verbs ``train``, ``rollback`` and ``replay``. torch is imported only by the process that computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from loader.cli_options import CommonOptions, Output, common_options, output_options
from loader.errors import JobError
from loader.settings import load_config

from .config import TrainConfig
from .launch import exec_training, place, tell_final, under_torchrun

__all__ = ["replay", "rollback", "train"]

_PATH = click.Path()


@click.command()
@click.argument("config", type=_PATH)
@common_options
def train(options: CommonOptions, config: str) -> int:
    """Train as CONFIG says; the same command again resumes. Ctrl-C and SIGTERM save first."""
    loaded = load_config(config, TrainConfig, options.all_overrides("run.reader_threads"))
    if options.plan:
        return _show_plan(options.output, loaded)
    if not under_torchrun():
        flags = [flag for flag, given in (("--json", options.output.json), ("--quiet", options.output.quiet)) if given]
        overrides = [word for override in options.all_overrides("run.reader_threads") for word in ("--set", override)]
        debug = ["--debug"] if "--debug" in sys.argv[1:2] else []
        words = [*debug, "train", config, *overrides, *flags]
        if loaded.config.run.processes == 1:
            exec_training(words, loaded.config.run.threads, replica=loaded.config.run.torchft is not None)
        from .many import launch

        return launch(words, loaded.config.run, options.output.note)
    from .failure import EchoError, comes_again
    from .process import train_process

    try:
        terminal = sys.stderr if sys.stderr.isatty() and not options.output.quiet else None
        result, code = train_process(loaded, options.output.note, terminal)
    except EchoError as echo:
        return echo.exit_code
    except JobError as error:
        if comes_again(error):
            tell_final()
            raise
        if not place().again:
            raise
        options.output.note(str(error))  # the result is still to come
        return error.exit_code
    if place().rank == 0:
        from .job import resolve_job
        from .summary import summary, summary_text

        facts = summary(result, resolve_job(loaded).paths, loaded.config.steps)
        options.output.result(facts, lambda: summary_text(facts))
    return code


def _show_plan(output: Output, loaded: Any) -> int:
    from .job import open_job_sources, resolve_job
    from .plan.tokens import batches_reached

    job = resolve_job(loaded)
    sources = open_job_sources(job)
    least, most = (batch * sources.seq_len for batch in batches_reached(job.config))
    tokens = {name: sources.info(name).num_tokens for name in sources.names}
    facts = {
        "run": str(job.paths.root),
        "digest": loaded.digest,
        "steps": job.config.steps,
        "tokens_per_step": most if least == most else [least, most],
        "source_tokens": tokens,
        "datasets": list(sources.digests),
    }
    output.result(facts, lambda: "\n".join(f"{key}: {value}" for key, value in facts.items()))
    return 0


@click.command()
@click.argument("run", type=_PATH)
@click.option("--to", "step", required=True, type=click.IntRange(min=0), help="Newest checkpoint at or before it.")
@output_options
def rollback(output: Output, run: str, step: int) -> int:
    """Move RUN back to the newest checkpoint at or before a step; its history is kept."""
    from .back import roll_back

    facts = roll_back(Path(run), step, output.note)
    output.result(
        facts,
        f"branch {facts['branch']} begins at step {facts['step']}, position {facts['position']} "
        f"(checkpoint {facts['checkpoint']})\nnext: tokenreel skip {run} ..., or: tokenreel train CONFIG",
    )
    return 0


@click.command()
@click.argument("run", type=_PATH)
@click.option("--steps", required=True, help="A:B, half-open.")
@click.option("--checkpoint", default=None, help="A folder below RUN/checkpoints; default: the newest before A.")
@click.option("--branch", default=None, type=click.IntRange(min=0), help="Default: the current one.")
@click.option("--text/--no-text", default=True, help="Look up and print the text of each segment.")
@output_options
def replay(output: Output, run: str, steps: str, checkpoint: str | None, branch: int | None, text: bool) -> int:
    """The identical batches again: text, loss and head gradient norm of each segment."""
    from loader.run_cli import parse_range

    from .replay import Replay, replay_run, replay_text

    start, stop = parse_range(steps, "--steps")
    found = replay_run(Replay(Path(run), start, stop, checkpoint, branch, text), output.note)
    output.result(found, lambda: replay_text(found))
    return 0
