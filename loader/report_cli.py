"""The verb ``report``: one HTML page about a Dataset or a run."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from .cli_options import Output, output_options
from .errors import ConfigError

__all__ = ["REPORTS", "report"]

# file that tells the kind -> (kind, "module:function" that takes the folder and the target, and returns where it wrote)
REPORTS: dict[str, tuple[str, str]] = {
    "run.json": ("run", "train.report.run_report:write_run_report"),
    "manifest.json": ("dataset", "dataprep.report:write_dataset_report"),
}


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write; default: PATH/report.html."
)
@output_options
def report(output: Output, path: Path, out: Path | None) -> None:
    """Write one self-contained HTML page about the Dataset or run in PATH.

    A Dataset's page was written when it was built and is covered by its manifest; without --out it is only named.
    """
    for name, (kind, function_name) in REPORTS.items():
        if (path / name).is_file():
            where = _made(kind, path) if out is None and kind == "dataset" else None
            if where is None:
                where = Path(_function(function_name)(path, out))
            output.result({"kind": kind, "path": str(path), "report": str(where)}, str(where))
            return
    raise ConfigError(
        "TR-PATH-KIND", "neither a Dataset nor a run", str(path), "a folder with manifest.json or run.json"
    )


def _made(kind: str, path: Path) -> Path | None:
    """The page that a Dataset's build left."""
    page = path / "report.html"
    if not page.is_file():
        raise ConfigError(
            "TR-REPORT-TARGET", f"this {kind} has no page of its own", str(page), None, "--out report.html"
        )
    return page


def _function(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    return getattr(importlib.import_module(module_name), function_name)
