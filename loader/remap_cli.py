"""The verb ``remap``."""

from __future__ import annotations

from pathlib import Path

import click

from .cli_options import Output, output_options

__all__ = ["remap"]


@click.command()
@click.argument("folder", type=click.Path(file_okay=False), metavar="RUN")
@click.option("--dataset", "datasets", multiple=True, required=True, metavar="DATASET",
              help="A Dataset to read from now on; once for each.")  # fmt: skip
@click.option("--plan", "plan_only", is_flag=True, help="Say what would change, write nothing.")
@output_options
def remap(output: Output, folder: str, datasets: tuple[str, ...], plan_only: bool) -> None:
    """Go on with other data where those that a RUN reads truly changed: a new plan, from its newest checkpoint on.

    Steps, positions and mixture go on counting; sources begin their order anew, but for those of an unchanged Dataset.
    What was read before stays known. Refused where nothing changed.
    """
    from .remap import remap_run
    from .run_text import remap_text

    result = remap_run(Path(folder), datasets, plan_only)
    output.result(result, lambda: remap_text(result))
