"""The verb ``plan``. No torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loader.cli_options import Output, output_options
from loader.config_kind import config_kind
from loader.settings import load_config

from .request import Assumptions

__all__ = ["plan"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key: --set a.b=c.")
@click.option("--gpus", "cards", type=click.IntRange(min=1), help="Processes in all; default: run.processes.")
@click.option("--gpu", "card", help="h100, a100-80gb, b200, cpu ...; default: by run.device.")
@click.option("--mfu", type=float, default=0.4, show_default=True, help="Useful FLOP/s over the card's peak.")
@click.option("--price", type=float, help="USD a card-hour; default: an assumption for some cards.")
@click.option("--cluster-factor", "factor", type=float, help="Time over computing time; default: from failures.")
@click.option("--vocab-size", type=click.IntRange(min=1), help="Where no Dataset is there yet; default: 32000.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Where no Dataset is there yet; default: the preset's.")
@output_options
def plan(output: Output, config: Path, overrides: tuple[str, ...], **assumed: Any) -> int:
    """What CONFIG would take: parameters, FLOPs, tokens and epochs, memory of a card, traffic, hours, price.

    Of a build configuration: inputs, tokens and epochs per source, stages. Nothing is written. Warnings name meshes
    that cannot work; they do not change the exit code.
    """
    if config_kind(config) == "build":
        from loader.cli import group

        words = [str(config), "--plan", *(word for one in overrides for word in ("--set", one))]
        words += [flag for flag, given in (("--json", output.json), ("--quiet", output.quiet)) if given]
        build = group.get_command(click.get_current_context(), "build")
        assert build is not None
        # A command keeps the help option of its first call: it must be the one that the verb has by itself.
        build.main(words, prog_name="tokenreel build", standalone_mode=False, **group.context_settings)
        return 0
    from ..config import TrainConfig
    from ..job import resolve_job
    from .report import plan_training, to_json
    from .text import plan_text

    found = to_json(plan_training(resolve_job(load_config(config, TrainConfig, overrides)), Assumptions(**assumed)))
    output.result(found, lambda: plan_text(found))
    return 0
