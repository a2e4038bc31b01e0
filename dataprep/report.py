"""report.html of a Dataset: where every document went, clusters of duplicates, lengths, what the mix made of the
sources, what was rejected. Written from the manifest alone, without times or places, so that it is the same for the
same Dataset.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.dataset_blocks import dedup_blocks, fate_blocks, packing_blocks
from loader.errors import RefusedError
from loader.files import write_atomic
from loader.page import Block, Chart, Facts, Prose, Section, Table, render_page
from loader.page_assets import PALETTE

from .screen_report import BENCHMARK_COLUMNS, QUALITY_COLUMNS, benchmark_rows, quality_rows

if TYPE_CHECKING:
    from loader.shards.manifest import Manifest

__all__ = ["dataset_page", "write_dataset_report"]


def write_dataset_report(place: Path | Manifest, out: Path | None = None) -> Path:
    """Write the report of a Dataset, by its folder or its manifest, to ``out``; returns where it is.

    Raises:
        DamageError: the manifest is damaged. RefusedError: nobody kept an account of how the Dataset came to be.
    """
    from loader.shards.dataset import read_manifest

    manifest, beside = (read_manifest(place), place) if isinstance(place, Path) else (place, Path())
    if "sources" not in manifest.accounting:
        named = shlex.quote(str(place)) if isinstance(place, Path) else "DATASET"
        raise RefusedError(
            "TR-REPORT-ACCOUNT",
            "this Dataset has no account of its documents",
            str(beside / "manifest.json"),
            "one of tokenreel build or import",
            f"tokenreel inspect {named}",
        )
    where = out if out is not None else beside / "report.html"
    write_atomic(where, dataset_page(manifest.config, manifest.accounting, manifest.tokenizer).encode())
    return where


def dataset_page(config: Mapping[str, Any], accounting: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str:
    """The page as HTML.

    Args:
        config: semantic configuration, as in the manifest.
        accounting: of ``dataprep.account.account``.
        tokenizer: as in the manifest.
    """
    sources = {source["name"]: accounting["sources"][source["name"]] for source in config["sources"]}
    if "import" in config:
        sections = [
            Section("Imported records", _imported(config["import"], sources)),
            Section("Samples", packing_blocks(sources, config["pack"])),
            Section("Tokenizer", [_tokenizer(tokenizer)]),
            Section("Configuration", [Facts(_flat(config))]),
        ]
        return render_page("Dataset", sections, f"{len(sources)} sources, imported, seed {config['seed']}")
    dedup = dedup_blocks(config["dedup"], accounting["dedup"]) if "dedup" in accounting else []
    sections = [
        Section("Where every document went", _documents(sources, config["sources"])),
        Section("Bytes of text", _bytes(sources)),
        *([Section("Lengths", _lengths(sources, accounting["lengths"]))] if accounting.get("lengths") else []),
        *([Section("Rejected records", _rejects(sources, accounting["rejects"]))] if "rejects" in accounting else []),
        *_screens(accounting.get("screens", {})),
        *([Section("Deduplication", dedup)] if dedup else []),
        Section("Mix", _mix(accounting["mix"], accounting.get("mixture", ()))),
        Section("Samples", packing_blocks(sources, config["pack"])),
        Section("Tokenizer", [_tokenizer(tokenizer)]),
        Section("Configuration", [Facts(_flat(config))]),
    ]
    return render_page("Dataset", sections, f"{len(sources)} sources, seed {config['seed']}")


def _imported(rule: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """What came in as tokens."""
    rows = [
        [
            name,
            row["files"],
            row["records"],
            row["empty"],
            row["trained"],
            row["trained_bytes"] if rule["bytes"] else "-",
        ]
        for name, row in sources.items()
    ]
    words = (
        f"Token sets of format {rule['format']}. Every record is a document: records = documents + empty ones "
        "(checked). Bytes of text are known with a lossless tokenizer alone."
    )
    return [Prose(words), Table(["source", "files", "records", "empty", "documents", "bytes of text"], rows)]


def _documents(sources: Mapping[str, Mapping[str, Any]], settings: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Law 1, and who stayed out of what."""
    opted_out = [f"Source {s['name']} opted out of: {', '.join(s['opt_out'])}." for s in settings if s["opt_out"]]
    return [
        *fate_blocks(sources),
        *(Prose(text) for text in opted_out),
        Prose(
            "Each removal with its witness or reason: removed.parquet. Each passage that was cut: cuts.parquet. Each "
            "rejected record with its reason: rejected.parquet."
        ),
    ]


def _lengths(sources: Iterable[str], lengths: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Block]:
    """How long documents are, as they came in and as they were kept."""
    rows, traces = [], []
    for index, source in enumerate(name for name in sources if name in lengths):
        for part in ("read", "kept"):
            counts = lengths[source][part]
            mean = counts["bytes"] / counts["documents"] if counts["documents"] else 0.0
            rows.append([source, part, counts["documents"], round(mean), counts["longest"]])
            colour = PALETTE[index % len(PALETTE)]
            traces.append({
                "type": "scatter", "mode": "lines+markers", "name": f"{source}, {part}", "y": counts["by_bits"],
                "x": [2 ** (bits - 1) if bits else 0.5 for bits in range(len(counts["by_bits"]))],
                "line": {"color": colour, "dash": "dot" if part == "read" else "solid", "shape": "hv"},
            })  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "bytes of text, from"}, "type": "log"},
        "yaxis": {"title": {"text": "documents up to twice that length"}, "rangemode": "tozero"},
    }
    caption = "Documents by length, in doublings: dotted as they were read, lines as kept by screens and deduplication."
    heads = ["source", "documents", "number", "mean bytes", "longest, bytes"]
    return [Chart(caption, traces, layout), Table(heads, rows, filters=("source", "documents"))]


def _rejects(sources: Iterable[str], rejects: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Block]:
    """Records that are no documents, by reason, with the first of each."""
    rows = [
        [source, reason, one["records"], one["file"], one["record"], one["record_start"]]
        for source in sources
        for reason, one in sorted(rejects.get(source, {}).items())
    ]
    if not rows:
        return [Prose("No record was rejected.")]
    heads = ["source", "reason", "records", "first in file", "record", "byte offset, decompressed"]
    return [Table(heads, rows, filters=("source", "reason")), Prose("All of them: rejected.parquet.")]


def _bytes(sources: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    rows = [
        [
            name,
            row["bytes"],
            row["trained_bytes"],
            row["held_out_bytes"] - row.get("held_out_cut_bytes", 0),
            row.get("trained_cut_bytes", 0) + row.get("held_out_cut_bytes", 0),
            sum(row["removed_bytes"].values()),
        ]
        for name, row in sources.items()
    ]
    return [Table(["source", "in", "trained", "held out", "cut", "removed"], rows)]


def _screens(screens: Mapping[str, Any]) -> list[Section]:
    """What quality filters and decontamination did, where the job had them."""
    sections = []
    if "quality" in screens:
        rows = quality_rows(screens["quality"])
        table: Block = Table(list(QUALITY_COLUMNS), rows) if rows else Prose("No document was dropped.")
        sections.append(Section("Quality", [table]))
    if "decontaminate" in screens:
        report = screens["decontaminate"]
        rule = report["rule"]
        words = (
            f"A document is contaminated by an item if it holds at least {rule['threshold']:.0%} of the item's "
            f"distinct {rule['n']}-grams. Action: {rule['action']}. Every hit: contamination.parquet."
        )
        table = Table([head for head, _ in BENCHMARK_COLUMNS], benchmark_rows(report))
        sections.append(Section("Decontamination", [Prose(words), table]))
    return sections


def _mix(rows: list[Mapping[str, Any]], mixture: Sequence[Mapping[str, Any]]) -> list[Block]:
    """What was planned and kept of each source, and the stages of the default mixture where it has any."""
    table = [
        [
            row["source"],
            row["available_tokens"],
            row["planned_tokens"],
            row["kept_tokens"],
            f"{100 * row['ratio']:.2f} %",
            f"{100 * row['share']:.2f} %",
            f"{100 * row.get('error', row['share'] - row['ratio']):+.3f} %",
            f"{row['epochs']:.3f}",
        ]
        for row in rows
    ]
    heads = ["source", "available tokens", "planned", "kept", "planned share", "realised share", "error", "epochs"]
    names = [row["source"] for row in rows]
    bars = [
        {"type": "bar", "name": name, "x": names, "y": [row[key] for row in rows], "marker": {"color": colour}}
        for name, key, colour in (("planned", "ratio", PALETTE[4]), ("realised", "share", PALETTE[0]))
    ]
    layout = {"barmode": "group", "yaxis": {"tickformat": ".0%", "title": {"text": "share of tokens"}}}
    blocks: list[Block] = [Table(heads, table), Chart("Shares of the sources, planned and realised.", bars, layout)]
    blocks.append(Prose("The realised shares are the default mixture of training."))
    if any(row.get("thinned_documents") for row in rows):
        thinned = {row["source"]: row["thinned_documents"] for row in rows if row.get("thinned_documents")}
        blocks.append(Prose("Available tokens are estimated where documents were left out before they were tokenised:"))
        blocks.append(Facts(thinned))
    if mixture:
        stages = [
            [row["start"], row["positions"], source, f"{100 * value['share']:.4f} %", f"{100 * value['error']:+.1e} %"]
            for row in mixture
            for source, value in row["sources"].items()
        ]
        blocks.append(Table(["from position", "positions", "source", "share of tokens", "error"], stages))
    return blocks


def _tokenizer(tokenizer: Mapping[str, Any]) -> Facts:
    names = ("kind", "vocab_size", "lossless", "bos_id", "eos_id", "pad_id", "digest")
    return Facts({name: tokenizer[name] for name in names if name in tokenizer})


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    """Nested configuration as dotted keys."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, object] = {}
        for key, item in sorted(value.items()):
            flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        flat = {}
        for number, item in enumerate(value):
            name = item.get("name", number) if isinstance(item, Mapping) else number
            flat.update(_flat(item, f"{prefix}.{name}"))
        return flat
    return {prefix: ", ".join(map(str, value)) if isinstance(value, list) else value}
