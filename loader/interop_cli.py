"""The verbs ``export``, ``diff`` and ``schema``: Datasets in other formats, what differs, what may be written where.

The models of runs are exported by the trainer, which is found by name when asked for, as a verb's module is.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import click

from .cli_options import Output, output_options
from .errors import ConfigError

__all__ = ["diff", "export", "schema"]

_SHOWN_FILES = 40
_RUN_EXPORTERS = {"hf": "train.huggingface.export"}  # --format -> module with RunExport and export_verb


@click.command()
@click.argument("dataset", metavar="DATASET_OR_RUN")
@click.option("--format", required=True, metavar="FORMAT", help="mds, megatron, datatrove, parquet; of a RUN: hf.")
@click.option("--output", "target", required=True, help="Folder to write; new.")
@click.option("--source", "sources", multiple=True, metavar="NAME", help="This source only; may be given again.")
@click.option("--link", is_flag=True, help="Link to the Dataset's token files, relatively (mds, megatron).")
@click.option("--split", default="", metavar="NAME", help="Put everything into this folder of the output (mds).")
@click.option("--checkpoint", metavar="NAME", help="A folder below RUN/checkpoints; default: the newest (hf).")
@click.option("--dtype", metavar="DTYPE", help="Of the weights: float32 (default) or bfloat16 (hf).")
@click.option("--plan", is_flag=True, help="Print files and bytes; write nothing.")
@output_options
def export(output: Output, dataset: str, target: str, plan: bool, **options: Any) -> None:
    """Write a Dataset (also at a URL) as another stack reads it, verified while it is read; or, with --format hf, the
    model of a RUN as config.json and safetensors, with the Dataset's tokenizer where that is a tokenizer.json.

    Written to a folder beside --output and renamed when whole; the same export again is a no-op, anything else that is
    there is left alone and refused. export.json in it names the Dataset's digest and each file's hash.
    """
    of_run = {key: options.pop(key) for key in ("checkpoint", "dtype")}
    _refuse_other_kind(dataset, options["format"])
    if options["format"] in _RUN_EXPORTERS:
        _refuse({key: options[key] for key in ("sources", "link", "split")}, "a Dataset's format")
        exporter = importlib.import_module(_RUN_EXPORTERS[options["format"]])
        given = {key: value for key, value in of_run.items() if value is not None}
        exporter.export_verb(output, exporter.RunExport(Path(dataset), Path(target), **given), plan=plan)
        return
    from .interop.export import ExportOptions, bytes_to_read, export_dataset, plan_export

    _refuse(of_run, f"--format {' or '.join(_RUN_EXPORTERS)}")
    asked = ExportOptions(**options)
    if plan:
        planned = plan_export(dataset, target, asked)
        output.result(planned, lambda: _plan_text(planned))
        return
    total = bytes_to_read(dataset, target, asked)
    with output.progress(f"export {asked.format}", total, "bytes") as progress:
        made = export_dataset(dataset, target, asked, progress.advance)
    output.result(made, lambda: _export_text(made))


def _refuse_other_kind(place: str, name: str) -> None:
    """A run where a Dataset is asked for, or the other way round.

    Raises:
        ConfigError: so it is.
    """
    kinds = {"run.json": "a run", "manifest.json": "a Dataset"}
    wanted = "run.json" if name in _RUN_EXPORTERS else "manifest.json"
    found = next((kind for file, kind in kinds.items() if file != wanted and (Path(place) / file).is_file()), None)
    if found is not None:
        text = f"--format {name} writes {kinds[wanted]}, and this is {found}"
        raise ConfigError("TR-EXPORT-OPTION", text, place, kinds[wanted], "tokenreel export --help")


def _refuse(options: dict[str, Any], where: str) -> None:
    """Options that this format has no use for.

    Raises:
        ConfigError: one is given.
    """
    given = [f"--{key.removesuffix('s') if key == 'sources' else key}" for key, value in options.items() if value]
    if given:
        raise ConfigError("TR-EXPORT-OPTION", f"{', '.join(given)} means nothing here", "--format", where)


def _plan_text(planned: dict[str, Any]) -> str:
    lines = [f"{planned['output']}: {'finished already' if planned['finished'] else 'would be written'}"]
    for file in planned["files"][:_SHOWN_FILES]:
        size = "compressed" if file["size_bytes"] is None else f"{file['size_bytes']:,}"
        lines.append(f"  {size:>18}  {file['name']}")
    if len(planned["files"]) > _SHOWN_FILES:
        lines.append(f"  and {len(planned['files']) - _SHOWN_FILES} more (--json lists all)")
    unknown = sum(file["size_bytes"] is None for file in planned["files"])
    if unknown < len(planned["files"]):
        lines.append(f"  {planned['size_bytes']:,} bytes in {len(planned['files']) - unknown} files")
    if unknown:
        lines.append(f"  {unknown} files whose size is known once they are compressed")
    return "\n".join(lines)


def _export_text(made: dict[str, Any]) -> str:
    state = "written" if made["written"] else "finished already"
    size_bytes = sum(file["size_bytes"] for file in made["files"])
    return (
        f"{made['output']}: {state}, {len(made['files'])} files, {size_bytes:,} bytes,"
        f" {made['totals']['num_tokens']:,} tokens of {made['totals']['num_documents']:,} documents\n"
        f"  dataset {made['dataset']}\n"
        f"  read it with {made['read_with']}"
    )


@click.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.option("--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Documents shown of a kind.")
@output_options
def diff(output: Output, left: str, right: str, examples: int) -> None:
    """What differs between two Datasets (also at URLs), or two runs, A and B.

    Exit codes as of diff(1): 0 the same, 1 different (2 usage, 3 damage, as everywhere).
    """
    from .diff import compare, to_text

    value = compare(left, right, examples)
    output.result(value, lambda: to_text(value))
    if not value["same"]:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("name", required=False)
@output_options
def schema(output: Output, name: str | None) -> None:
    """JSON Schema of configuration files and manifests, and the layout of every table on disk.

    Without NAME, the names. An editor checks a configuration by a first line
    `# yaml-language-server: $schema=build.schema.json` after `tokenreel schema build > build.schema.json`.
    """
    from .schema import SCHEMAS, schema_named

    if name is None:
        lines = {key: entry.what for key, entry in SCHEMAS.items()}
        output.result({"schemas": lines}, "\n".join(f"{key:12} {what}" for key, what in lines.items()))
        return
    value = schema_named(name)
    output.result(value, json.dumps(value, indent=2, ensure_ascii=False))
