"""The verbs ``decontaminate``, ``dedup``, ``mix`` and ``build``: one pipeline, run up to different stages."""

from __future__ import annotations

from pathlib import Path

import click

from loader.cli_options import CommonOptions, common_options

__all__ = ["build", "decontaminate", "dedup", "mix"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@common_options
def decontaminate(options: CommonOptions, config: Path) -> None:
    """Screen the documents of CONFIG by its quality filters and for its benchmarks' items, and report both."""
    from .pipeline import locked
    from .run import describe_plan, prepare, run_until
    from .screen_report import screen_report

    prepared = prepare(config, options.all_overrides(), read_only=options.plan, output=options.output)
    screened = prepared.pipeline.screened()
    if options.plan:
        options.output.result(*describe_plan(prepared, screened))
        return
    with locked(prepared.pipeline.work):
        run_until(prepared, screened, options.output)
        options.output.result(*screen_report(prepared.pipeline))


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@common_options
def dedup(options: CommonOptions, config: Path) -> None:
    """Read, reject, deduplicate and hold out the documents of CONFIG; a later build goes on from here."""
    from .pipeline import locked
    from .run import describe_plan, prepare, run_until

    prepared = prepare(config, options.all_overrides(), read_only=options.plan, output=options.output)
    pipeline = prepared.pipeline
    if options.plan:
        options.output.result(*describe_plan(prepared, pipeline.deduplicated))
        return
    from .account import account_table, dedup_account
    from .publish import publish_index

    with locked(pipeline.work):
        run_until(prepared, pipeline.deduplicated, options.output)
        sources = dedup_account(pipeline)
        index = publish_index(pipeline, prepared.output)
    folder = pipeline.folder("decide")
    files = {"removed": str(folder / "removed.parquet"), "rejected": str(folder / "rejected.parquet")}
    if "spans" in pipeline.stages:
        files["cut whole"] = str(pipeline.folder("spans") / "removed.parquet")
    if pipeline.job.config.dedup.against:
        files["superseded"] = str(folder / "superseded.parquet")
    if index is not None:
        files["index"] = str(index)
    text = "\n".join([account_table(sources), "", *(f"{name:<10} {path}" for name, path in files.items())])
    options.output.result({"sources": sources, **{key.replace(" ", "_"): path for key, path in files.items()}}, text)


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@common_options
def mix(options: CommonOptions, config: Path) -> None:
    """Everything up to the token budget of each source of CONFIG, and a table of what the mix makes of them."""
    from .pipeline import locked
    from .run import describe_plan, mix_text, prepare, run_until

    prepared = prepare(config, options.all_overrides(), read_only=options.plan, output=options.output)
    if options.plan:
        options.output.result(*describe_plan(prepared, "mix"))
        return
    from .mix_output import mix_json

    with locked(prepared.pipeline.work):
        run_until(prepared, "mix", options.output)
        result = mix_json(prepared.pipeline)
    options.output.result(result, lambda: mix_text(prepared.pipeline))


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@common_options
def build(options: CommonOptions, config: Path) -> None:
    """Build the Dataset of CONFIG, and its validation Dataset beside it; finished stages are not run again."""
    from .run import describe_plan, finished_build, lacks_index, prepare, run_build

    prepared = prepare(config, options.all_overrides(), read_only=options.plan, output=options.output)
    if options.plan:
        built = finished_build(prepared)
        done = built and not lacks_index(prepared)
        plan, text = describe_plan(prepared, "index" if built and not done else "write", finished=done)
        options.output.result(
            {**plan, "finished": done}, text + ("\n\nnothing to do: the output is finished" if done else "")
        )
        return
    from .account import account_table

    result = run_build(prepared, options.output)
    lines = [account_table(result["accounting"]["sources"]), ""]
    lines.append(f"dataset     {result['digest']}  {result['output']}")
    if result["validation"]:
        lines.append(f"validation  {result['validation_digest']}  {result['validation']}")
    lines += [f"remark      {remark}" for remark in result["remarks"]]
    lines += ["", f"tokenreel inspect {result['output']}"]
    options.output.result(result, "\n".join(lines))
