"""The verbs ``inspect`` and ``verify``: what a Dataset or a run is, and whether its bytes are those written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .cli_options import Output, output_options
from .errors import ConfigError, DamageError
from .path_kind import path_kind
from .remote.store import is_url

if TYPE_CHECKING:
    from .shards.verify import Finding

__all__ = ["inspect", "verify"]

_SHOWN_FINDINGS = 100


@click.command()
@click.argument("path")
@click.option("--exact", is_flag=True, help="Count every document of a Dataset, not a sample of its shards.")
@click.option("--no-shards", is_flag=True, help="Read the manifest and shards.npy only.")
@output_options
def inspect(output: Output, path: str, exact: bool, no_shards: bool) -> None:
    """Digests, counts and shares of the Dataset (also at a URL) or run in PATH.

    What documents are (BOS, EOS, lengths) is counted from the shards' tokens: from some of the shards, unless --exact.
    The last lines set up mosaicml-streaming for the Dataset as it is.
    """
    if is_url(path) or path_kind(path) == "dataset":
        from .inspect_text import dataset_text
        from .mosaic_adapter import stock_setup
        from .shards.describe import inspect_dataset
        from .stream.store import look_into_dataset

        if exact and no_shards:
            raise ConfigError("TR-INSPECT-OPTION", "--exact reads the shards", "--no-shards", "one of them")
        dataset = look_into_dataset(path)
        value = inspect_dataset(dataset, "none" if no_shards else "exact" if exact else "sampled")
        value["streaming"] = stock_setup(dataset)
        output.result(value, lambda: dataset_text(value))
    else:
        from .inspect_text import tree_lines
        from .run_verify import inspect_run

        if exact or no_shards:
            raise ConfigError("TR-INSPECT-OPTION", "--exact and --no-shards are for Datasets", path, "a Dataset")
        value = inspect_run(path)
        output.result(value, lambda: "\n".join(tree_lines(value, "")))


@click.command()
@click.argument("path")
@output_options
def verify(output: Output, path: str) -> None:
    """Read every byte of the Dataset (also at a URL) or run in PATH and compare it with what was written.

    job.json alone is exempt. At a URL the store is asked, past the cache.

    Files that nothing names are listed, but are no damage.
    """
    kind = "dataset" if is_url(path) else path_kind(path)
    if kind == "dataset":
        findings = _verify_dataset(output, path)
    else:
        from .run_verify import verify_run

        findings = verify_run(path)
    damage = [finding for finding in findings if finding.severity == "damage"]
    value = {
        "kind": kind,
        "path": path,
        "intact": not damage,
        "findings": [finding.to_json() for finding in findings],
        "not_covered": ["job.json"] if kind == "dataset" else ["job.json", "metrics.jsonl", "report.html"],
    }
    lines = [finding.to_text() for finding in findings[:_SHOWN_FINDINGS]]
    if len(findings) > _SHOWN_FINDINGS:
        lines.append(f"and {len(findings) - _SHOWN_FINDINGS} more (--json lists all)")
    lines.append(f"{path}: {'intact' if not damage else f'{len(damage)} damaged'}")
    output.result(value, "\n".join(lines))
    if damage:
        raise click.exceptions.Exit(DamageError.exit_code)


def _verify_dataset(output: Output, location: str) -> list[Finding]:
    from .stream.store import look_into_dataset, verify_location

    try:
        total = int(look_into_dataset(location).shards_R["size_bytes"].sum())
    except DamageError:
        total = None  # verifying says what is damaged, and more
    with output.progress("verify", total, "bytes") as progress:
        return verify_location(location, progress.advance)
