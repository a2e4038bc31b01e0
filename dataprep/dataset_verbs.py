"""The verbs ``repack`` and ``import``: Datasets from tokens that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loader.cli_options import Output, output_options

__all__ = ["repack"]

_SIZES = click.IntRange(min=1)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seq-len", type=_SIZES, required=True, help="Tokens of a sample.")
@click.option("--output", "out", type=click.Path(path_type=Path), required=True, help="Folder of the new Dataset.")
@click.option("--strategy", help="Packing strategy; default: the Dataset's own.")
@click.option("--window-documents", type=_SIZES, help="Documents packed at a time; default: the Dataset's own.")
@click.option("--shard-bytes", type=_SIZES, help="Size a shard aims at; default: the Dataset's own.")
@click.option("--workers", type=_SIZES, default=2, show_default=True, help="Processes; never changes a result.")
@output_options
def repack(output: Output, dataset: Path, out: Path, workers: int, **asked: Any) -> None:
    """Pack DATASET for another sequence length, without tokenising again."""
    from .repack import RepackOptions
    from .repack import repack as run

    options = RepackOptions(asked["seq_len"], asked["strategy"], asked["window_documents"], asked["shard_bytes"])
    result = run(dataset, out, options, workers, output)
    lines = [*_packing_lines(result["sources"]), "", f"dataset  {result['digest']}  {result['output']}"]
    if result["validation"] is not None:
        lines.append(f"validation Dataset not repacked: tokenreel repack {result['validation']} --seq-len ...")
    output.result(result, "\n".join(lines))


def _packing_lines(sources: dict[str, dict[str, Any]]) -> list[str]:
    """A table of what packing did."""
    heads = ("samples", "segments", "padding", "long_documents", "long_pieces", "fitting_cut")
    width = max([len("source"), *map(len, sources)])
    lines = ["  ".join([f"{'source':<{width}}", *(f"{head.replace('_', ' '):>14}" for head in heads)])]
    for name, row in sources.items():
        lines.append("  ".join([f"{name:<{width}}", *(f"{row['packing'][head]:>14,}" for head in heads)]))
    return lines
