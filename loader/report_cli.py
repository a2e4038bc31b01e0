"""The verb ``report``: one HTML page about a Dataset or a run."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any

import click

from .cli_options import Output, output_options
from .errors import ConfigError
from .path_kind import path_kind
from .remote.store import is_url

__all__ = ["REPORTS", "report"]

# file that tells the kind -> (kind, "module:function" that takes the folder and the target, and returns where it wrote)
REPORTS: dict[str, tuple[str, str]] = {
    "run.json": ("run", "train.report.run_report:write_run_report"),
    "manifest.json": ("dataset", "dataprep.report:write_dataset_report"),
}


@click.command()
@click.argument("path")
@click.option("--out", type=click.Path(dir_okay=False), help="Where to write; default: PATH/report.html.")
@output_options
def report(output: Output, path: str, out: str | None) -> None:
    """Write one self-contained HTML page about the Dataset (also at a URL) or run in PATH.

    A Dataset's page was written when it was built and is covered by its manifest; without --out it is only named.
    """
    from .stream.store import folder_of, look_into_dataset

    if out is not None and is_url(out):
        raise ConfigError(
            "TR-REPORT-TARGET", "pages are written to files, not to stores", out, None, "--out report.html"
        )
    if out is not None and not Path(out).parent.is_dir():
        parent = Path(out).parent
        raise ConfigError(
            "TR-REPORT-TARGET",
            f"no folder {str(parent)!r}",
            out,
            "a folder that is there",
            shlex.join(["mkdir", "-p", str(parent)]),
        )
    folder = folder_of(path)
    kind, function_name = _kind(folder)
    where: str | None = None
    if out is None and kind == "dataset":
        where = _made_at(path) if folder is None else str(_made(kind, folder))
    if where is None:
        target = None if out is None else Path(out)
        where = str(_function(function_name)(look_into_dataset(path).manifest if folder is None else folder, target))
    output.result({"kind": kind, "path": path, "report": where}, where)


def _kind(folder: Path | None) -> tuple[str, str]:
    """(kind, function), as in ``REPORTS``; what is at a URL can be a Dataset alone."""
    if folder is None:
        return REPORTS["manifest.json"]
    return REPORTS["run.json" if path_kind(str(folder)) == "run" else "manifest.json"]


def _made(kind: str, path: Path) -> Path:
    """The page that a Dataset's build left."""
    page = path / "report.html"
    if not page.is_file():
        raise ConfigError(
            "TR-REPORT-TARGET", f"this {kind} has no page of its own", str(page), None, "--out report.html"
        )
    return page


def _made_at(url: str) -> str:
    """The URL of the page that a Dataset's build left; it was read and verified."""
    from .stream.store import look_into_dataset

    dataset = look_into_dataset(url)
    page = f"{dataset.location}/report.html"
    if "report.html" not in dataset.manifest.files_hashed:
        raise ConfigError("TR-REPORT-TARGET", "this dataset has no page of its own", page, None, "--out report.html")
    dataset.read_file("report.html")
    return page


def _function(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    return getattr(importlib.import_module(module_name), function_name)
