"""The verbs ``repack`` and ``import``: Datasets from tokens that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loader.cli_options import Output, output_options
from loader.errors import ConfigError

__all__ = ["import_tokens", "repack"]

_SIZES = click.IntRange(min=1)
_SEQ_LENS = click.IntRange(8, 1 << 24)
_WINDOWS = click.IntRange(1, 1 << 24)
_SHARD_BYTES = click.IntRange(1, (1 << 31) - (1 << 20))


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, file_okay=False))
@click.option("--seq-len", type=_SEQ_LENS, required=True, help="Tokens of a sample.")
@click.option("--output", "out", type=click.Path(path_type=Path), required=True, help="Folder of the new Dataset.")
@click.option("--strategy", help="Packing strategy; default: the Dataset's own.")
@click.option("--window-documents", type=_WINDOWS, help="Documents packed at a time; default: the Dataset's own.")
@click.option("--shard-bytes", type=_SHARD_BYTES, help="Size a shard aims at; default: the Dataset's own.")
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
        lines.append("its validation Dataset is repacked on its own:")
        lines.append(f"tokenreel repack {result['validation']} --seq-len {asked['seq_len']} --output {out}-validation")
    output.result(result, "\n".join(lines))


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE=PATH...")
@click.option("--format", "set_format", required=True, help="mds, megatron or datatrove.")
@click.option("--output", "out", type=click.Path(path_type=Path), required=True, help="Folder of the Dataset.")
@click.option("--seq-len", type=_SEQ_LENS, required=True, help="Tokens of a sample.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path, file_okay=False), help="A tokenizer folder (DATASET/tokenizer)."
)
@click.option("--vocab-size", type=_SIZES, help="Ids are below it; default: the tokenizer's.")
@click.option(
    "--pad-id", type=click.IntRange(min=0), help="Fills the rest of a sample; default: the tokenizer's, or 0."
)
@click.option("--keep-samples", is_flag=True, help="Every record has --seq-len tokens and stays one sample.")
@click.option("--column", default="tokens", show_default=True, help="MDS: the column with the tokens.")
@click.option("--dtype", help="MDS: dtype of the tokens in a column of bytes, such as int64.")
@click.option("--strategy", default="best_fit", show_default=True, help="Packing strategy.")
@click.option("--window-documents", type=_WINDOWS, default=8192, show_default=True, help="Documents packed at a time.")
@click.option("--shard-bytes", type=_SHARD_BYTES, default=64 << 20, show_default=True, help="Size a shard aims at.")
@click.option(
    "--seed", type=click.IntRange(0, (1 << 63) - 1), default=17, show_default=True, help="Keys ids and order."
)
@click.option("--workers", type=_SIZES, default=2, show_default=True, help="Processes; never changes a result.")
@output_options
def import_tokens(output: Output, sources: tuple[str, ...], out: Path, workers: int, **asked: Any) -> None:
    """Make a Dataset of token sets that others wrote: MDS, Megatron .bin/.idx, datatrove .ds."""
    from .config import PackConfig, ShardsConfig
    from .imports.base import TOKEN_DTYPES, SetOptions
    from .pack import PACKERS
    from .token_import import ImportOptions, import_set, parse_sources

    for option, value, known in (("--strategy", asked["strategy"], PACKERS), ("--dtype", asked["dtype"], TOKEN_DTYPES)):
        if value is not None and value not in known:
            raise ConfigError("TR-CONFIG-NAME", f"no {option[2:]} {value!r}", option, ", ".join(known))
    options = ImportOptions(
        format=asked["set_format"],
        sources=parse_sources(sources),
        set=SetOptions(asked["column"], asked["dtype"]),
        tokenizer=asked["tokenizer"],
        vocab_size=asked["vocab_size"],
        pad_id=asked["pad_id"],
        pack=PackConfig(asked["seq_len"], asked["strategy"], asked["window_documents"]),
        shards=ShardsConfig(asked["shard_bytes"]),
        seed=asked["seed"],
        keep_samples=asked["keep_samples"],
    )
    result = import_set(options, out, workers, output)
    lines = [*_packing_lines(result["sources"]), "", f"dataset  {result['digest']}  {result['output']}"]
    output.result(result, "\n".join(lines))


def _packing_lines(sources: dict[str, dict[str, Any]]) -> list[str]:
    """A table of what packing did."""
    from .buckets import PACKING_COUNTS

    width = max([len("source"), *map(len, sources)])
    lines = ["  ".join([f"{'source':<{width}}", *(f"{head.replace('_', ' '):>14}" for head in PACKING_COUNTS)])]
    for name, row in sources.items():
        lines.append("  ".join([f"{name:<{width}}", *(f"{row['packing'][head]:>14,}" for head in PACKING_COUNTS)]))
    return lines
