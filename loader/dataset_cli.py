"""The verbs ``inspect`` and ``verify``: what a Dataset or a run is, and whether its bytes are those written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .cli_options import Output, output_options
from .errors import ConfigError, DamageError

__all__ = ["inspect", "verify"]

_SHOWN_FINDINGS = 100


def _kind(path: Path) -> str:
    if (path / "manifest.json").exists():
        return "dataset"
    if (path / "run.json").exists():
        return "run"
    raise ConfigError(
        "TR-PATH-KIND", "neither a Dataset nor a run", str(path), "a folder with manifest.json or run.json"
    )


@click.command()
@click.argument("path")
@output_options
def inspect(output: Output, path: str) -> None:
    """Digests, counts and shares of the Dataset or run in PATH."""
    if _kind(Path(path)) == "dataset":
        from .shards.describe import inspect_dataset

        value = inspect_dataset(path)
        output.result(value, lambda: _dataset_text(value))
    else:
        from .run_verify import inspect_run

        value = inspect_run(path)
        output.result(value, lambda: "\n".join(_tree(value, "")))


@click.command()
@click.argument("path")
@output_options
def verify(output: Output, path: str) -> None:
    """Read every byte in PATH and compare it with what was written; job.json alone is exempt.

    Files that nothing names are listed, but are no damage.
    """
    kind = _kind(Path(path))
    if kind == "dataset":
        from .shards.dataset import open_dataset
        from .shards.verify import verify_dataset

        try:
            total = int(open_dataset(path).shards_R["size_bytes"].sum())
        except DamageError:
            total = None  # verifying says what is damaged, and more
        with output.progress("verify", total, "bytes") as progress:
            findings = verify_dataset(path, progress.advance)
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


def _dataset_text(value: dict[str, Any]) -> str:
    totals = value["totals"]
    lines = [
        f"{value['path']}  dataset {value['digest']}",
        f"  {totals['num_tokens']:,} tokens in {totals['num_samples']:,} samples of {value['seq_len']:,}"
        f" ({value['dtype']}, vocabulary {value['vocab_size']:,}), {totals['num_documents']:,} documents,"
        f" {totals['num_shards']:,} shards, {totals['size_bytes']:,} bytes",
        f"  {'source':20} {'share':>8} {'tokens':>16} {'samples':>12}"
        f" {'documents':>12} {'segments':>12} {'padding':>8}",
    ]
    lines += [
        f"  {s['name']:20} {s['share']:8.2%} {s['num_tokens']:16,} {s['num_samples']:12,} {s['num_documents']:12,}"
        f" {s['num_segments']:12,} {s['padding']:8.3%}"
        for s in value["sources"]
    ]
    rest = {name: value[name] for name in ("tokenizer", "parents", "order", "mixture", "package_version", "accounting")}
    lines += _tree(rest, "  ")
    lines.append(f"  files: {len(value['files'])} covered by hash beside the shards")
    return "\n".join(lines)


def _tree(value: Any, indent: str) -> list[str]:
    """Nested dictionaries and lists as indented lines."""
    if isinstance(value, dict):
        lines = []
        for name, item in value.items():
            if isinstance(item, dict | list) and item:
                lines += [f"{indent}{name}:", *_tree(item, indent + "  ")]
            else:
                lines.append(f"{indent}{name}: {item}")
        return lines
    if isinstance(value, list):
        lines = []
        for item in value:
            first, *rest = _tree(item, "") or [""]
            lines += [f"{indent}- {first}", *(f"{indent}  {line}" for line in rest)]
        return lines
    return [f"{indent}{value}"]
